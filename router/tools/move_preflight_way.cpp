// Preflight: whether the target's server can follow the source. Proven by a subscription that is
// made in a transaction and rolled back.
#include <regex>

#include "tools/move_preflight_parts.h"

namespace interlock {

namespace {

const char *const other_address =
    "Give the address by which the target's server reaches the source, with a login that may "
    "replicate: --source-conninfo 'host=... port=... dbname=... user=...'.";

/// The line of pg_hba.conf that would let it in; empty: the error is another one.
std::string missing_access(const std::string &message) {
    static const std::regex pattern(
        "pg_hba\\.conf (?:entry for|rejects connection for) host \"([^\"]*)\", user \"([^\"]*)\", "
        "database \"([^\"]*)\"");
    std::smatch found;
    if (!std::regex_search(message, found, pattern)) return {};
    const std::string host = found[1];
    const std::string type = host == "[local]" ? "local" : "host";
    const std::string mask =
        type == "local" ? std::string()
                        : "  " + host + (host.find(':') == std::string::npos ? "/32" : "/128");
    return type + "  \"" + found[3].str() + "\"  \"" + found[2].str() + "\"" + mask +
           "  scram-sha-256";
}

std::string mend_for(const Preflight &check, const std::string &message) {
    if (const std::string line = missing_access(message); !line.empty())
        return "In pg_hba.conf of the server of " + check.source.called() +
               ", add above the others the line: " + line +
               " -- then there run: SELECT pg_reload_conf();";
    if (message.find("password") != std::string::npos)
        return "Put the password where the target's server finds it (a password file of the "
               "server's user), or into --source-conninfo.";
    return other_address;
}

}  // namespace

void check_way_to_source(Preflight &check) {
    ControlConnection &target = check.target.connection;
    const std::string conninfo = check.session.subscriber_conninfo();
    ControlTransaction transaction(target);
    // The connection string may hold a password, which is nobody's business who reads the log.
    target.query("SELECT set_config(s.name, s.value, true) FROM (VALUES "
                 "('log_statement', 'none'), ('log_min_error_statement', 'panic'), "
                 "('log_min_duration_statement', '-1'), ('log_min_duration_sample', '-1'), "
                 "('log_transaction_sample_rate', '0')) AS s(name, value) "
                 "WHERE (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = CURRENT_USER)");
    // No slot, no worker: only the connection is made, and the publications are looked for.
    const std::string statement =
        target
            .query("SELECT format('CREATE SUBSCRIPTION interlock_preflight_%s CONNECTION %L "
                   "PUBLICATION interlock_preflight WITH (create_slot = false, "
                   "copy_data = false, enabled = false, slot_name = NONE)', "
                   "pg_backend_pid(), $1)",
                   {Param::of_text(conninfo)})
            .text(0, 0);
    try {
        (void)target.query_within(check.request.query_timeout, statement);
    } catch (const ControlError &error) {
        if (target.broken()) throw;
        std::string detail = error.what();
        if (!error.detail.empty()) detail += " " + error.detail;
        // No superuser, or no sender is free: told already.
        if (error.sqlstate == "42501" || detail.find("max_wal_senders") != std::string::npos)
            return;
        check.refuse("the server of " + check.target.called() + " cannot connect to " +
                         check.source.called(),
                     detail, mend_for(check, detail));
    }
}

}  // namespace interlock
