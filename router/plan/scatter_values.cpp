#include "plan/scatter_values.h"

#include "base/log.h"

#include <algorithm>
#include <limits>

namespace interlock {

namespace {

using sql::LiteralKind;
using sql::ValueSource;
using From = sql::ValueSource::From;

Refusal wrong(std::string message, std::string hint) {
    return make_refusal(Code::R27, std::move(message), std::move(hint));
}

std::string named(std::string_view what) {
    return std::string(what);
}

bool untyped(std::uint32_t type) {
    return type == 0 || type == oid::unknown;
}

bool integer_type(std::uint32_t type) {
    return type == oid::int2 || type == oid::int4 || type == oid::int8;
}

/// Types whose text and binary forms are the characters of the text.
bool text_type(std::uint32_t type) {
    constexpr std::uint32_t name = 19;
    return type == oid::text || type == oid::varchar || type == oid::bpchar || type == name;
}

/// The parameter a source names, or null: it was not sent.
const BoundParameter *bound(const ValueSource &source, const Values &values) {
    return source.index < values.parameters.size() ? &values.parameters[source.index] : nullptr;
}

Refusal not_sent(const ValueSource &source, const Values &values, std::string_view what) {
    return wrong(format("%s is parameter $%u; parameters sent: %zu", named(what).c_str(),
                        source.index + 1U, values.parameters.size()),
                 "");
}

Refusal no_integer(std::string_view what) {
    return wrong(named(what) + " is not an integer in a plain form",
                 "Write digits alone, or declare the parameter as bigint.");
}

std::optional<std::int64_t> binary_integer(std::string_view bytes, std::uint32_t type) {
    if (untyped(type)) {
        // The server gives it the type of its place, bigint or integer: its length says which.
        type = bytes.size() == 8 ? oid::int8 : bytes.size() == 4 ? oid::int4 : oid::int2;
    }
    return parse_binary_integer(*key_type_of_oid(type), bytes);
}

}  // namespace

Result<std::optional<std::int64_t>, Refusal>
scatter_integer(const ValueSource &source, const Values &values, std::string_view what) {
    constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t high = std::numeric_limits<std::int64_t>::max();
    std::optional<std::int64_t> value;
    switch (source.from) {
    case From::absent:
    case From::null: return std::optional<std::int64_t>();
    case From::number: return std::optional<std::int64_t>(source.index);
    case From::literal: {
        if (source.index >= values.literals.size()) return no_integer(what);
        const sql::Literal &literal = values.literals[source.index];
        std::string scratch;
        const auto text = sql::literal_value(values.text, literal, scratch);
        if (!text) return no_integer(what);
        if (literal.kind == LiteralKind::integer)
            value = parse_digits(*text, source.negative, low, high);
        else if (literal.kind != LiteralKind::number && !source.negative)
            value = parse_integer(*text, low, high);
        break;
    }
    case From::parameter: {
        const BoundParameter *parameter = bound(source, values);
        if (parameter == nullptr) return not_sent(source, values, what);
        if (!parameter->bytes) return std::optional<std::int64_t>();
        if (!untyped(parameter->type) && !integer_type(parameter->type))
            return wrong(format("%s is parameter $%u, whose type is no integer",
                                named(what).c_str(), source.index + 1U),
                         "Declare it as bigint.");
        if (!parameter->binary) {
            value = parse_integer(*parameter->bytes, low, high);
        } else if (untyped(parameter->type) && source.typed) {
            return wrong(format("%s is parameter $%u, which has no declared type, and stands "
                                "elsewhere too, where it could take another one",
                                named(what).c_str(), source.index + 1U),
                         "Declare its type, or use a parameter of its own.");
        } else {
            value = binary_integer(*parameter->bytes, parameter->type);
        }
        break;
    }
    }
    if (!value) return no_integer(what);
    return value;
}

Result<std::optional<std::string>, Refusal>
scatter_text(const ValueSource &source, const Values &values, std::string_view what) {
    switch (source.from) {
    case From::absent:
    case From::number:
    case From::null: return std::optional<std::string>();
    case From::literal: {
        std::string scratch;
        const bool string = source.index < values.literals.size() &&
                            values.literals[source.index].kind != LiteralKind::integer &&
                            values.literals[source.index].kind != LiteralKind::number;
        const auto text =
            string ? sql::literal_value(values.text, values.literals[source.index], scratch)
                   : std::nullopt;
        if (!text)
            return wrong("the value of " + named(what) + " is not known before PostgreSQL reads it",
                         "Write it as a plain string, 'like this', or send it as a parameter.");
        return std::optional<std::string>(*text);
    }
    case From::parameter: {
        const BoundParameter *parameter = bound(source, values);
        if (parameter == nullptr) return not_sent(source, values, what);
        if (!parameter->bytes) return std::optional<std::string>();
        if (!untyped(parameter->type) && !text_type(parameter->type))
            return wrong(format("%s is parameter $%u, whose type is no text", named(what).c_str(),
                                source.index + 1U),
                         "Declare it as text.");
        if (untyped(parameter->type) && parameter->binary && source.typed)
            return wrong(format("%s is parameter $%u, which has no declared type, and stands "
                                "elsewhere too, where it could take another one",
                                named(what).c_str(), source.index + 1U),
                         "Declare its type, or use a parameter of its own.");
        return std::optional<std::string>(*parameter->bytes);
    }
    }
    return std::optional<std::string>();
}

Result<bool, Refusal> scatter_given(const ValueSource &source, const Values &values) {
    switch (source.from) {
    case From::absent:
    case From::null: return false;
    case From::number:
    case From::literal: return true;
    case From::parameter: {
        const BoundParameter *parameter = bound(source, values);
        if (parameter == nullptr) return not_sent(source, values, "the cursor");
        return parameter->bytes.has_value();
    }
    }
    return false;
}

Result<ScatterWindow, Refusal> scatter_window(const sql::Scatter &scatter, const Values &values) {
    auto limit = scatter_integer(scatter.limit, values, "LIMIT");
    if (!limit) return std::move(limit.error());
    auto offset = scatter_integer(scatter.offset, values, "OFFSET");
    if (!offset) return std::move(offset.error());
    if (*offset && **offset < 0) return postgres_error("2201X", "OFFSET must not be negative");
    if (*limit && **limit < 0) return postgres_error("2201W", "LIMIT must not be negative");
    if (scatter.kind == sql::ScatterKind::ordered && !*limit)
        return make_refusal(Code::scatter_unsupported, "LIMIT is NULL: all rows of all shards",
                            "Give the LIMIT a number.");
    ScatterWindow window;
    if (*limit) window.limit = static_cast<std::uint64_t>(**limit);
    if (*offset) window.offset = static_cast<std::uint64_t>(**offset);
    return window;
}

std::vector<ShardIndex> shards_of_keyspace(const RouteTable &routes, std::uint16_t keyspace) {
    std::vector<bool> owns(routes.shards.size(), false);
    for (const ShardIndex shard : routes.keyspaces[keyspace].owner)
        owns[shard] = true;
    std::vector<ShardIndex> shards;
    for (std::size_t i = 0; i < owns.size(); ++i)
        if (owns[i]) shards.push_back(static_cast<ShardIndex>(i));
    return shards;
}

}  // namespace interlock
