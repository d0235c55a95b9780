// Preflight: the tables are the same on both sides, and their changes can travel.
#include <algorithm>
#include <map>
#include <set>

#include "tools/move_preflight_items.h"
#include "tools/move_preflight_parts.h"

namespace interlock {

namespace {

// --- definitions -------------------------------------------------------------------------------

struct Item {
    std::string table, name, key, definition;
    std::string make, remove, change;  ///< statements; empty: none

    [[nodiscard]] auto identity() const { return std::pair(table, key); }
};

using Items = std::map<std::pair<std::string, std::string>, Item>;

Items read_items(Preflight &check, const PreflightSide &side, const ItemKind &kind) {
    const Rows rows = side.connection.query(std::string(kind.query),
                                            {Param::of_text(check.session.keyspace().name)});
    Items items;
    for (int row = 0; row < rows.size(); ++row) {
        Item item{rows.text(row, 0), rows.text(row, 1), rows.text(row, 2), rows.text(row, 3),
                  rows.text(row, 4), rows.text(row, 5), rows.text(row, 6)};
        items.emplace(item.identity(), std::move(item));
    }
    return items;
}

std::string called(const ItemKind &kind, const Item &item) {
    std::string text(kind.what);
    if (!item.name.empty()) text += ' ' + item.name;
    if (!item.table.empty() && kind.what != "table")
        text += (kind.what == "grant to" ? " on table " : " of table ") + item.table;
    return text;
}

/// A table that only one side has, with how it gets to the other.
std::string mend_table(const Preflight &check, const std::string &table) {
    return "On " + check.target.called() +
           ", make the table and declare it, or if it is there, "
           "run: interlock apply -- its definition comes by: pg_dump --schema-only --table='" +
           table + "'";
}

std::string mend_difference(const Preflight &check, const Item &wanted, const Item &there) {
    if (!wanted.change.empty()) return Preflight::run_on(check.target, wanted.change + ";");
    if (!wanted.make.empty() && !there.remove.empty())
        return Preflight::run_on(check.target, there.remove + "; " + wanted.make + ";");
    return "Make it the same on both shards.";
}

void report(Preflight &check, bool refuses, std::string what, std::string detail,
            std::string mend) {
    if (refuses)
        check.refuse(std::move(what), std::move(detail), std::move(mend));
    else
        check.warn(std::move(what), std::move(detail), std::move(mend));
}

/// RANGE (day); empty: not partitioned, or not there.
std::string partitioned_by(const PreflightSide &side, const std::string &table) {
    return side.connection
        .query("SELECT coalesce((SELECT pg_get_partkeydef(p.partrelid) FROM pg_partitioned_table p "
               "WHERE p.partrelid = to_regclass($1)), '')",
               {Param::of_text(table)})
        .text(0, 0);
}

/// A partition cannot be made where its parent is partitioned otherwise: that is told instead, once
/// for each parent.
bool tell_other_strategy(Preflight &check, const std::string &parent, std::set<std::string> &told) {
    if (told.contains(parent)) return true;
    const std::string here = partitioned_by(check.source, parent);
    const std::string there = partitioned_by(check.target, parent);
    if (here == there) return false;
    told.insert(parent);
    check.refuse("table " + parent + " is partitioned otherwise on " + check.target.called(),
                 check.source.called() + ": by " + here + "; " + check.target.called() + ": " +
                     (there.empty() ? std::string("not at all") : "by " + there) + ".",
                 "On " + check.target.called() + ", make it anew, partitioned by " + here +
                     " -- its definition comes by: pg_dump --schema-only --table='" + parent + "'");
    return true;
}

void compare(Preflight &check, const ItemKind &kind, const std::set<std::string> &common) {
    const Items source = read_items(check, check.source, kind);
    const Items target = read_items(check, check.target, kind);
    // What belongs to a table that one side lacks is not told one by one.
    const auto told = [&](const Item &item) {
        return kind.what != "table" && kind.what != "partition" && !item.table.empty() &&
               !common.contains(item.table);
    };
    std::set<std::string> otherwise;
    for (const auto &[identity, item] : source) {
        if (told(item)) continue;
        const auto other = target.find(identity);
        if (other == target.end()) {
            if (kind.what == "partition" && tell_other_strategy(check, item.table, otherwise))
                continue;
            if (kind.what == "type" || kind.what == "collation") continue;  // its column tells
            report(check, kind.missing_refuses,
                   called(kind, item) + " is missing on " + check.target.called(),
                   kind.what == "table" ? std::string() : "It is: " + item.definition + ".",
                   item.make.empty() ? mend_table(check, item.table)
                                     : Preflight::run_on(check.target, item.make + ";"));
        } else if (other->second.definition != item.definition) {
            report(check, kind.missing_refuses, called(kind, item) + " differs between the shards",
                   check.source.called() + ": " + item.definition + "; " + check.target.called() +
                       ": " + other->second.definition + ".",
                   mend_difference(check, item, other->second));
        }
    }
    for (const auto &[identity, item] : target) {
        if (told(item) || source.contains(identity)) continue;
        if (kind.what == "type" || kind.what == "collation" || kind.what == "partition" ||
            kind.what == "grant to")
            continue;
        report(check, kind.extra_refuses,
               called(kind, item) + " is on " + check.target.called() + " only",
               kind.what == "table" ? "Rows of it could not move back."
                                    : "There it is: " + item.definition + ".",
               item.remove.empty()
                   ? "Make it on " + check.source.called() + ", too, then run: interlock apply"
                   : Preflight::run_on(check.target, item.remove + "; or make the same on " +
                                                         check.source.called() + "."));
    }
}

// --- replica identities ------------------------------------------------------------------------

/// A table, partition or child, with what its changes are told apart by.
struct Member {
    std::string root, name, key;
    char kind = 'r';  ///< as pg_class.relkind
    bool unlogged = false;
    char identity = 'd';               ///< as pg_class.relreplident
    std::vector<std::string> columns;  ///< of the identity; empty for FULL, and where there is none
    std::string candidate;             ///< an index that could be the identity; empty: none
};

std::vector<std::string> split(const std::string &text) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\x1f', at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

std::vector<Member> read_members(Preflight &check, const PreflightSide &side) {
    const Rows rows = side.connection.query(
        "SELECT g.relid::text, c.oid::regclass::text, g.key_column, c.relkind, "
        "  c.relpersistence = 'u', c.relreplident, coalesce((SELECT string_agg(a.attname, chr(31) "
        "    ORDER BY k.n) FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, "
        "n) "
        "    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum "
        "    WHERE i.indrelid = c.oid AND i.indislive AND k.n <= i.indnkeyatts "
        "      AND (c.relreplident = 'd' AND i.indisprimary AND i.indimmediate "
        "        OR c.relreplident = 'i' AND i.indisreplident)), ''), "
        "  coalesce((SELECT x.relname FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid "
        "    WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid "
        "      AND i.indpred IS NULL AND i.indexprs IS NULL "
        "      AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid "
        "        AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull) "
        "      AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid "
        "        AND a.attname = g.key_column AND a.attnum = ANY "
        "        (i.indkey[0:i.indnkeyatts - 1])) "
        "    ORDER BY i.indisprimary DESC, x.relname LIMIT 1), '') "
        "FROM interlock.guarded_table g CROSS JOIN LATERAL interlock.family_tree(g.relid) t "
        "JOIN pg_class c ON c.oid = t.relid WHERE g.keyspace = $1 ORDER BY 1, t.depth, 2",
        {Param::of_text(check.session.keyspace().name)});
    std::vector<Member> members;
    for (int row = 0; row < rows.size(); ++row)
        members.push_back(
            {rows.text(row, 0), rows.text(row, 1), rows.text(row, 2), rows.view(row, 3).at(0),
             rows.boolean(row, 4), rows.view(row, 5).at(0), split(rows.text(row, 6)),
             side.connection.query("SELECT quote_ident($1)", {Param::of_text(rows.text(row, 7))})
                 .text(0, 0)});
    for (Member &member : members)
        if (member.candidate == "\"\"") member.candidate.clear();
    return members;
}

bool contains(const std::vector<std::string> &names, const std::string &name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

void check_member(Preflight &check, const Member &member) {
    if (member.unlogged)
        check.refuse(
            "table " + member.name + " is unlogged on " + check.source.called(),
            "Changes of it are in no WAL, and cannot be followed.",
            Preflight::run_on(check.source, "ALTER TABLE " + member.name + " SET LOGGED;"));
    if (member.kind == 'f') {
        check.refuse(member.name + " is a foreign table", "Its rows are not this shard's to move.",
                     Preflight::run_on(check.source, "ALTER TABLE " + member.root +
                                                         " DETACH PARTITION " + member.name + ";"));
        return;
    }
    if (member.kind != 'r' || member.identity == 'f' || contains(member.columns, member.key))
        return;
    std::string detail;
    if (member.identity == 'n')
        detail = "It has REPLICA IDENTITY NOTHING";
    else if (member.columns.empty())
        detail = "It has no primary key";
    else {
        for (const std::string &column : member.columns)
            detail += (detail.empty() ? "Its replica identity is (" : ", ") + column;
        detail += ")";
    }
    check.refuse("the replica identity of table " + member.name +
                     " does not have the shard key \"" + member.key + "\"",
                 detail + ": of an UPDATE or DELETE nobody could tell the bucket.",
                 Preflight::run_on(check.source,
                                   "ALTER TABLE " + member.name + " REPLICA IDENTITY " +
                                       (member.candidate.empty()
                                            ? "FULL; or give it a primary key with that column."
                                            : "USING INDEX " + member.candidate + ";")));
}

/// The subscriber looks rows up by its own identity or primary key, of which all columns must come.
void check_lookup(Preflight &check, const std::vector<Member> &source, const Member &target) {
    if (target.kind != 'r' && target.kind != 'p') return;
    const auto usable = [](const Member &member) {
        return member.kind == 'r' && member.identity != 'n' &&
               (member.identity == 'f' || contains(member.columns, member.key));
    };
    for (const Member &origin : source) {
        if (origin.root != target.root || !usable(origin) || origin.identity == 'f') continue;
        std::string missing;
        for (const std::string &column : target.columns)
            if (!contains(origin.columns, column)) missing = column;
        const bool none = target.columns.empty() && target.kind == 'r';
        if (missing.empty() && !none) continue;
        check.refuse(
            "changes of table " + origin.name + " could not be applied to " + target.name + " on " +
                check.target.called(),
            none ? "There it has neither a primary key nor a replica identity."
                 : "There rows are looked up by column \"" + missing +
                       "\", which is not in the replica identity on " + check.source.called() + ".",
            none ? "On " + check.target.called() + ", give it the primary key that it has on " +
                       check.source.called() + "."
                 : "Give " + origin.name + " the same replica identity on both shards.");
        return;
    }
}

/// With FULL and no key at the target each change compares whole rows: of types that have no
/// equality that fails, of large tables it takes for ever.
void check_full(Preflight &check, const Member &origin, const std::vector<Member> &target) {
    if (origin.identity != 'f') return;
    const auto same = std::find_if(target.begin(), target.end(), [&](const Member &member) {
        return member.name == origin.name && member.kind == 'r';
    });
    if (same == target.end()) return;
    const Rows primary = check.target.connection.query(
        "SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = $1::regclass "
        "AND (i.indisprimary OR i.indisreplident))",
        {Param::of_text(origin.name)});
    if (primary.boolean(0, 0)) return;
    // Types whose rows can be told apart have a default operator class of btree or hash.
    const Rows unequal = check.target.connection.query(
        "SELECT a.attname FROM pg_attribute a WHERE a.attrelid = $1::regclass AND a.attnum > 0 "
        "AND NOT a.attisdropped AND a.attgenerated = '' AND a.atttypid = ANY "
        "('{json, xml, point, lseg, path, polygon, line, box, circle}'::regtype[])",
        {Param::of_text(origin.name)});
    if (!unequal.empty())
        check.refuse("rows of table " + origin.name + " cannot be looked up on " +
                         check.target.called(),
                     "It has REPLICA IDENTITY FULL and no primary key, and column \"" +
                         unequal.text(0, 0) + "\" is of a type without equality.",
                     "On both shards, give it a primary key with the shard key in it.");
    else
        check.warn("each change of table " + origin.name + " reads the whole table on " +
                       check.target.called(),
                   "It has REPLICA IDENTITY FULL and no primary key.",
                   "On both shards, give it a primary key with the shard key in it.");
}

}  // namespace

void check_definitions(Preflight &check) {
    std::set<std::string> common;
    const Items source = read_items(check, check.source, item_kinds.front());
    const Items target = read_items(check, check.target, item_kinds.front());
    for (const auto &[identity, item] : source)
        if (target.contains(identity)) common.insert(item.table);
    for (const ItemKind &kind : item_kinds)
        compare(check, kind, common);
}

void check_identities(Preflight &check) {
    const std::vector<Member> source = read_members(check, check.source);
    const std::vector<Member> target = read_members(check, check.target);
    if (source.empty())
        check.refuse("keyspace \"" + check.session.keyspace().name + "\" has no tables on " +
                         check.source.called(),
                     {}, "Run: interlock apply");
    for (const Member &member : source) {
        check_member(check, member);
        check_full(check, member, target);
    }
    for (const Member &member : target)
        check_lookup(check, source, member);
}

}  // namespace interlock
