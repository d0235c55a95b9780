#include "session/scatter_partials.h"

#include "base/log.h"
#include "wire/frame.h"

#include <array>

namespace interlock {

namespace {

// OIDs of PostgreSQL's own types, which never change.
constexpr std::uint32_t int8_oid = 20;
constexpr std::uint32_t int4_oid = 23;
constexpr std::uint32_t float4_oid = 700;
constexpr std::uint32_t float8_oid = 701;
constexpr std::uint32_t money_oid = 790;
constexpr std::uint32_t interval_oid = 1186;
constexpr std::uint32_t numeric_oid = 1700;

struct Summable {
    std::uint32_t type;
    std::uint32_t array;
    std::uint32_t average;  ///< type of sum / count; 0: there is no avg of it
};
// What sum() gives. Integers are summed as int8 or numeric, so their partial sums are int8 (then so
// is the whole) or numeric.
constexpr std::array<Summable, 4> summables{{
    {int8_oid, 1016, numeric_oid},
    {numeric_oid, 1231, numeric_oid},
    {interval_oid, 1187, interval_oid},
    {money_oid, 791, 0},
}};
constexpr std::uint32_t int4_array = 1007;

const Summable *summable(std::uint32_t type) {
    for (const Summable &known : summables)
        if (known.type == type) return &known;
    return nullptr;
}

void put32(std::string &out, std::uint32_t value) {
    std::array<char, 4> bytes{};
    wire::store32(bytes.data(), value);
    out.append(bytes.data(), bytes.size());
}

constexpr std::size_t array_header = 20;

}  // namespace

bool split_row(std::string_view body, std::vector<Field> &out) {
    wire::FieldReader reader(body);
    const std::uint16_t count = reader.int16();
    out.clear();
    for (std::uint16_t i = 0; i < count && reader.ok(); ++i) {
        const std::uint32_t length = reader.int32();
        if (length == 0xFFFFFFFFU)
            out.emplace_back(std::nullopt);
        else
            out.emplace_back(reader.bytes(length));
    }
    return reader.ok() && reader.at_end();
}

Combinable combinable(Combination::Kind kind, std::uint32_t partial, std::uint32_t result) {
    if (partial == float4_oid || partial == float8_oid) return Combinable::floating;
    const Summable *known = summable(partial);
    if (known == nullptr) return Combinable::unknown;
    switch (kind) {
    case Combination::Kind::count:
        return partial == int8_oid && result == int8_oid ? Combinable::exactly
                                                         : Combinable::unknown;
    case Combination::Kind::sum:
        return result == partial ? Combinable::exactly : Combinable::unknown;
    case Combination::Kind::ratio:
        return known->average != 0 && known->average == result ? Combinable::exactly
                                                               : Combinable::unknown;
    }
    return Combinable::unknown;
}

PartialSums::PartialSums(std::vector<Combination> combinations)
    : combinations_(std::move(combinations)) {
    text_ = "SELECT ";
    std::string sources = "pg_catalog.unnest($1)";
    std::string names = "g";
    const auto next = [&](std::uint32_t type) {
        types_.push_back(type);
        const std::string name = format("p%zu", types_.size());
        sources += format(", pg_catalog.unnest($%zu)", types_.size() + 1);
        names += ", " + name;
        return "pg_catalog.sum(" + name + ")";
    };
    for (const Combination &combination : combinations_) {
        if (types_.size() > 0) text_ += ", ";
        std::string sum = next(combination.partial_type);
        switch (combination.kind) {
        case Combination::Kind::count:
        case Combination::Kind::sum:
            // PostgreSQL sums int8 as numeric.
            if (combination.partial_type == int8_oid) sum += "::pg_catalog.int8";
            break;
        case Combination::Kind::ratio:
            // What the final function of avg() divides: by a numeric, and an interval by a double.
            sum += " OPERATOR(pg_catalog./) " + next(int8_oid);
            if (combination.partial_type == interval_oid) sum += "::pg_catalog.float8";
            break;
        }
        text_ += sum;
    }
    text_ += " FROM ROWS FROM (" + sources + ") AS t(" + names + ") GROUP BY g ORDER BY g";
}

void PartialSums::append(Batch &batch, std::size_t array, const Field &value) {
    std::string &bytes = batch.arrays[array];
    const std::size_t before = bytes.size();
    if (value) {
        put32(bytes, static_cast<std::uint32_t>(value->size()));
        bytes.append(*value);
    } else {
        put32(bytes, 0xFFFFFFFFU);
        batch.nulls[array] = true;
    }
    batch.size += bytes.size() - before;
    bytes_ += bytes.size() - before;
}

void PartialSums::add(std::uint32_t group, std::span<const Field> partials) {
    const bool new_group = batches_.empty() || batches_.back().groups.end != group + 1;
    if (batches_.empty() || (new_group && batches_.back().size >= batch_bytes)) {
        Batch batch;
        batch.groups = {group, group};
        batch.arrays.resize(width() + 1);
        batch.nulls.resize(width() + 1);
        batches_.push_back(std::move(batch));
    }
    Batch &batch = batches_.back();
    batch.groups.end = group + 1;
    ++batch.rows;
    std::array<char, 4> position{};
    wire::store32(position.data(), group);
    append(batch, 0, std::string_view(position.data(), position.size()));
    for (std::size_t i = 0; i < partials.size(); ++i)
        append(batch, i + 1, partials[i]);
}

std::optional<PartialSums::Groups> PartialSums::request(Buffer &out) {
    if (asked_ == batches_.size()) return std::nullopt;
    if (asked_ == 0) {
        wire::FrameWriter parse(out, 'P');
        parse.string("").string(text_).int16(static_cast<std::uint16_t>(width() + 1));
        parse.int32(int4_array);
        for (const std::uint32_t type : types_)
            parse.int32(summable(type)->array);
    }
    Batch &batch = batches_[asked_++];
    {
        wire::FrameWriter bind(out, 'B');
        bind.string("").string("");
        bind.int16(1).int16(1);  // all parameters are binary
        bind.int16(static_cast<std::uint16_t>(batch.arrays.size()));
        for (std::size_t i = 0; i < batch.arrays.size(); ++i) {
            const std::string &elements = batch.arrays[i];
            bind.int32(static_cast<std::uint32_t>(array_header + elements.size()));
            bind.int32(1).int32(batch.nulls[i] ? 1 : 0).int32(i == 0 ? int4_oid : types_[i - 1]);
            bind.int32(batch.rows).int32(1).bytes(elements);
        }
        bind.int16(static_cast<std::uint16_t>(combinations_.size()));
        for (const Combination &combination : combinations_)
            bind.int16(combination.format);
    }
    wire::FrameWriter(out, 'E').string("").int32(0);
    wire::FrameWriter(out, 'S');
    bytes_ -= batch.size;
    const Groups groups = batch.groups;
    batch = Batch();
    return groups;
}

}  // namespace interlock
