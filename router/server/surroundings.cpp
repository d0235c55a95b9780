#include "server/surroundings.h"

#include "base/log.h"

#include <algorithm>
#include <charconv>

namespace interlock {

namespace {

// All names are qualified: the session's search_path may be anything. Built-in objects have OIDs
// below 16384; procedural languages, those that users write in, have OIDs above C's (13).
//
// A function or operator with exactly the arguments of a built-in one is never found, because
// pg_catalog comes first; one that takes a type of users is only found for values of that type.
// What is left could be preferred for the arguments at hand. The numbers are setseed, set_config
// and the advisory locks of sessions: built in, so no dependency is recorded.
constexpr std::string_view query_text = R"(
, named AS (
  SELECT c.oid, n.nspname, c.relname
  FROM (SELECT DISTINCT d.name FROM declared d) d
  JOIN pg_catalog.pg_class c ON c.relname OPERATOR(pg_catalog.=) d.name
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
  WHERE pg_catalog.left(n.nspname::pg_catalog.text, 3) OPERATOR(pg_catalog.<>) 'pg_'
    AND n.nspname OPERATOR(pg_catalog.<>) 'information_schema'
), reached(schema, name, oid) AS (
  SELECT d.schema, d.name, c.oid
  FROM declared d
  JOIN named c ON c.nspname OPERATOR(pg_catalog.=) d.schema
              AND c.relname OPERATOR(pg_catalog.=) d.name
  UNION
  SELECT r.schema, r.name, further.oid
  FROM reached r
  CROSS JOIN LATERAL (
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i
    WHERE i.inhparent OPERATOR(pg_catalog.=) r.oid
    UNION ALL
    SELECT k.conrelid FROM pg_catalog.pg_constraint k
    WHERE k.confrelid OPERATOR(pg_catalog.=) r.oid AND k.contype OPERATOR(pg_catalog.=) 'f'
      AND (k.confdeltype OPERATOR(pg_catalog.=) ANY (ARRAY['c', 'n', 'd']::pg_catalog."char"[]) OR
           k.confupdtype OPERATOR(pg_catalog.=) ANY (ARRAY['c', 'n', 'd']::pg_catalog."char"[]))
  ) further(oid)
), parts(relation, classid, objid, expression) AS (
  SELECT a.adrelid, 'pg_catalog.pg_attrdef'::pg_catalog.regclass, a.oid,
         a.adbin::pg_catalog.text
  FROM pg_catalog.pg_attrdef a
  UNION ALL
  SELECT k.conrelid, 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid,
         k.conbin::pg_catalog.text
  FROM pg_catalog.pg_constraint k WHERE k.contype OPERATOR(pg_catalog.=) 'c'
  UNION ALL
  SELECT a.attrelid, 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid,
         k.conbin::pg_catalog.text
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
                           AND t.typtype OPERATOR(pg_catalog.=) 'd'
  JOIN pg_catalog.pg_constraint k
    ON k.contypid OPERATOR(pg_catalog.=) t.oid OR k.contypid OPERATOR(pg_catalog.=) t.typbasetype
  UNION ALL
  SELECT p.polrelid, 'pg_catalog.pg_policy'::pg_catalog.regclass, p.oid,
         pg_catalog.concat(p.polqual::pg_catalog.text, p.polwithcheck::pg_catalog.text)
  FROM pg_catalog.pg_policy p
  UNION ALL
  SELECT i.indrelid, 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid,
         pg_catalog.concat(i.indexprs::pg_catalog.text, i.indpred::pg_catalog.text)
  FROM pg_catalog.pg_index i
  WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
)
SELECT 'relation', c.nspname::pg_catalog.text, c.relname::pg_catalog.text,
       c.oid::pg_catalog.regclass::pg_catalog.text
FROM named c
WHERE NOT EXISTS (SELECT FROM declared d WHERE c.nspname OPERATOR(pg_catalog.=) d.schema
                                           AND c.relname OPERATOR(pg_catalog.=) d.name)
UNION ALL
SELECT 'function', n.nspname::pg_catalog.text, p.proname::pg_catalog.text,
       p.oid::pg_catalog.regprocedure::pg_catalog.text
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
WHERE p.oid OPERATOR(pg_catalog.>=) 16384
  AND pg_catalog.left(n.nspname::pg_catalog.text, 3) OPERATOR(pg_catalog.<>) 'pg_'
  AND NOT EXISTS (SELECT FROM callable f WHERE n.nspname OPERATOR(pg_catalog.=) f.schema
                                           AND p.proname OPERATOR(pg_catalog.=) f.name)
  AND (EXISTS (SELECT FROM callable f WHERE p.proname OPERATOR(pg_catalog.=) f.name)
       OR EXISTS (SELECT FROM pg_catalog.pg_proc b
                  WHERE b.proname OPERATOR(pg_catalog.=) p.proname
                    AND b.pronamespace OPERATOR(pg_catalog.=) 11)
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc b
                          WHERE b.proname OPERATOR(pg_catalog.=) p.proname
                            AND b.pronamespace OPERATOR(pg_catalog.=) 11
                            AND b.proargtypes OPERATOR(pg_catalog.=) p.proargtypes)
          AND NOT EXISTS (SELECT FROM pg_catalog.unnest(p.proargtypes) a(type)
                          JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.type
                          WHERE t.oid OPERATOR(pg_catalog.>=) 16384
                            AND t.typtype OPERATOR(pg_catalog.<>) 'd'))
UNION ALL
SELECT 'operator', n.nspname::pg_catalog.text, o.oprname::pg_catalog.text,
       o.oid::pg_catalog.regoperator::pg_catalog.text
FROM pg_catalog.pg_operator o
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) o.oprnamespace
WHERE o.oid OPERATOR(pg_catalog.>=) 16384
  AND EXISTS (SELECT FROM pg_catalog.pg_operator b
              WHERE b.oprname OPERATOR(pg_catalog.=) o.oprname
                AND b.oprnamespace OPERATOR(pg_catalog.=) 11)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_operator b
                  WHERE b.oprname OPERATOR(pg_catalog.=) o.oprname
                    AND b.oprnamespace OPERATOR(pg_catalog.=) 11
                    AND b.oprleft OPERATOR(pg_catalog.=) o.oprleft
                    AND b.oprright OPERATOR(pg_catalog.=) o.oprright)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_type t
                  WHERE (t.oid OPERATOR(pg_catalog.=) o.oprleft
                         OR t.oid OPERATOR(pg_catalog.=) o.oprright)
                    AND t.oid OPERATOR(pg_catalog.>=) 16384
                    AND t.typtype OPERATOR(pg_catalog.<>) 'd')
UNION ALL
SELECT DISTINCT 'user code', r.schema, r.name, ''
FROM reached r
WHERE EXISTS (SELECT FROM pg_catalog.pg_trigger t
              JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
              WHERE t.tgrelid OPERATOR(pg_catalog.=) r.oid AND NOT t.tgisinternal
                AND t.tgenabled OPERATOR(pg_catalog.<>) 'D'
                AND p.oid OPERATOR(pg_catalog.>=) 16384
                AND p.prolang OPERATOR(pg_catalog.>) 13)
   OR EXISTS (SELECT FROM pg_catalog.pg_rewrite w
              WHERE w.ev_class OPERATOR(pg_catalog.=) r.oid
                AND w.ev_type OPERATOR(pg_catalog.<>) '1')
   OR EXISTS (SELECT FROM parts a
              WHERE a.relation OPERATOR(pg_catalog.=) r.oid
                AND (a.expression OPERATOR(pg_catalog.~)
                       ':funcid (1599|2078|288[0-9]|289[0-2]) '
                     OR EXISTS (
                       SELECT FROM pg_catalog.pg_depend d
                       LEFT JOIN pg_catalog.pg_operator o
                         ON d.refclassid OPERATOR(pg_catalog.=)
                            'pg_catalog.pg_operator'::pg_catalog.regclass
                        AND o.oid OPERATOR(pg_catalog.=) d.refobjid
                       JOIN pg_catalog.pg_proc p
                         ON p.oid OPERATOR(pg_catalog.=)
                            CASE WHEN d.refclassid OPERATOR(pg_catalog.=)
                                      'pg_catalog.pg_proc'::pg_catalog.regclass
                                 THEN d.refobjid ELSE o.oprcode END
                       WHERE d.classid OPERATOR(pg_catalog.=) a.classid
                         AND d.objid OPERATOR(pg_catalog.=) a.objid
                         AND d.refobjid OPERATOR(pg_catalog.>=) 16384
                         AND p.prolang OPERATOR(pg_catalog.>) 13))))";

// What a statement over all shards is checked against. A keyset whose table has changed under it
// has no digest. A key with a column whose name cannot stand on a line of its own is not told.
constexpr std::string_view keysets_text = R"(
SELECT 'keyset', '', k.name::pg_catalog.text,
       pg_catalog.concat_ws(' ', COALESCE(k.digest, '-'), k.max_page, k.default_page,
                            CASE WHEN k.scatter THEN 'true' ELSE 'false' END, k."table")
FROM interlock.keysets k
UNION ALL
SELECT 'unique key', d.schema, d.name,
       (SELECT pg_catalog.string_agg(a.attname::pg_catalog.text, E'\n')
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid
          AND a.attnum OPERATOR(pg_catalog.=) ANY (key.columns))
FROM declared d
JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) d.schema
JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid
                          AND c.relname OPERATOR(pg_catalog.=) d.name
JOIN pg_catalog.pg_index i ON i.indrelid OPERATOR(pg_catalog.=) c.oid
CROSS JOIN LATERAL (SELECT i.indkey[0:i.indnkeyatts OPERATOR(pg_catalog.-) 1]) key(columns)
WHERE i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid
                    AND a.attnum OPERATOR(pg_catalog.=) ANY (key.columns)
                    AND (NOT a.attnotnull
                         OR pg_catalog.strpos(a.attname::pg_catalog.text, E'\n')
                            OPERATOR(pg_catalog.<>) 0))
UNION ALL
SELECT 'collations', '', '', interlock.collation_fingerprint())";

std::string literal(std::string_view text) {
    std::string quoted = "'";
    for (const char c : text) {
        if (c == '\'') quoted += '\'';
        quoted += c;
    }
    return quoted + "'";
}

std::string names_as_relation(const std::vector<Declared::Name> &names) {
    if (names.empty()) return "SELECT ''::pg_catalog.text, ''::pg_catalog.text WHERE false";
    std::string values;
    for (const auto &[schema, name] : names)
        values += (values.empty() ? "(" : ", (") + literal(schema) + ", " + literal(name) + ")";
    return "VALUES " + values;
}

std::vector<Declared::Name> sorted(std::vector<Declared::Name> names) {
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

}  // namespace

std::shared_ptr<const Declared> Declared::of(const RouteTable &table,
                                             const std::shared_ptr<const Declared> &before) {
    auto declared = std::make_shared<Declared>();
    for (const Table &each : table.tables)
        declared->tables.push_back({each.schema, each.name});
    for (const Function &each : table.functions)
        declared->functions.push_back({each.schema, each.name});
    declared->tables = sorted(std::move(declared->tables));
    declared->functions = sorted(std::move(declared->functions));
    if (before && before->tables == declared->tables && before->functions == declared->functions)
        return before;
    const std::string tables =
        "declared(schema, name) AS (" + names_as_relation(declared->tables) + ")";
    declared->query = "WITH RECURSIVE " + tables + ", callable(schema, name) AS (" +
                      names_as_relation(declared->functions) + ")" + std::string(query_text) +
                      "\nUNION ALL" + std::string(keysets_text);
    declared->keysets_query = "WITH " + tables + std::string(keysets_text);
    return declared;
}

bool Declared::has_table(std::string_view schema, std::string_view name) const {
    return std::any_of(tables.begin(), tables.end(), [&](const Name &table) {
        return table.schema == schema && table.name == name;
    });
}

bool Surroundings::take(const std::vector<std::string> &row) {
    if (row.size() != 4) return false;
    if (row[0] == "user code") {
        user_code_.push_back({row[1], row[2]});
        return true;
    }
    if (row[0] == "keyset") return take_keyset(row[2], row[3]);
    if (row[0] == "unique key") {
        UniqueKey key{row[1], row[2], {}};
        for (std::size_t at = 0; at <= row[3].size();) {
            const std::size_t end = std::min(row[3].find('\n', at), row[3].size());
            key.columns.push_back(row[3].substr(at, end - at));
            at = end + 1;
        }
        unique_keys_.push_back(std::move(key));
        return true;
    }
    if (row[0] == "collations") {
        collations_ = row[3];
        return true;
    }
    std::vector<Other> *others = row[0] == "relation"   ? &relations_
                                 : row[0] == "function" ? &functions_
                                 : row[0] == "operator" ? &operators_
                                                        : nullptr;
    if (others == nullptr) return false;
    others->push_back({row[1], row[2], row[3]});
    return true;
}

// "DIGEST MAX DEFAULT true|false TABLE"
bool Surroundings::take_keyset(const std::string &name, std::string_view detail) {
    const auto word = [&] {
        const std::string_view next = detail.substr(0, detail.find(' '));
        detail.remove_prefix(std::min(detail.size(), next.size() + 1));
        return next;
    };
    const auto rows = [&](std::uint32_t &out) {
        const std::string_view text = word();
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
        return error == std::errc() && end == text.data() + text.size();
    };
    KnownKeyset keyset;
    keyset.name = name;
    keyset.digest = word();
    if (!rows(keyset.max_page) || !rows(keyset.default_page)) return false;
    const std::string_view scatter = word();
    keyset.scatter = scatter == "true";
    keyset.table = detail;
    if (keyset.digest.empty() || keyset.table.empty() || (scatter != "true" && scatter != "false"))
        return false;
    keysets_.push_back(std::move(keyset));
    return true;
}

void Surroundings::forget_keysets() {
    keysets_.clear();
    unique_keys_.clear();
    collations_.clear();
}

const KnownKeyset *Surroundings::find_keyset(std::string_view name) const {
    const auto known = std::find_if(keysets_.begin(), keysets_.end(),
                                    [&](const KnownKeyset &keyset) { return keyset.name == name; });
    return known == keysets_.end() ? nullptr : &*known;
}

bool Surroundings::unique_within(const Table &table,
                                 const std::vector<std::string> &columns) const {
    return std::any_of(unique_keys_.begin(), unique_keys_.end(), [&](const UniqueKey &key) {
        return key.table == table.name && key.schema == table.schema &&
               std::all_of(key.columns.begin(), key.columns.end(), [&](const std::string &column) {
                   return std::find(columns.begin(), columns.end(), column) != columns.end();
               });
    });
}

bool Surroundings::in_user_code(std::string_view schema, std::string_view name) const {
    return std::any_of(user_code_.begin(), user_code_.end(), [&](const Declared::Name &table) {
        return table.name == name && table.schema == schema;
    });
}

const Surroundings::Other *Surroundings::find(const std::vector<Other> &others,
                                              std::string_view name,
                                              const std::vector<std::string> &search_path) {
    for (const Other &other : others)
        if (other.name == name &&
            std::find(search_path.begin(), search_path.end(), other.schema) != search_path.end())
            return &other;
    return nullptr;
}

std::optional<std::string>
Surroundings::conflict(const sql::Facts &facts, const std::vector<std::string> &search_path) const {
    if (!ambiguous()) return std::nullopt;
    for (const std::string &name : facts.relation_names) {
        // The first schema that has a relation of the name decides.
        for (const std::string &schema : search_path) {
            if (declared_->has_table(schema, name)) break;
            if (const Other *other = find(relations_, name, {schema}))
                return format("under this search_path, \"%s\" is %s.%s on the shard, which is not "
                              "a declared table",
                              name.c_str(), other->schema.c_str(), other->name.c_str());
        }
    }
    for (const std::string &name : facts.function_names)
        if (const Other *other = find(functions_, name, search_path))
            return format("the function name \"%s\" could also mean %s (schema %s) on the shard",
                          name.c_str(), other->detail.c_str(), other->schema.c_str());
    for (const std::string &name : facts.operator_names)
        if (const Other *other = find(operators_, name, search_path))
            return format("the operator %s could also mean %s (schema %s) on the shard",
                          name.c_str(), other->detail.c_str(), other->schema.c_str());
    return std::nullopt;
}

}  // namespace interlock
