// Preflight: who owns the buckets, what is in progress on the source, what earlier moves left.
#include <algorithm>
#include <iterator>
#include <map>

#include "tools/bucket_set.h"
#include "tools/move_preflight_parts.h"
#include "tools/move_steps.h"

namespace interlock {

namespace {

/// Seconds as people say them.
std::string age(std::int64_t seconds) {
    if (seconds < 120) return std::to_string(seconds) + " s";
    if (seconds < 7200) return std::to_string(seconds / 60) + " min";
    return std::to_string(seconds / 3600) + " h";
}

/// Buckets of one state on one side.
struct StateRow {
    std::string state, peer, move;
    std::vector<std::int32_t> buckets;
    bool expired = false;
};

std::vector<StateRow> read_states(Preflight &check, const PreflightSide &side) {
    const Rows rows = side.connection.query(
        "SELECT coalesce(s.state, 'none'), coalesce(s.peer, ''), coalesce(s.move_id::text, ''), "
        "  coalesce(s.state = 'fenced' AND s.until <= clock_timestamp(), false), b.bucket "
        "FROM unnest($2) AS b(bucket) LEFT JOIN interlock.bucket_state s "
        "  ON s.keyspace = $1 AND s.bucket = b.bucket ORDER BY 1, 2, 3, 4, 5",
        {Param::of_text(check.session.keyspace().name),
         Param::of_int4_array(check.session.buckets())});
    std::vector<StateRow> states;
    for (int row = 0; row < rows.size(); ++row) {
        StateRow now{
            rows.text(row, 0), rows.text(row, 1), rows.text(row, 2), {}, rows.boolean(row, 3)};
        if (states.empty() || states.back().state != now.state || states.back().peer != now.peer ||
            states.back().move != now.move || states.back().expired != now.expired)
            states.push_back(std::move(now));
        states.back().buckets.push_back(rows.int32(row, 4));
    }
    return states;
}

/// What ends the move that holds a bucket in a state of passage.
std::string end_of(const std::string &move) {
    return move.empty() ? "Run: interlock move --status"
                        : "Run: interlock move --resume " + move +
                              " -- or, if it shall not be: interlock move --abort " + move;
}

void check_keyspace(Preflight &check, const PreflightSide &side) {
    const Keyspace &wanted = check.session.keyspace();
    const Rows rows =
        side.connection.query("SELECT buckets FROM interlock.local_keyspace WHERE name = $1",
                              {Param::of_text(wanted.name)});
    if (rows.empty())
        check.refuse(side.called() + " does not know keyspace \"" + wanted.name + "\"", {},
                     "Run: interlock apply");
    else if (rows.int32(0, 0) != wanted.buckets)
        check.refuse(side.called() + " defines keyspace \"" + wanted.name + "\" otherwise",
                     "There it has " + rows.text(0, 0) + " buckets, in the catalog " +
                         std::to_string(wanted.buckets) + ".",
                     "A keyspace cannot be changed: this database is no member of the cluster.");
}

bool unfinished_in_catalog(const std::vector<Move> &moves, const std::string &name) {
    for (const Move &move : moves)
        if (!move.finished && name.rfind("interlock_move_" + move.id.substr(0, 8), 0) == 0)
            return true;
    return false;
}

/// The source that was named is another than the catalog's.
bool check_from(Preflight &check) {
    const MoveSession &session = check.session;
    std::map<std::string, std::vector<std::int32_t>> others;
    for (const std::int32_t bucket : session.buckets())
        if (const ShardIndex owner = session.keyspace().owner[static_cast<std::size_t>(bucket)];
            owner != session.from_index())
            others[session.routes().shards[owner].name].push_back(bucket);
    for (const auto &[owner, buckets] : others)
        check.refuse(buckets_phrase(buckets) + " of keyspace \"" + session.keyspace().name + "\" " +
                         (buckets.size() == 1 ? "is" : "are") + " of shard \"" + owner +
                         "\", not of " + check.source.called(),
                     "Route version " + std::to_string(session.routes().version) + " says so.",
                     owner == check.target.name ? "There is nothing to do."
                                                : "Leave --from out, or give: --from " + owner);
    return !others.empty();
}

}  // namespace

void check_ownership(Preflight &check) {
    check_keyspace(check, check.source);
    check_keyspace(check, check.target);
    const std::string keyspace = " of keyspace \"" + check.session.keyspace().name + "\"";
    if (check_from(check)) return;
    for (const StateRow &row : read_states(check, check.source)) {
        if (row.state == "owned") continue;
        if (row.state == "fenced")
            check.refuse(
                buckets_phrase(row.buckets) + keyspace + " is fenced on " + check.source.called(),
                row.expired ? "The fence has expired, and nobody has opened it."
                            : "Another move is about to hand it over.",
                row.expired ? Preflight::run_on(check.source, "SELECT interlock.expire_fences();")
                            : end_of(row.move));
        else
            check.refuse(
                check.source.called() + " does not own " + buckets_phrase(row.buckets) + keyspace,
                "Its state there is " + row.state +
                    (row.peer.empty() ? "." : ", shard \"" + row.peer + "\"."),
                row.state == "importing" ? end_of(row.move) : "Run: interlock apply --plan");
    }
    for (const StateRow &row : read_states(check, check.target)) {
        if (row.state == "none" || row.state == "moved") continue;
        check.refuse(buckets_phrase(row.buckets) + keyspace + " is " + row.state + " on " +
                         check.target.called(),
                     "It cannot come there.",
                     row.state == "owned" ? "Run: interlock apply --plan" : end_of(row.move));
    }
}

void check_guards(Preflight &check) {
    for (const PreflightSide *const side : {&check.source, &check.target}) {
        const Rows rows = side->connection.query(
            "SELECT c.relation::text, c.problem FROM interlock.check_guards() c WHERE c.relation "
            "IN "
            "  (SELECT t.relid FROM interlock.guarded_table g "
            "   CROSS JOIN LATERAL interlock.family_tree(g.relid) t WHERE g.keyspace = $1) "
            "ORDER BY 1, 2",
            {Param::of_text(check.session.keyspace().name)});
        for (int row = 0; row < rows.size(); ++row)
            check.refuse("the guard of table " + rows.text(row, 0) + " is not whole on " +
                             side->called(),
                         rows.text(row, 1) + ". Without it nothing holds writers back.",
                         "Run: interlock apply");
    }
}

void check_transactions(Preflight &check) {
    // A slot is not made before every transaction of the server that has written has ended; a
    // prepared one may never end. What a move's pause can bear is time enough for one to be ended.
    const std::int64_t patience = check.request.max_pause;
    const std::int64_t very_old = 20 * patience;
    const Rows prepared = check.source.connection.query(
        "SELECT p.gid, quote_literal(p.gid), p.database, p.owner, "
        "  extract(epoch FROM clock_timestamp() - p.prepared)::bigint "
        "FROM pg_prepared_xacts p "
        "WHERE clock_timestamp() - p.prepared > $1 * interval '1 ms' ORDER BY p.prepared",
        {Param::of_int8(patience)});
    for (int row = 0; row < prepared.size(); ++row)
        check.refuse("a prepared transaction is open on the server of " + check.source.called(),
                     "\"" + prepared.text(row, 0) + "\" of \"" + prepared.text(row, 3) +
                         "\" in database \"" + prepared.text(row, 2) + "\", for " +
                         age(prepared.int64(row, 4)) + ".",
                     "On the server of " + check.source.called() + ", in database \"" +
                         prepared.text(row, 2) + "\", run: COMMIT PREPARED " +
                         prepared.text(row, 1) + "; or ROLLBACK PREPARED " + prepared.text(row, 1) +
                         ";");
    const Rows writing = check.source.connection.query(
        "SELECT a.pid, a.usename, a.datname, a.application_name, a.state, "
        "  extract(epoch FROM clock_timestamp() - a.xact_start)::bigint, "
        "  clock_timestamp() - a.xact_start > $2 * interval '1 ms' "
        "FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL "
        "  AND a.pid <> pg_backend_pid() AND a.backend_type NOT LIKE 'autovacuum%' "
        "  AND clock_timestamp() - a.xact_start > $1 * interval '1 ms' ORDER BY a.xact_start",
        {Param::of_int8(patience), Param::of_int8(very_old)});
    for (int row = 0; row < writing.size(); ++row) {
        const std::string pid = writing.text(row, 0);
        const std::string detail =
            "Process " + pid + " of \"" + writing.text(row, 1) + "\" in database \"" +
            writing.text(row, 2) + "\"" +
            (writing.view(row, 3).empty() ? "" : " (" + writing.text(row, 3) + ")") + ", " +
            writing.text(row, 4) + ", for " + age(writing.int64(row, 5)) + ".";
        const std::string mend = Preflight::run_on(
            check.source, "SELECT pg_terminate_backend(" + pid + "); or wait until it has ended.");
        if (writing.boolean(row, 6))
            check.refuse("a transaction has been writing for long on the server of " +
                             check.source.called(),
                         detail + " The copy cannot begin before it has ended.", mend);
        else
            check.warn("a transaction that has written is open on the server of " +
                           check.source.called(),
                       detail + " The copy begins when it has ended.", mend);
    }
}

void check_leftovers(Preflight &check) {
    const std::vector<Move> moves = read_moves(check.session.catalog(), true);
    bool part_of_another = false;
    for (const Move &move : moves) {
        if (move.keyspace != check.session.keyspace().name) continue;
        std::vector<std::int32_t> both;
        std::set_intersection(move.buckets.begin(), move.buckets.end(),
                              check.session.buckets().begin(), check.session.buckets().end(),
                              std::back_inserter(both));
        if (both.empty()) continue;
        part_of_another = true;
        const bool kept = move.step == name_of(MoveStep::unsubscribed);
        check.refuse(buckets_phrase(both) + " of keyspace \"" + move.keyspace +
                         (both.size() == 1 ? "\" is" : "\" are") + " part of move " + move.id,
                     "From shard \"" + move.from + "\" to shard \"" + move.to + "\", step " +
                         move.step + (kept ? "; the rows at the source are not removed yet." : "."),
                     kept ? "Run: interlock move --clean " + move.id : end_of(move.id));
    }
    const Rows source = check.source.connection.query(
        "SELECT 'replication slot', s.slot_name::text, s.active_pid, "
        "  format('SELECT pg_drop_replication_slot(%L);', s.slot_name) "
        "FROM pg_replication_slots s WHERE s.database = current_database() "
        "  AND s.slot_name LIKE 'interlock\\_move\\_%' "
        "UNION ALL SELECT 'publication', p.pubname, NULL, format('DROP PUBLICATION %I;', "
        "  p.pubname) "
        "FROM pg_publication p WHERE p.pubname LIKE 'interlock\\_move\\_%' ORDER BY 2, 1 DESC");
    const Rows target = check.target.connection.query(
        "SELECT 'subscription', s.subname, NULL, format('ALTER SUBSCRIPTION %1$I DISABLE; "
        "ALTER SUBSCRIPTION %1$I SET (slot_name = NONE); DROP SUBSCRIPTION %1$I;', s.subname) "
        "FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid "
        "WHERE d.datname = current_database() AND s.subname LIKE 'interlock\\_move\\_%' "
        "ORDER BY 2");
    const auto tell = [&](const PreflightSide &side, const Rows &rows) {
        for (int row = 0; row < rows.size(); ++row) {
            // Those of moves that are under way are theirs; whether they are of these buckets the
            // catalog tells.
            if (unfinished_in_catalog(moves, rows.text(row, 1))) continue;
            check.refuse(rows.text(row, 0) + " \"" + rows.text(row, 1) + "\" is left on " +
                             side.called(),
                         "The catalog knows of no move under way that it belongs to.",
                         Preflight::run_on(side, rows.text(row, 3)));
        }
    };
    tell(check.source, source);
    tell(check.target, target);

    // Records of moves that the catalog has forgotten, or never knew.
    for (const PreflightSide *const side : {&check.source, &check.target}) {
        const Rows rows = side->connection.query(
            "SELECT h.move_id, h.role, h.state, h.peer FROM interlock.handoff h "
            "WHERE h.keyspace = $1 AND h.buckets && $2 "
            "  AND h.state IN ('begun', 'fenced', 'importing') ORDER BY h.began",
            {Param::of_text(check.session.keyspace().name),
             Param::of_int4_array(check.session.buckets())});
        for (int row = 0; row < rows.size(); ++row) {
            const std::string id = rows.text(row, 0);
            if (unfinished_in_catalog(moves, "interlock_move_" + id.substr(0, 8))) continue;
            const std::string side_of_it = rows.view(row, 1) == "source" ? "export" : "import";
            check.refuse(side->called() + " takes part in move " + id +
                             ", of which the catalog "
                             "knows nothing",
                         "It is " + rows.text(row, 1) + " of it, state " + rows.text(row, 2) +
                             ", shard \"" + rows.text(row, 3) + "\" the other side.",
                         Preflight::run_on(*side, "SELECT interlock.abort_" + side_of_it + "('" +
                                                      id + "'); SELECT interlock.forget_handoff('" +
                                                      id + "');"));
        }
    }

    // Rows that nobody sees would be among those that come.
    if (part_of_another) return;
    const Rows tables = check.target.connection.query(
        "SELECT g.relid::text, quote_ident(g.key_column) FROM interlock.guarded_table g "
        "WHERE g.keyspace = $1 ORDER BY 1",
        {Param::of_text(check.session.keyspace().name)});
    for (int row = 0; row < tables.size(); ++row) {
        const std::string bucket = "interlock.bucket_of($1, t." + tables.text(row, 1) + ")";
        const Rows found = check.target.connection.query_within(
            check.request.scan_timeout,
            "SELECT " + bucket + " FROM " + tables.text(row, 0) + " t WHERE " + bucket +
                " = ANY ($2) LIMIT 1",
            {Param::of_text(check.session.keyspace().name),
             Param::of_int4_array(check.session.buckets())});
        if (found.empty()) continue;
        check.refuse("table " + tables.text(row, 0) + " has rows of bucket " + found.text(0, 0) +
                         " on " + check.target.called() + ", which does not own it",
                     "They are left from an earlier stay of the bucket, or from a move that was "
                     "given up.",
                     "Run: interlock move --clean -- or, if no move left them, on " +
                         check.target.called() + ", run: SELECT * FROM interlock.misplaced('" +
                         tables.text(row, 0) + "'); and judge.");
    }
}

}  // namespace interlock
