#include "plan/plan.h"

#include "base/log.h"
#include "plan/key_refusal.h"
#include "sql/strict_scanner.h"

#include <array>

namespace interlock {

namespace {

// boolin takes any unambiguous prefix of these words, in any case, blanks around them.
bool spells_boolean(std::string_view text) {
    const auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
    while (!text.empty() && blank(text.front()))
        text.remove_prefix(1);
    while (!text.empty() && blank(text.back()))
        text.remove_suffix(1);
    constexpr std::array<std::string_view, 8> words = {"true", "false", "yes", "no",
                                                       "on",   "off",   "1",   "0"};
    if (text.empty() || text == "o" || text == "O") return false;
    for (const std::string_view word : words)
        if (text.size() <= word.size() && sql::same_word(text, word.substr(0, text.size())))
            return true;
    return false;
}

// Whether `text` can be a value of the type. Types the router does not know are left to the shard.
bool spells_value(std::uint32_t type_oid, std::string_view text) {
    switch (type_oid) {
    case oid::int2: return parse_integer(text, INT16_MIN, INT16_MAX).has_value();
    case oid::int4: return parse_integer(text, INT32_MIN, INT32_MAX).has_value();
    case oid::int8: return parse_integer(text, INT64_MIN, INT64_MAX).has_value();
    case oid::boolean: return spells_boolean(text);
    case oid::uuid: {
        std::uint8_t bytes[16];
        return parse_uuid(text, bytes);
    }
    default: return true;
    }
}

[[gnu::cold]] Refusal wrong_value(std::size_t parameter, const Column &column) {
    return make_refusal(
        Code::R27, format("parameter %zu is not a value of type %s, which column \"%s\" has",
                          parameter + 1, type_name(column.type_oid).c_str(), column.name.c_str()));
}

}  // namespace

Result<Place, Refusal> plan(const sql::Statement &statement, std::span<const Parameter> parameters,
                            const RouteTable &routes) {
    if (parameters.size() != statement.parameters.size())
        return make_refusal(Code::R27,
                            format("parameters sent: %zu, placeholders in the statement: %zu",
                                   parameters.size(), statement.parameters.size()));
    const Table &table = *statement.table;
    const Keyspace &keyspace = routes.keyspaces[table.keyspace];

    std::optional<KeyTarget> target;
    bool held = false;
    for (const std::uint16_t position : statement.keys) {
        const Parameter &value = parameters[position];
        const Column &column = table.columns[table.key_column];
        if (!value)
            return make_refusal(Code::R27,
                                format("the shard key \"%s\" is NULL", column.name.c_str()));
        const auto key = parse_key(table.key_type, *value);
        if (!key) return wrong_value(position, column);
        KeyTarget found{table.keyspace, keyspace.bucket_of(*key), 0};
        found.shard = keyspace.owner[static_cast<std::size_t>(found.bucket)];
        held = held || routes.is_announced(found.keyspace, found.bucket);
        if (!target)
            target = found;
        else if (target->shard != found.shard)
            return several_shards(routes, *target, found);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const std::uint16_t column = statement.parameters[i].column;
        if (column == table.key_column || !parameters[i] || !statement.typed_as_column(i)) continue;
        if (!spells_value(table.columns[column].type_oid, *parameters[i]))
            return wrong_value(i, table.columns[column]);
    }
    // An accepted data statement always names a key (R10 otherwise).
    if (!target) return make_refusal(Code::R10, "the statement names no shard key");
    return Place{target->shard, held};
}

}  // namespace interlock
