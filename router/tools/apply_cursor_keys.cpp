#include "tools/apply_cursor_keys.h"

#include <algorithm>
#include <map>

#include "tools/apply_plan.h"

namespace interlock {

namespace {

std::string quoted(const std::string &name) {
    return "\"" + name + "\"";
}

std::string list_of(const std::vector<std::string> &words) {
    std::string text;
    for (std::size_t i = 0; i < words.size(); ++i)
        text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
    return text;
}

const CursorKey *find_key(const std::vector<CursorKey> &keys, std::int32_t id) {
    const auto found =
        std::find_if(keys.begin(), keys.end(), [id](const CursorKey &key) { return key.id == id; });
    return found == keys.end() ? nullptr : &*found;
}

/// The valid key that signs, or nullptr.
const CursorKey *signing_key(const std::vector<CursorKey> &keys) {
    const CursorKey *newest = nullptr;
    for (const CursorKey &key : keys)
        if (!key.retired && (newest == nullptr || newest->created <= key.created)) newest = &key;
    return newest;
}

}  // namespace

std::string read_instance_name(ControlConnection &connection) {
    // A physical copy has the system identifier of its original; the start time tells them apart.
    return connection
        .query("SELECT pg_catalog.concat_ws('/', "
               "    (pg_catalog.pg_control_system()).system_identifier, d.oid, "
               "    EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time())) "
               "FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()")
        .text(0, 0);
}

std::vector<CursorKey> cursor_keys_of(ControlConnection &connection, bool with_secrets) {
    const Rows rows = connection.query(
        "SELECT id, retired, "
        "  pg_catalog.to_char(created AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US'), "
        "  pg_catalog.encode(pg_catalog.sha256(secret), 'hex'), "
        "  CASE WHEN $1 THEN pg_catalog.encode(secret, 'hex') END "
        "FROM interlock.cursor_key ORDER BY id",
        {Param::of_bool(with_secrets)});
    std::vector<CursorKey> keys;
    for (int row = 0; row < rows.size(); ++row)
        keys.push_back({rows.int32(row, 0), rows.boolean(row, 1), rows.text(row, 2),
                        rows.text(row, 3), rows.text(row, 4)});
    return keys;
}

void put_cursor_keys(ControlConnection &connection, const std::vector<CursorKey> &keys) {
    // A server that logs statements logs their parameters with them, unless a superuser says no.
    connection.query(
        "SELECT pg_catalog.set_config('log_parameter_max_length_on_error', '0', true), "
        "  CASE WHEN pg_catalog.current_setting('is_superuser') = 'on' "
        "    THEN pg_catalog.set_config('log_parameter_max_length', '0', true) END");
    std::vector<std::string> created, secrets;
    std::vector<std::int32_t> ids;
    std::vector<bool> retired;
    for (const CursorKey &key : keys) {
        ids.push_back(key.id);
        retired.push_back(key.retired);
        created.push_back(key.created);
        secrets.push_back(key.secret);
    }
    connection.execute("LOCK TABLE interlock.cursor_key IN SHARE ROW EXCLUSIVE MODE");
    connection.query("DELETE FROM interlock.cursor_key WHERE id <> ALL ($1)",
                     {Param::of_int4_array(ids)});
    connection.query(
        "INSERT INTO interlock.cursor_key AS k (id, secret, created, retired) "
        "SELECT want.id, pg_catalog.decode(NULLIF(want.secret, ''), 'hex'), "
        "  want.created::pg_catalog.timestamp AT TIME ZONE 'UTC', want.retired "
        "FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), "
        "  pg_catalog.unnest($4)) AS want(id, secret, created, retired) "
        "ON CONFLICT (id) DO UPDATE SET secret = excluded.secret, created = excluded.created, "
        "  retired = excluded.retired "
        "WHERE (k.secret, k.created, k.retired) IS DISTINCT FROM "
        "  (excluded.secret, excluded.created, excluded.retired)",
        {Param::of_int4_array(ids), Param::of_text_array(secrets), Param::of_text_array(created),
         Param::of_bool_array(retired)});
}

std::vector<KeysetInfo> keysets_of(ControlConnection &connection) {
    const Rows rows = connection.query(
        "SELECT name, digest, "
        "  pg_catalog.format('at most %s rows, %s unless told', max_page, default_page), "
        "  pg_catalog.format('SELECT interlock.keyset_create(%L, %L, %L, %L, %s, %s, signed => %s"
        ", scatter => true);', name, \"table\"::pg_catalog.text, scope::pg_catalog.text, "
        "    \"order\", max_page, default_page, CASE WHEN signed THEN 'true' ELSE 'false' END) "
        // Of one that does not fit its table any more, it may be unknown.
        "FROM interlock.keysets WHERE scatter IS NOT FALSE ORDER BY name");
    std::vector<KeysetInfo> keysets;
    for (int row = 0; row < rows.size(); ++row)
        keysets.push_back(
            {rows.text(row, 0), rows.text(row, 1), rows.text(row, 2), rows.text(row, 3)});
    return keysets;
}

bool has_cursor_key(const DesiredState &desired) {
    return signing_key(desired.cursor_keys) != nullptr;
}

std::string cursor_key_step(const DesiredState &desired, const ShardState &shard) {
    if (shard.instance == desired.instance) return {};
    if (!has_cursor_key(desired)) return "take the catalog's cursor key";
    std::vector<std::string> taken, retired, dropped;
    for (const CursorKey &want : desired.cursor_keys) {
        const CursorKey *have = find_key(shard.cursor_keys, want.id);
        if (have != nullptr && want.same(*have)) continue;
        const std::string name = std::to_string(want.id);
        if (want.retired)
            retired.push_back(name);
        else if (have == nullptr || have->retired || have->digest != want.digest)
            taken.push_back(name);
        if (have != nullptr && !have->retired && have->digest != want.digest && !want.retired)
            dropped.push_back(name);
    }
    for (const CursorKey &have : shard.cursor_keys)
        if (!have.retired && find_key(desired.cursor_keys, have.id) == nullptr)
            dropped.push_back(std::to_string(have.id));
    const CursorKey *signs = signing_key(desired.cursor_keys);
    const CursorKey *signed_so_far = signing_key(shard.cursor_keys);
    const auto key = [](const std::vector<std::string> &ids) {
        return std::string(ids.size() == 1 ? "key " : "keys ") + list_of(ids);
    };
    std::vector<std::string> parts;
    if (!taken.empty()) parts.push_back("accept cursors of " + key(taken));
    if (signed_so_far == nullptr || signed_so_far->id != signs->id ||
        signed_so_far->digest != signs->digest)
        parts.push_back("sign cursors with key " + std::to_string(signs->id));
    if (!dropped.empty()) parts.push_back("refuse cursors of its own " + key(dropped));
    if (!retired.empty()) parts.push_back("retire " + key(retired));
    if (!parts.empty()) return list_of(parts);
    const bool same = desired.cursor_keys.size() == shard.cursor_keys.size() &&
                      std::equal(desired.cursor_keys.begin(), desired.cursor_keys.end(),
                                 shard.cursor_keys.begin(),
                                 [](const auto &a, const auto &b) { return a.same(b); });
    return same ? std::string() : "bring its list of cursor keys up to date";
}

std::vector<Finding> check_keysets(const DesiredState &desired,
                                   const std::vector<ShardState> &shards) {
    struct Versions {
        std::map<std::string, std::vector<std::string>> by_digest, by_limits;
        std::vector<std::string> unfit, missing;
        const KeysetInfo *sample = nullptr;
    };
    std::map<std::string, Versions> keysets;
    for (const ShardState &shard : shards) {
        if (!shard.known) return {};
        for (const KeysetInfo &keyset : shard.keysets)
            keysets[keyset.name].sample = &keyset;
    }
    std::vector<Finding> warnings;
    for (auto &entry : keysets) {
        const std::string &name = entry.first;
        // Those of indexes are made alike on every shard, or refused.
        if (std::any_of(desired.indexes.begin(), desired.indexes.end(),
                        [&](const DesiredIndex &index) { return index.name == name; }))
            continue;
        Versions &versions = entry.second;
        for (std::size_t s = 0; s < shards.size(); ++s) {
            if (desired.shards[s].index_only) continue;
            const std::string shard = quoted(desired.shards[s].name);
            const std::vector<KeysetInfo> &here = shards[s].keysets;
            const auto found =
                std::find_if(here.begin(), here.end(),
                             [&](const KeysetInfo &keyset) { return keyset.name == name; });
            if (found == here.end())
                versions.missing.push_back(shard);
            else if (found->digest.empty())
                versions.unfit.push_back(shard);
            else {
                versions.by_digest[found->digest].push_back(shard);
                versions.by_limits[found->limits].push_back(shard);
            }
        }
        const std::string keyset = "keyset " + quoted(name);
        const auto told = [](const std::map<std::string, std::vector<std::string>> &groups) {
            std::vector<std::string> words;
            for (const auto &[what, where] : groups)
                words.push_back(what + " on " + list_of(where));
            return list_of(words) + ".";
        };
        if (!versions.unfit.empty())
            warnings.push_back(
                {keyset + " does not fit its table any more on shard " + list_of(versions.unfit),
                 {},
                 "Drop it there with interlock.keyset_drop() and declare it anew."});
        if (!versions.missing.empty())
            warnings.push_back({keyset + " is not declared on shard " + list_of(versions.missing),
                                "Pages of it over all shards are refused.",
                                "Run there: " + versions.sample->declaration});
        if (versions.by_digest.size() > 1)
            warnings.push_back({keyset + " is declared differently on different shards",
                                "Digests: " + told(versions.by_digest) +
                                    " Pages of it over all shards are refused.",
                                "Drop it where it is wrong and declare it as on the others; types, "
                                "collations and labels of enums must agree as well."});
        else if (versions.by_limits.size() > 1)
            warnings.push_back({"the page limits of " + keyset + " differ between shards",
                                "They are " + told(versions.by_limits),
                                "Declare it alike everywhere."});
    }
    return warnings;
}

}  // namespace interlock
