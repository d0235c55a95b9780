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
    bool key_refers = false;            ///< the child's shard key refers to another column
    bool key_is_referred_to = false;    ///< the parent's shard key is, by another column
    bool unique = false;                ///< the parent's columns are with its shard key
    std::string columns, referenced;    ///< quoted lists
    std::string options;                ///< " ON DELETE CASCADE ..."
};

std::vector<Link> read_links(Preflight &check) {
    const Rows rows = check.source.connection.query(
        "WITH member AS MATERIALIZED ("
        "  SELECT t.relid::oid AS oid, g.keyspace, g.key_column "
        "  FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) t) "
        "SELECT quote_ident(k.conname), k.conrelid::regclass::text, k.confrelid::regclass::text, "
        "  coalesce(c.keyspace, ''), coalesce(p.keyspace, ''), "
        "  coalesce(quote_ident(c.key_column), ''), coalesce(quote_ident(p.key_column), ''), "
        "  x.by_key, x.key_refers, x.key_is_referred_to, "
        "  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = k.confrelid AND i.indisunique "
        "    AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL "
        "    AND i.indnkeyatts = cardinality(k.confkey) + 1 "
        "    AND i.indkey::int2[] @> (k.confkey || x.parent_attnum) "
        "    AND (i.indkey::int2[])[0:i.indnkeyatts - 1] <@ (k.confkey || x.parent_attnum)), "
        "  x.columns, x.referenced, "
        // To set the whole key to null is no way; PostgreSQL 14 knows no other.
        "  CASE k.confupdtype WHEN 'c' THEN ' ON UPDATE CASCADE' WHEN 'r' THEN ' ON UPDATE "
        "RESTRICT' "
        "    ELSE '' END || CASE k.confdeltype WHEN 'c' THEN ' ON DELETE CASCADE' "
        "    WHEN 'r' THEN ' ON DELETE RESTRICT' WHEN 'a' THEN '' ELSE "
        "      CASE WHEN current_setting('server_version_num')::int < 150000 THEN '' "
        "        ELSE format(' ON DELETE SET %s (%s)', "
        "          CASE k.confdeltype WHEN 'n' THEN 'NULL' ELSE 'DEFAULT' END, x.columns) END END "
        "|| "
        "  CASE WHEN k.condeferrable THEN ' DEFERRABLE' ELSE '' END || "
        "  CASE WHEN k.condeferred THEN ' INITIALLY DEFERRED' ELSE '' END "
        "FROM pg_constraint k LEFT JOIN member c ON c.oid = k.conrelid "
        "LEFT JOIN member p ON p.oid = k.confrelid, "
        "LATERAL (SELECT "
        "  bool_or(coalesce(a.attname = c.key_column AND b.attname = p.key_column, false)) "
        "    AS by_key, "
        "  bool_or(coalesce(a.attname = c.key_column AND b.attname <> p.key_column, false)) "
        "    AS key_refers, "
        "  bool_or(coalesce(a.attname <> c.key_column AND b.attname = p.key_column, false)) "
        "    AS key_is_referred_to, "
        "  string_agg(quote_ident(a.attname), ', ' ORDER BY n.i) AS columns, "
        "  string_agg(quote_ident(b.attname), ', ' ORDER BY n.i) AS referenced, "
        "  (SELECT r.attnum FROM pg_attribute r WHERE r.attrelid = k.confrelid "
        "    AND r.attname = p.key_column AND NOT r.attisdropped) AS parent_attnum "
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
                         rows.boolean(row, 7), rows.boolean(row, 8), rows.boolean(row, 9),
                         rows.boolean(row, 10), rows.text(row, 11), rows.text(row, 12),
                         rows.text(row, 13)});
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

/// The statements that put the shard key into the foreign key; empty where that cannot be done.
std::string with_shard_key(const Link &link) {
    // Each column is in a foreign key once.
    if (link.key_refers || link.key_is_referred_to) return {};
    std::string statements = drop(link);
    if (!link.unique)
        statements += " ALTER TABLE " + link.parent + " ADD UNIQUE (" + link.parent_key + ", " +
                      link.referenced + ");";
    return statements + " ALTER TABLE " + link.child + " ADD CONSTRAINT " + link.name +
           " FOREIGN KEY (" + link.child_key + ", " + link.columns + ") REFERENCES " + link.parent +
           " (" + link.parent_key + ", " + link.referenced + ")" + link.options + ";";
}

/// Within the keyspace, but not by the shard key. That no row does so now says nothing: writers go
/// on while the bucket is copied and followed; and once it has gone, rows that stay refer to what
/// is left of it, until that is removed.
void check_crossing(Preflight &check, const Link &link) {
    const std::string mend = with_shard_key(link);
    check.refuse(
        "foreign key " + link.name + " of table " + link.child + " does not have the shard key",
        "Rows of different buckets may refer to each other by it: a move would separate them, and "
        "nothing would check it then.",
        mend.empty() ? both(drop(link))
                     : "Put the shard keys into it, so that rows refer to rows of the same key. " +
                           both(mend) + " Where that is not so, run only: " + drop(link));
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
