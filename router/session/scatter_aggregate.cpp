#include "session/scatter_aggregate.h"

#include "base/log.h"
#include "wire/frame.h"

namespace interlock {

namespace {

using sql::PartialColumn;

constexpr std::uint16_t binary = 1;

Refusal disagree(std::string detail) {
    Refusal refusal =
        make_refusal(Code::shards_disagree, "a shard's answer is not what the statement asks for");
    refusal.detail = std::move(detail);
    return refusal;
}

const char *function_name(PartialColumn::Kind kind) {
    switch (kind) {
    case PartialColumn::Kind::count: return "count";
    case PartialColumn::Kind::sum: return "sum";
    case PartialColumn::Kind::average: return "avg";
    case PartialColumn::Kind::min: return "min";
    case PartialColumn::Kind::max: return "max";
    case PartialColumn::Kind::group: break;
    }
    return "group";
}

Refusal not_exact(PartialColumn::Kind kind, const std::string &column, Combinable why,
                  std::uint32_t type) {
    const char *function = function_name(kind);
    Refusal refusal = make_refusal(
        Code::scatter_unsupported,
        why == Combinable::floating
            ? format("%s of floating-point numbers over several shards would not be exact",
                     function)
            : format("%s of this type cannot be put together from several shards", function));
    if (why == Combinable::floating) {
        refusal.detail = format("Column \"%s\": the sum of floating-point numbers depends on the "
                                "order in which they are added.",
                                column.c_str());
        refusal.hint = format("Cast the argument to numeric, as in %s(x::numeric).", function);
    } else {
        refusal.detail = format("Column \"%s\": the partial values have the type with OID %u.",
                                column.c_str(), type);
    }
    return refusal;
}

bool is_combined(PartialColumn::Kind kind) {
    return kind == PartialColumn::Kind::count || kind == PartialColumn::Kind::sum ||
           kind == PartialColumn::Kind::average;
}
bool is_extreme(PartialColumn::Kind kind) {
    return kind == PartialColumn::Kind::min || kind == PartialColumn::Kind::max;
}
std::size_t hidden_width(PartialColumn::Kind kind) {
    if (kind == PartialColumn::Kind::group) return 0;
    return kind == PartialColumn::Kind::average ? 2 : 1;
}

}  // namespace

AggregateMerge::AggregateMerge(const sql::Scatter &scatter, AggregateBounds bounds)
    : scatter_(scatter), bounds_(bounds) {}

bool AggregateMerge::known_layout() const {
    if (columns_ <= scatter_.hidden || scatter_.columns.size() != columns_ - scatter_.hidden)
        return false;
    if (scatter_.grouped && scatter_.hidden == 0) return false;
    for (const PartialColumn &column : scatter_.columns) {
        const std::size_t width = hidden_width(column.kind);
        if (width > 0 && (column.hidden < visible_ || column.hidden + width > columns_))
            return false;
    }
    return true;
}

std::optional<Refusal> AggregateMerge::describe(std::string_view body) {
    struct Column {
        std::string_view name;
        std::uint32_t type = 0;
        std::uint16_t format = 0;
    };
    std::vector<Column> described;
    wire::FieldReader reader(body);
    const std::uint16_t count = reader.int16();
    for (std::uint16_t i = 0; i < count && reader.ok(); ++i) {
        Column column;
        column.name = reader.string();
        reader.bytes(6);
        column.type = reader.int32();
        reader.bytes(6);
        column.format = reader.int16();
        described.push_back(column);
    }
    columns_ = described.size();
    visible_ = columns_ - scatter_.hidden;
    if (!reader.ok() || !known_layout())
        return disagree("It has other columns, or their description is malformed.");

    std::vector<Combination> combinations;
    for (std::uint16_t i = 0; i < visible_; ++i) {
        const PartialColumn &column = scatter_.columns[i];
        if (!is_combined(column.kind)) continue;
        const Column &partial = described[column.hidden];
        Combination combination;
        combination.kind = column.kind == PartialColumn::Kind::count ? Combination::Kind::count
                           : column.kind == PartialColumn::Kind::sum ? Combination::Kind::sum
                                                                     : Combination::Kind::ratio;
        combination.partial_type = partial.type;
        combination.format = described[i].format;
        const Combinable exact = combinable(combination.kind, partial.type, described[i].type);
        if (exact != Combinable::exactly)
            return not_exact(column.kind, std::string(described[i].name), exact, partial.type);
        const std::size_t width = hidden_width(column.kind);
        for (std::size_t j = 0; j < width; ++j) {
            const std::size_t at = column.hidden + j;
            if (described[at].format != binary) return disagree("A partial value is not binary.");
            partial_columns_.push_back(static_cast<std::uint16_t>(at));
        }
        // A count is int8 whatever it counts.
        if (width == 2 && combinable(Combination::Kind::count, described[column.hidden + 1].type,
                                     described[column.hidden + 1].type) != Combinable::exactly)
            return disagree("A partial count is not a bigint.");
        combined_.push_back(i);
        combinations.push_back(combination);
    }
    if (!combinations.empty()) sums_.emplace(std::move(combinations));
    extremes_.resize(visible_);
    return std::nullopt;
}

std::optional<Refusal> AggregateMerge::over_budget() const {
    if (bounds_.max_groups != 0 && groups_.size() > bounds_.max_groups) {
        Refusal refusal =
            make_refusal(Code::row_budget, "the answer has more groups than the router keeps",
                         "Ask for fewer groups, with WHERE or LIMIT; the limit is the setting "
                         "scatter.max_groups.");
        refusal.detail = format("There are more than %llu groups.",
                                static_cast<unsigned long long>(bounds_.max_groups));
        return refusal;
    }
    if (bounds_.max_bytes != 0 && held_ + (sums_ ? sums_->bytes() : 0) > bounds_.max_bytes)
        return make_refusal(Code::row_budget, "the groups are larger than the router keeps",
                            "Ask for fewer groups, with WHERE or LIMIT.");
    return std::nullopt;
}

std::vector<Field> AggregateMerge::partials() const {
    std::vector<Field> values;
    values.reserve(partial_columns_.size());
    for (const std::uint16_t column : partial_columns_)
        values.push_back(row_[column]);
    return values;
}

std::optional<Refusal> AggregateMerge::add(std::string_view body) {
    if (!split_row(body, row_) || row_.size() != columns_)
        return disagree("A row has other columns than were described.");
    std::string_view key;
    if (scatter_.grouped) {
        if (!row_[visible_]) return disagree("A row has no merge key.");
        key = *row_[visible_];
    }
    for (std::size_t i = 0; i < visible_; ++i)
        if (is_extreme(scatter_.columns[i].kind) && row_[i] && !row_[scatter_.columns[i].hidden])
            return disagree("A value has no sort key.");

    if (seen_ == 0 || key != key_) {
        ++seen_;
        key_.assign(key);
        rows_ = 0;
        if (bounds_.limit && seen_ > bounds_.offset && seen_ - bounds_.offset > *bounds_.limit)
            beyond_ = true;
    }
    ++rows_;
    if (!wanted()) return std::nullopt;
    if (rows_ == 1)
        begin_group();
    else
        add_to_group();
    return over_budget();
}

void AggregateMerge::begin_group() {
    Group &group = groups_.emplace_back();
    group.values.reserve(visible_);
    for (std::size_t i = 0; i < visible_; ++i) {
        group.values.emplace_back(row_[i]);
        held_ += sizeof(Value) + (row_[i] ? row_[i]->size() : 0);
        if (is_extreme(scatter_.columns[i].kind))
            extremes_[i].assign(row_[scatter_.columns[i].hidden].value_or(std::string_view()));
    }
    first_partials_.clear();
    for (const Field &partial : partials())
        first_partials_.emplace_back(partial);
}

void AggregateMerge::add_to_group() {
    Group &group = groups_.back();
    for (std::size_t i = 0; i < visible_; ++i) {
        const PartialColumn &column = scatter_.columns[i];
        // As the aggregate itself, NULLs (of shards without a value) do not count.
        if (!is_extreme(column.kind) || !row_[i]) continue;
        const std::string_view key = *row_[column.hidden];
        Value &held = group.values[i];
        const bool better = !held || (column.kind == PartialColumn::Kind::min ? key < extremes_[i]
                                                                              : key > extremes_[i]);
        if (!better) continue;
        held_ += row_[i]->size();
        held_ -= held ? held->size() : 0;
        held = std::string(*row_[i]);
        extremes_[i].assign(key);
    }
    if (!sums_) return;
    if (rows_ == 2) {
        several_.push_back(static_cast<std::uint32_t>(groups_.size() - 1));
        const std::vector<Field> first(first_partials_.begin(), first_partials_.end());
        sums_->add(static_cast<std::uint32_t>(several_.size() - 1), first);
    }
    sums_->add(static_cast<std::uint32_t>(several_.size() - 1), partials());
}

bool AggregateMerge::request(Buffer &out) {
    if (!sums_) return false;
    const std::optional<PartialSums::Groups> groups = sums_->request(out);
    if (!groups) return false;
    asked_ = groups->end;
    return true;
}

std::optional<Refusal> AggregateMerge::take(std::string_view body) {
    if (taken_ == asked_ || !split_row(body, row_) || row_.size() != combined_.size())
        return disagree("The shard that combines partial values gave other rows than it was "
                        "asked for.");
    Group &group = groups_[several_[taken_++]];
    for (std::size_t i = 0; i < combined_.size(); ++i) {
        Value &value = group.values[combined_[i]];
        if (row_[i])
            value = std::string(*row_[i]);
        else
            value.reset();
    }
    return std::nullopt;
}

std::optional<Refusal> AggregateMerge::answered() const {
    if (taken_ == asked_) return std::nullopt;
    return disagree(
        "The shard that combines partial values gave fewer rows than it was asked for.");
}

bool AggregateMerge::next(std::string_view &body) {
    if (given_ == groups_.size()) return false;
    Group group = std::move(groups_[given_++]);
    out_.clear();
    const auto append32 = [&](std::uint32_t value) {
        wire::store32(out_.prepare(4), value);
        out_.commit(4);
    };
    wire::store16(out_.prepare(2), static_cast<std::uint16_t>(visible_));
    out_.commit(2);
    for (const Value &value : group.values) {
        append32(value ? static_cast<std::uint32_t>(value->size()) : 0xFFFFFFFFU);
        if (value) out_.append(*value);
    }
    body = out_.view();
    return true;
}

}  // namespace interlock
