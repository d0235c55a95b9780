// Preflight: what hangs on the rows: foreign keys, triggers that fire, others who follow the
// tables.
#include "base/log.h"
#include "tools/move_preflight_parts.h"

namespace interlock {

namespace {

/// A foreign key between tables of which at least one is the keyspace's.
struct Link {
    std::string name;                   ///< quoted
    std::string child, parent;          ///< tables
    std::string child_in, parent_in;    ///< keyspaces; empty: not sharded
    std::string child_key, parent_key;  ///< shard key columns, quoted
    bool by_key = false;                ///< the shard keys refer to each other
    std::string columns, referenced;    ///< quoted lists
    std::string on;                     ///< "c.a = p.b AND ..."
};

std::vector<Link> read_links(Preflight &check) {
    const Rows rows = check.source.connection.query(
        "WITH member AS MATERIALIZED ("
        "  SELECT t.relid::oid AS oid, g.keyspace, g.key_column "
        "  FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) t) "
        "SELECT quote_ident(k.conname), k.conrelid::regclass::text, k.confrelid::regclass::text, "
        "  coalesce(c.keyspace, ''), coalesce(p.keyspace, ''), "
        "  coalesce(quote_ident(c.key_column), ''), coalesce(quote_ident(p.key_column), ''), "
        "  x.by_key, x.columns, x.referenced, x.joined "
        "FROM pg_constraint k LEFT JOIN member c ON c.oid = k.conrelid "
        "LEFT JOIN member p ON p.oid = k.confrelid, "
        "LATERAL (SELECT coalesce(bool_or(a.attname = c.key_column AND b.attname = p.key_column), "
        "    false) AS by_key, "
        "  string_agg(quote_ident(a.attname), ', ' ORDER BY n.i) AS columns, "
        "  string_agg(quote_ident(b.attname), ', ' ORDER BY n.i) AS referenced, "
        "  string_agg(format('c.%I = p.%I', a.attname, b.attname), ' AND ' ORDER BY n.i) AS joined "
        "  FROM unnest(k.conkey, k.confkey) WITH ORDINALITY n(own, other, i) "
        "  JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = n.own "
        "  JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = n.other) x "
        "WHERE k.contype = 'f' AND k.conparentid = 0 AND $1 IN (c.keyspace, p.keyspace) "
        "ORDER BY 2, 1",
        {Param::of_text(check.session.keyspace().name)});
    std::vector<Link> links;
    for (int row = 0; row < rows.size(); ++row)
        links.push_back({rows.text(row, 0), rows.text(row, 1), rows.text(row, 2), rows.text(row, 3),
                         rows.text(row, 4), rows.text(row, 5), rows.text(row, 6),
                         rows.boolean(row, 7), rows.text(row, 8), rows.text(row, 9),
                         rows.text(row, 10)});
    return links;
}

std::string drop(const Link &link) {
    return "ALTER TABLE " + link.child + " DROP CONSTRAINT " + link.name + ";";
}

std::string both(const std::string &statement) {
    return "On both shards, run: " + statement;
}

/// Rows that are referred to outside the keyspace must be the same on both shards; such tables are
/// the small ones that every shard has.
void check_reference(Preflight &check, const Link &link) {
    const std::string digest =
        "SELECT count(*)::text || ' rows, digest ' || coalesce(sum(hashtextextended(row(" +
        link.referenced + ")::text, 0)::numeric), 0)::text FROM " + link.parent;
    const Rows there = check.target.connection.query("SELECT to_regclass($1) IS NOT NULL",
                                                     {Param::of_text(link.parent)});
    std::string problem;
    if (!there.boolean(0, 0)) {
        problem = "That table is not there on " + check.target.called() + ".";
    } else {
        const auto scan = check.request.scan_timeout;
        const std::string source = check.source.connection.query_within(scan, digest).text(0, 0);
        const std::string target = check.target.connection.query_within(scan, digest).text(0, 0);
        if (source == target) return;
        problem = "What it refers to differs: " + check.source.called() + ": " + source + "; " +
                  check.target.called() + ": " + target + ".";
    }
    check.refuse("foreign key " + link.name + " of table " + link.child + " refers to table " +
                     link.parent + ", which is not sharded",
                 problem + " Nothing would check the rows that arrive.",
                 "Make the rows of " + link.parent +
                     " the same on both shards. If nothing is to "
                     "be referred to, on both shards, run: " +
                     drop(link));
}

/// Within the keyspace, but not by the shard key: rows may refer to rows of another bucket.
void check_crossing(Preflight &check, const Link &link) {
    const auto moves = [](const char *alias, const std::string &key) {
        return std::string("(interlock.bucket_of($1, ") + alias + "." + key + ") = ANY ($2))";
    };
    const Rows rows = check.source.connection.query_within(
        check.request.scan_timeout,
        "SELECT c." + link.child_key + "::text, p." + link.parent_key + "::text FROM " +
            link.child + " c JOIN " + link.parent + " p ON " + link.on + " WHERE " +
            moves("c", link.child_key) + " <> " + moves("p", link.parent_key) + " LIMIT 1",
        {Param::of_text(check.session.keyspace().name),
         Param::of_int4_array(check.session.buckets())});
    if (rows.empty()) return;
    check.refuse("foreign key " + link.name + " of table " + link.child +
                     " connects a bucket that moves with one that stays",
                 "A row of key " + rows.text(0, 0) + " refers to a row of key " + rows.text(0, 1) +
                     ".",
                 "Put the shard key into the foreign key, so that both have the same; or, " +
                     std::string("on both shards, run: ") + drop(link));
}

}  // namespace

void check_foreign_keys(Preflight &check) {
    for (const Link &link : read_links(check)) {
        if (link.child_in == link.parent_in) {
            if (!link.by_key) check_crossing(check, link);
        } else if (link.parent_in.empty()) {
            check_reference(check, link);
        } else if (link.child_in.empty()) {
            check.refuse("foreign key " + link.name + " of table " + link.child +
                             ", which is not sharded, refers to table " + link.parent,
                         "When the rows have moved, what it refers to is gone, and nothing checks "
                         "that.",
                         Preflight::run_on(check.source, drop(link)));
        } else {
            check.refuse("foreign key " + link.name + " of table " + link.child +
                             " leaves the keyspace",
                         link.child + " is of keyspace \"" + link.child_in + "\", " + link.parent +
                             " of \"" + link.parent_in + "\": they move apart.",
                         both(drop(link)));
        }
    }
}

namespace {

/// Triggers that fire for rows that only change places.
void check_firing(Preflight &check, const PreflightSide &side, const char *events) {
    const Rows rows = side.connection.query(
        "SELECT quote_ident(t.tgname), t.tgrelid::regclass::text, "
        "  CASE t.tgenabled WHEN 'A' THEN 'ALWAYS' ELSE 'REPLICA' END, "
        "  (t.tgtype & 3) = 3 "
        "FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) m "
        "JOIN pg_trigger t ON t.tgrelid = m.relid AND NOT t.tgisinternal AND t.tgparentid = 0 "
        "JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE g.keyspace = $1 AND t.tgenabled IN ('A', 'R') AND (t.tgtype & $2::int) <> 0 "
        "  AND p.pronamespace <> 'interlock'::regnamespace ORDER BY 2, 1",
        {Param::of_text(check.session.keyspace().name), Param::of_text(events)});
    const bool arrives = &side == &check.target;
    for (int row = 0; row < rows.size(); ++row) {
        const std::string what = "trigger " + rows.text(row, 0) + " of table " + rows.text(row, 1) +
                                 " fires for rows that " +
                                 (arrives ? "arrive on " : "are removed from ") + side.called();
        const std::string mend =
            Preflight::run_on(side, "ALTER TABLE " + rows.text(row, 1) + " ENABLE TRIGGER " +
                                        rows.text(row, 0) + ";");
        const std::string detail = "It is ENABLE " + rows.text(row, 2) + ".";
        // What fires before a row can change it, or leave it out.
        if (rows.boolean(row, 3))
            check.refuse(what, detail + " It could change them or leave them out.", mend);
        else
            check.warn(what, detail, mend);
    }
}

/// Others who follow the tables see the rows come and go.
void check_followers(Preflight &check, const PreflightSide &side) {
    const Rows rows = side.connection.query(
        "SELECT DISTINCT quote_ident(p.pubname), p.puballtables "
        "FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) m, "
        "  pg_publication p "
        "WHERE g.keyspace = $1 AND p.pubname NOT LIKE 'interlock\\_move\\_%' AND (p.puballtables "
        "  OR EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = p.pubname "
        "    AND format('%I.%I', t.schemaname, t.tablename) = m.relid::text)) ORDER BY 1",
        {Param::of_text(check.session.keyspace().name)});
    for (int row = 0; row < rows.size(); ++row)
        check.warn("publication " + rows.text(row, 0) + " of " + side.called() +
                       " has tables of the keyspace",
                   std::string("Its subscribers see rows of the buckets ") +
                       (&side == &check.target ? "inserted, though they only change places."
                                               : "deleted, though they only change places."),
                   "Tell their owners; what is done about it is theirs to say.");
}

/// Where a value is unique on each shard only, both may have it.
void check_uniqueness(Preflight &check) {
    const Rows rows = check.target.connection.query(
        "SELECT i.indexrelid::regclass::text, m.relid::text, EXISTS (SELECT FROM pg_depend d "
        "    JOIN pg_class q ON q.oid = d.objid AND q.relkind = 'S' "
        "    WHERE d.classid = 'pg_class'::regclass AND d.refobjid = m.relid "
        "      AND d.refobjsubid = ANY (i.indkey) AND d.deptype IN ('a', 'i')), k.attname "
        "FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) m "
        "JOIN pg_class c ON c.oid = m.relid AND NOT c.relispartition "
        "JOIN pg_attribute k ON k.attrelid = c.oid AND k.attname = g.key_column "
        "JOIN pg_index i ON i.indrelid = c.oid AND i.indisunique "
        "WHERE g.keyspace = $1 AND k.attnum <> ALL (i.indkey[0:i.indnkeyatts - 1]) "
        "ORDER BY 2, 1",
        {Param::of_text(check.session.keyspace().name)});
    for (int row = 0; row < rows.size(); ++row)
        check.warn("unique index " + rows.text(row, 0) + " of table " + rows.text(row, 1) +
                       " does not have the shard key",
                   "A value may be on both shards" +
                       std::string(rows.boolean(row, 2)
                                       ? ": each draws numbers from a sequence of its own. "
                                       : ". ") +
                       "Then the move fails while it copies, or stops while it follows; no row is "
                       "lost.",
                   "Add column \"" + rows.text(row, 3) +
                       "\" to the index, or see to it that values are unique over all shards.");
}

}  // namespace

void check_triggers(Preflight &check) {
    check_firing(check, check.target, "28");  // insert, delete, update: the bits of pg_trigger
    check_firing(check, check.source, "8");   // delete
    check_followers(check, check.target);
    check_followers(check, check.source);
    check_uniqueness(check);
}

}  // namespace interlock
