#include "base/control.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <limits>

#include <poll.h>

namespace interlock {

namespace {

// How much longer than the server's own statement_timeout we wait before we give the connection up.
constexpr std::int64_t grace = 2000;

namespace type {
constexpr Oid boolean = 16, name = 19, int8 = 20, int4 = 23, text = 25, oid = 26, uuid = 2950;
constexpr Oid boolean_array = 1000, int4_array = 1007, text_array = 1009, oid_array = 1028;
}  // namespace type

std::int64_t now_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::string trimmed(const char *text) {
    std::string result = text ? text : "";
    while (!result.empty() && (result.back() == '\n' || result.back() == ' '))
        result.pop_back();
    return result;
}

/// libpq's messages may have several lines: the first is the message, the rest is detail.
ControlError from_libpq(const std::string &sqlstate, const char *text) {
    std::string message = trimmed(text);
    std::string detail;
    if (const auto end = message.find('\n'); end != std::string::npos) {
        detail = message.substr(end + 1);
        detail.erase(0, detail.find_first_not_of("\t "));
        message.resize(end);
    }
    return ControlError(sqlstate, message.empty() ? "connection lost" : message, detail);
}

ControlError from_server(const PGresult *result) {
    const auto field = [result](int code) { return trimmed(PQresultErrorField(result, code)); };
    const std::string message = field(PG_DIAG_MESSAGE_PRIMARY);
    if (message.empty()) return from_libpq("08006", PQresultErrorMessage(result));
    return ControlError(field(PG_DIAG_SQLSTATE), message, field(PG_DIAG_MESSAGE_DETAIL),
                        field(PG_DIAG_MESSAGE_HINT), field(PG_DIAG_CONTEXT));
}

template <typename Values, typename Write>
std::string array_text(const Values &values, Write write) {
    std::string text = "{";
    for (const auto &value : values) {
        if (text.size() > 1) text += ',';
        write(text, value);
    }
    return text + "}";
}

template <typename Number>
Number parse_number(std::string_view text) {
    Number number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size())
        throw ControlError("22003", "unexpected answer: \"" + std::string(text) +
                                        "\" where a number should be");
    return number;
}

bool gives(const std::string &conninfo, const char *keyword) {
    const std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> options(
        PQconninfoParse(conninfo.c_str(), nullptr), &PQconninfoFree);
    for (const PQconninfoOption *option = options.get(); option && option->keyword; ++option)
        if (std::strcmp(option->keyword, keyword) == 0) return option->val && *option->val;
    return false;
}

}  // namespace

Param Param::of_text(std::string_view value) {
    return {type::text, std::string(value)};
}
Param Param::of_name(std::string_view value) {
    return {type::name, std::string(value)};
}
Param Param::of_int4(std::int32_t value) {
    return {type::int4, std::to_string(value)};
}
Param Param::of_int8(std::int64_t value) {
    return {type::int8, std::to_string(value)};
}
Param Param::of_oid(std::uint32_t value) {
    return {type::oid, std::to_string(value)};
}
Param Param::of_bool(bool value) {
    return {type::boolean, value ? "t" : "f"};
}
Param Param::of_uuid(std::string_view value) {
    return {type::uuid, std::string(value)};
}
Param Param::null_text() {
    return {type::text, std::nullopt};
}

Param Param::of_int4_array(const std::vector<std::int32_t> &values) {
    return {type::int4_array, array_text(values, [](std::string &out, std::int32_t value) {
                out += std::to_string(value);
            })};
}

Param Param::of_oid_array(const std::vector<std::uint32_t> &values) {
    return {type::oid_array, array_text(values, [](std::string &out, std::uint32_t value) {
                out += std::to_string(value);
            })};
}

Param Param::of_bool_array(const std::vector<bool> &values) {
    return {type::boolean_array,
            array_text(values, [](std::string &out, bool value) { out += value ? 't' : 'f'; })};
}

Param Param::of_text_array(const std::vector<std::string> &values) {
    return {type::text_array, array_text(values, [](std::string &out, const std::string &value) {
                out += '"';
                for (const char c : value) {
                    if (c == '"' || c == '\\') out += '\\';
                    out += c;
                }
                out += '"';
            })};
}

std::string_view Rows::view(int row, int column) const {
    return {PQgetvalue(result_.get(), row, column),
            static_cast<std::size_t>(PQgetlength(result_.get(), row, column))};
}

std::string_view Rows::tag() const {
    return PQcmdStatus(result_.get());
}

std::string Rows::text(int row, int column) const {
    return std::string(view(row, column));
}

std::int64_t Rows::int64(int row, int column) const {
    return parse_number<std::int64_t>(view(row, column));
}

std::int32_t Rows::int32(int row, int column) const {
    return parse_number<std::int32_t>(view(row, column));
}

std::uint32_t Rows::oid(int row, int column) const {
    return parse_number<std::uint32_t>(view(row, column));
}

ControlConnection::ControlConnection(const std::string &conninfo,
                                     const std::string &application_name, std::int64_t timeout)
    : timeout_(timeout) {
    // What stands before dbname is a default the connection string may override; what stands after
    // it wins. connect_timeout is per host, so that of several hosts a dead one does not use all of
    // the time; it has no effect below 2 s.
    const std::string seconds = std::to_string(std::max<std::int64_t>(2, (timeout + 999) / 1000));
    std::vector<const char *> keywords{"fallback_application_name", "dbname", "client_encoding"};
    std::vector<const char *> values{application_name.c_str(), conninfo.c_str(), "UTF8"};
    if (!gives(conninfo, "connect_timeout")) {
        keywords.push_back("connect_timeout");
        values.push_back(seconds.c_str());
    }
    keywords.push_back(nullptr);
    values.push_back(nullptr);
    connection_.reset(PQconnectdbParams(keywords.data(), values.data(), 1));
    if (!connection_) throw ControlError("53200", "out of memory");
    if (PQstatus(connection_.get()) != CONNECTION_OK)
        throw from_libpq("08001", PQerrorMessage(connection_.get()));
    PQsetNoticeProcessor(
        connection_.get(), [](void *, const char *) {}, nullptr);
    if (PQsetnonblocking(connection_.get(), 1) != 0)
        throw from_libpq("08006", PQerrorMessage(connection_.get()));
    prepare_session();
}

ControlError ControlConnection::error_of(const PGresult *result) {
    return from_server(result);
}

void ControlConnection::prepare_session() {
    // A decision must survive a crash (synchronous_commit), a check must see all rows or fail
    // (row_security), and the login's own defaults must not stand in the way of either. Compiling
    // queries over system catalogs takes longer than running them (jit).
    execute(
        "SELECT pg_catalog.set_config(name, value, false) FROM (VALUES "
        "('search_path', 'pg_catalog, pg_temp'), ('default_transaction_read_only', 'off'), "
        "('default_transaction_isolation', 'read committed'), ('row_security', 'off'), "
        "('standard_conforming_strings', 'on'), "
        "('idle_in_transaction_session_timeout', '0'), ('bytea_output', 'hex'), ('jit', 'off'), "
        "('synchronous_commit', CASE WHEN pg_catalog.current_setting('synchronous_commit') "
        "  OPERATOR(pg_catalog.=) 'remote_apply' THEN 'remote_apply' ELSE 'on' END)"
        ") AS s(name, value)");
    // Not every release has these, and not every platform the last, so apart.
    execute("SELECT pg_catalog.set_config(s.name, '0', false) FROM pg_catalog.pg_settings s "
            "WHERE s.name IN ('idle_session_timeout', 'transaction_timeout')");
    try {
        execute("SET client_connection_check_interval = '1s'");
    } catch (const ControlError &) {
        if (broken()) throw;
    }
}

Rows ControlConnection::query(const std::string &sql, const std::vector<Param> &params) {
    return query_within(timeout_, sql, params);
}

Rows ControlConnection::query_within(std::int64_t timeout, const std::string &sql,
                                     const std::vector<Param> &params) {
    if (server_timeout_ != timeout) {
        (void)run(timeout_, "SELECT pg_catalog.set_config('statement_timeout', $1, false)",
                  {Param::of_text(std::to_string(timeout))});
        server_timeout_ = timeout;
    }
    return run(timeout, sql, params);
}

Rows ControlConnection::run(std::int64_t timeout, const std::string &sql,
                            const std::vector<Param> &params) {
    std::vector<Oid> types;
    std::vector<const char *> values;
    for (const Param &param : params) {
        types.push_back(param.type);
        values.push_back(param.text ? param.text->c_str() : nullptr);
    }
    const std::int64_t deadline = now_ms() + timeout + grace;
    PGconn *const connection = connection_.get();
    if (PQsendQueryParams(connection, sql.c_str(), static_cast<int>(params.size()), types.data(),
                          values.data(), nullptr, nullptr, 0) == 0)
        lost();
    for (int pending = 1; pending != 0;) {
        pending = PQflush(connection);
        if (pending < 0) lost();
        if (pending > 0) {
            wait(true, deadline);
            if (PQconsumeInput(connection) == 0) lost();
        }
    }

    // The last result counts; one statement gives one, and then null.
    PGresult *last = nullptr;
    const auto clear_last = [&last] {
        PQclear(last);
        last = nullptr;
    };
    for (;;) {
        try {
            while (PQisBusy(connection)) {
                wait(false, deadline);
                if (PQconsumeInput(connection) == 0) lost();
            }
        } catch (...) {
            clear_last();
            throw;
        }
        PGresult *const result = PQgetResult(connection);
        if (!result) break;
        clear_last();
        last = result;
    }
    Rows rows(last);
    const ExecStatusType status = PQresultStatus(last);
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
        server_timeout_ = -1;  // a failed transaction takes SETs back
        throw error_of(last);
    }
    return rows;
}

void ControlConnection::wait(bool for_write, std::int64_t deadline) {
    for (;;) {
        const std::int64_t left = deadline - now_ms();
        if (left <= 0) {
            // The server is silent: its own timeout should have come first. Asking it to cancel
            // could block as well, so the connection is given up; the server rolls back.
            connection_.reset();
            throw ControlError("57014", "the server did not answer in time");
        }
        pollfd fd{PQsocket(connection_.get()),
                  static_cast<short>(for_write ? POLLIN | POLLOUT : POLLIN), 0};
        const int ready =
            poll(&fd, 1,
                 static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max())));
        if (ready > 0) return;
        if (ready < 0 && errno != EINTR)
            throw ControlError("08006", std::string("could not wait for the server: ") +
                                            std::strerror(errno));
    }
}

bool ControlConnection::wait_notification(std::int64_t timeout, int interrupt) {
    const auto take = [this] {
        bool any = false;
        while (PGnotify *notify = PQnotifies(connection_.get())) {
            PQfreemem(notify);
            any = true;
        }
        return any;
    };
    if (take()) return true;
    pollfd fds[2] = {{PQsocket(connection_.get()), POLLIN, 0}, {interrupt, POLLIN, 0}};
    const int ready = poll(fds, 2, static_cast<int>(timeout));
    if (ready > 0 && fds[0].revents != 0 && PQconsumeInput(connection_.get()) == 0) lost();
    return take();
}

void ControlConnection::lost() {
    throw from_libpq("08006", PQerrorMessage(connection_.get()));
}

void ControlConnection::rollback() noexcept {
    take_back("ROLLBACK");
}

void ControlConnection::rollback_to(const std::string &savepoint) noexcept {
    take_back("ROLLBACK TO SAVEPOINT " + savepoint);
}

void ControlConnection::take_back(const std::string &sql) noexcept {
    server_timeout_ = -1;
    if (broken() || PQtransactionStatus(connection_.get()) == PQTRANS_IDLE) return;
    try {
        (void)run(timeout_, sql, {});
    } catch (const std::exception &) {
        // The connection is gone, and with it the transaction.
    }
    server_timeout_ = -1;
}

ControlTransaction::ControlTransaction(ControlConnection &connection, const std::string &mode)
    : connection_(connection) {
    connection_.execute("BEGIN " + mode);
}

ControlTransaction::~ControlTransaction() {
    if (open_) connection_.rollback();
}

void ControlTransaction::commit() {
    const Rows answer = connection_.query("COMMIT");
    open_ = false;
    if (answer.tag() != "COMMIT") throw ControlError("25P02", "the transaction was rolled back");
}

}  // namespace interlock
