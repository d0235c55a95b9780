// Aggregates over shards: rows of a group put together, partial values handed to PostgreSQL.
#include "session/scatter_aggregate.h"

#include "wire/frame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace interlock {
namespace {

using sql::PartialColumn;
using Kind = PartialColumn::Kind;

constexpr std::uint32_t int8_oid = 20, text_oid = 25, float8_oid = 701, interval_oid = 1186,
                        numeric_oid = 1700;

struct Column {
    std::string name;
    std::uint32_t type;
    std::uint16_t format;
};
std::string description(const std::vector<Column> &columns) {
    Buffer out;
    {
        wire::FrameWriter frame(out, 'T');
        frame.int16(static_cast<std::uint16_t>(columns.size()));
        for (const Column &column : columns)
            frame.string(column.name)
                .int32(0)
                .int16(0)
                .int32(column.type)
                .int16(8)
                .int32(0xFFFFFFFFU)
                .int16(column.format);
    }
    return std::string(out.view().substr(wire::frame_header));
}

using Values = std::vector<std::optional<std::string>>;
std::string row(const Values &values) {
    Buffer out;
    {
        wire::FrameWriter frame(out, 'D');
        frame.int16(static_cast<std::uint16_t>(values.size()));
        for (const auto &value : values) {
            frame.int32(value ? static_cast<std::uint32_t>(value->size()) : 0xFFFFFFFFU);
            if (value) frame.bytes(*value);
        }
    }
    return std::string(out.view().substr(wire::frame_header));
}
const std::optional<std::string> null;

/// A scatter of these kinds of columns; hidden columns in order, after the merge key.
sql::Scatter scatter(const std::vector<Kind> &kinds, bool grouped) {
    sql::Scatter made;
    made.kind = sql::ScatterKind::aggregate;
    made.grouped = grouped;
    made.hidden = grouped ? 1 : 0;
    for (const Kind kind : kinds) {
        PartialColumn column;
        column.kind = kind;
        column.hidden = static_cast<std::uint16_t>(kinds.size() + made.hidden);
        if (kind != Kind::group) ++made.hidden;
        if (kind == Kind::average) ++made.hidden;
        made.columns.push_back(column);
    }
    return made;
}

/// The bodies of the frames a request holds, by type.
std::string body_of(const Buffer &request, char type) {
    Buffer rest;
    rest.append(request.view());
    wire::Frame frame;
    while (wire::peek_frame(rest, std::size_t{1} << 30, frame) == wire::FrameState::ready) {
        if (frame.type == type) return std::string(frame.body);
        rest.consume(frame.size);
    }
    return {};
}

/// The arrays a Bind holds: "int8{1,NULL}" with the elements' bytes.
struct Array {
    std::uint32_t type = 0;
    bool has_null = false;
    Values elements;
};
std::vector<Array> arrays_of(const std::string &bind, std::vector<std::uint16_t> *formats) {
    wire::FieldReader reader(bind);
    EXPECT_EQ(reader.string(), "");
    EXPECT_EQ(reader.string(), "");
    EXPECT_EQ(reader.int16(), 1);
    EXPECT_EQ(reader.int16(), 1);
    std::vector<Array> found(reader.int16());
    for (Array &array : found) {
        const std::uint32_t size = reader.int32();
        wire::FieldReader inside(reader.bytes(size));
        EXPECT_EQ(inside.int32(), 1U);
        array.has_null = inside.int32() == 1;
        array.type = inside.int32();
        const std::uint32_t count = inside.int32();
        EXPECT_EQ(inside.int32(), 1U);
        for (std::uint32_t i = 0; i < count; ++i) {
            const std::uint32_t length = inside.int32();
            if (length == 0xFFFFFFFFU)
                array.elements.emplace_back();
            else
                array.elements.emplace_back(std::string(inside.bytes(length)));
        }
        EXPECT_TRUE(inside.ok() && inside.at_end());
    }
    formats->resize(reader.int16());
    for (std::uint16_t &format : *formats)
        format = reader.int16();
    EXPECT_TRUE(reader.ok() && reader.at_end());
    return found;
}

std::string position(std::uint32_t value) {
    std::string bytes(4, '\0');
    wire::store32(bytes.data(), value);
    return bytes;
}

std::vector<Values> rows_of(AggregateMerge &merge) {
    std::vector<Values> found;
    std::string_view body;
    while (merge.next(body)) {
        std::vector<Field> fields;
        EXPECT_TRUE(split_row(body, fields));
        Values values;
        for (const Field &field : fields)
            values.emplace_back(field ? std::optional<std::string>(std::string(*field))
                                      : std::nullopt);
        found.push_back(std::move(values));
    }
    return found;
}

bool add(AggregateMerge &merge, const Values &values) {
    const auto refusal = merge.add(row(values));
    return !refusal.has_value();
}

/// g, count(*), min(x): text columns; key, count (binary), sort key hidden.
struct Grouped : testing::Test {
    sql::Scatter facts = scatter({Kind::group, Kind::count, Kind::min}, true);
    std::string columns = description({{"g", text_oid, 0},
                                       {"count", int8_oid, 0},
                                       {"min", text_oid, 0},
                                       {"k", text_oid, 0},
                                       {"c", int8_oid, 1},
                                       {"m", text_oid, 0}});
};

TEST_F(Grouped, AGroupOfOneShardPassesAsItCame) {
    AggregateMerge merge(facts, {});
    ASSERT_FALSE(merge.describe(columns));
    ASSERT_TRUE(add(merge, {"a", "2", "x", "01", "B2", "78"}));
    ASSERT_TRUE(add(merge, {null, "3", null, "02", "B3", "ff"}));
    Buffer out;
    EXPECT_FALSE(merge.request(out));  // nothing to combine: no shard is asked
    EXPECT_TRUE(out.empty());
    EXPECT_EQ(rows_of(merge), (std::vector<Values>{{"a", "2", "x"}, {null, "3", null}}));
}

TEST_F(Grouped, PartialsOfSeveralShardsGoToPostgresByGroup) {
    AggregateMerge merge(facts, {});
    ASSERT_FALSE(merge.describe(columns));
    ASSERT_TRUE(add(merge, {"a", "2", "x", "01", "B2", "78"}));
    ASSERT_TRUE(add(merge, {"b", "1", "q", "02", "B1", "71"}));
    ASSERT_TRUE(add(merge, {"b", "4", "p", "02", "B4", "70"}));
    ASSERT_TRUE(add(merge, {"b", "5", "r", "02", "B5", "72"}));
    ASSERT_TRUE(add(merge, {"c", "7", "z", "03", "B7", "7a"}));
    ASSERT_TRUE(add(merge, {"c", "8", "y", "03", "B8", "79"}));
    Buffer out;
    ASSERT_TRUE(merge.request(out));
    std::vector<std::uint16_t> formats;
    const std::vector<Array> arrays = arrays_of(body_of(out, 'B'), &formats);
    ASSERT_EQ(arrays.size(), 2U);
    EXPECT_EQ(arrays[0].elements,
              (Values{position(0), position(0), position(0), position(1), position(1)}));
    EXPECT_EQ(arrays[1].type, int8_oid);
    EXPECT_FALSE(arrays[1].has_null);
    EXPECT_EQ(arrays[1].elements, (Values{"B1", "B4", "B5", "B7", "B8"}));
    EXPECT_EQ(formats, std::vector<std::uint16_t>{0});
    EXPECT_TRUE(merge.answered());  // nothing came yet
    ASSERT_FALSE(merge.take(row({"10"})));
    ASSERT_FALSE(merge.take(row({"15"})));
    EXPECT_FALSE(merge.answered());
    EXPECT_TRUE(merge.take(row({"16"})));  // one too many
    EXPECT_FALSE(merge.request(out));
    EXPECT_EQ(rows_of(merge),
              (std::vector<Values>{{"a", "2", "x"}, {"b", "10", "p"}, {"c", "15", "y"}}));
}

TEST_F(Grouped, OffsetAndLimitCountGroups) {
    AggregateBounds bounds;
    bounds.offset = 1;
    bounds.limit = 2;
    AggregateMerge merge(facts, bounds);
    ASSERT_FALSE(merge.describe(columns));
    for (const char *key : {"01", "02", "03", "04", "05"})
        for (int shard = 0; shard < 2; ++shard)
            ASSERT_TRUE(add(merge, {key, "1", null, key, "B1", "ff"}));
    Buffer out;
    ASSERT_TRUE(merge.request(out));
    std::vector<std::uint16_t> formats;
    EXPECT_EQ(arrays_of(body_of(out, 'B'), &formats)[0].elements.size(), 4U);  // of two groups only
    ASSERT_FALSE(merge.take(row({"2"})));
    ASSERT_FALSE(merge.take(row({"2"})));
    EXPECT_EQ(rows_of(merge), (std::vector<Values>{{"02", "2", null}, {"03", "2", null}}));
}

TEST_F(Grouped, LimitZeroGivesNothing) {
    AggregateBounds bounds;
    bounds.limit = 0;
    AggregateMerge merge(facts, bounds);
    ASSERT_FALSE(merge.describe(columns));
    ASSERT_TRUE(add(merge, {"a", "1", null, "01", "B1", "ff"}));
    EXPECT_TRUE(rows_of(merge).empty());
}

TEST_F(Grouped, MoreGroupsOrBytesThanTheBudgetAreRefused) {
    AggregateBounds bounds;
    bounds.max_groups = 2;
    AggregateMerge merge(facts, bounds);
    ASSERT_FALSE(merge.describe(columns));
    ASSERT_TRUE(add(merge, {"a", "1", null, "01", "B1", "ff"}));
    ASSERT_TRUE(add(merge, {"b", "1", null, "02", "B1", "ff"}));
    ASSERT_TRUE(add(merge, {"b", "1", null, "02", "B1", "ff"}));
    const auto refusal = merge.add(row({"c", "1", null, "03", "B1", "ff"}));
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->code, Code::row_budget);

    bounds = {};
    bounds.max_bytes = 10000;
    AggregateMerge wide(facts, bounds);
    ASSERT_FALSE(wide.describe(columns));
    ASSERT_TRUE(add(wide, {"a", "1", null, "01", "B1", "ff"}));
    const auto too_wide = wide.add(row({std::string(10000, 'x'), "1", null, "02", "B1", "ff"}));
    ASSERT_TRUE(too_wide);
    EXPECT_EQ(too_wide->code, Code::row_budget);
}

TEST_F(Grouped, RowsThatAreNotWhatWasDescribedAreRefused) {
    AggregateMerge merge(facts, {});
    ASSERT_FALSE(merge.describe(columns));
    for (const std::string &bad :
         {row({"a", "1", null, "01", "B1"}), row({"a", "1", null, null, "B1", "ff"}),
          row({"a", "1", "x", "01", "B1", null}), row({"a", "1", null, "01", "B1", "ff"}) + "x",
          std::string("\0\6", 2), std::string()}) {
        const auto refusal = merge.add(bad);
        ASSERT_TRUE(refusal) << bad;
        EXPECT_EQ(refusal->code, Code::shards_disagree);
    }
}

TEST(ScatterAggregate, OneRowWithoutGroups) {
    const sql::Scatter facts =
        scatter({Kind::max, Kind::sum, Kind::min, Kind::average, Kind::count}, false);
    AggregateMerge merge(facts, {});
    ASSERT_FALSE(merge.describe(description({{"max", text_oid, 0},
                                             {"sum", numeric_oid, 1},
                                             {"min", text_oid, 1},
                                             {"avg", interval_oid, 0},
                                             {"count", int8_oid, 1},
                                             {"h1", text_oid, 0},
                                             {"h2", numeric_oid, 1},
                                             {"h3", text_oid, 0},
                                             {"h4", interval_oid, 1},
                                             {"h5", int8_oid, 1},
                                             {"h6", int8_oid, 1}})));
    ASSERT_TRUE(add(merge, {null, null, null, null, "0", "ff", null, "ff", null, "N0", "C0"}));
    ASSERT_TRUE(add(merge, {"x", "S", "x", "A", "0", "78", "S1", "78", "I1", "N1", "C1"}));
    ASSERT_TRUE(add(merge, {"y", "S", "y", "A", "0", "79", "S2", "79", "I2", "N2", "C2"}));
    ASSERT_TRUE(add(merge, {null, "S", null, "A", "0", "ff", "S3", "ff", "I3", "N3", "C3"}));
    Buffer out;
    ASSERT_TRUE(merge.request(out));
    const std::string parse_body = body_of(out, 'P');
    wire::FieldReader parse(parse_body);
    EXPECT_EQ(parse.string(), "");
    EXPECT_EQ(
        parse.string(),
        "SELECT pg_catalog.sum(p1), pg_catalog.sum(p2) OPERATOR(pg_catalog./) "
        "pg_catalog.sum(p3)::pg_catalog.float8, pg_catalog.sum(p4)::pg_catalog.int8 "
        "FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), "
        "pg_catalog.unnest($4), pg_catalog.unnest($5)) AS t(g, p1, p2, p3, p4) "
        "GROUP BY g ORDER BY g");
    std::vector<std::uint32_t> types(parse.int16());
    for (std::uint32_t &type : types)
        type = parse.int32();
    EXPECT_EQ(types, (std::vector<std::uint32_t>{1007, 1231, 1187, 1016, 1016}));
    std::vector<std::uint16_t> formats;
    const std::vector<Array> arrays = arrays_of(body_of(out, 'B'), &formats);
    EXPECT_EQ(formats, (std::vector<std::uint16_t>{1, 0, 1}));
    ASSERT_EQ(arrays.size(), 5U);
    EXPECT_TRUE(arrays[1].has_null);
    EXPECT_EQ(arrays[1].elements, (Values{null, "S1", "S2", "S3"}));
    EXPECT_EQ(arrays[3].elements, (Values{"N0", "N1", "N2", "N3"}));
    EXPECT_FALSE(arrays[3].has_null);
    ASSERT_FALSE(merge.take(row({"SUM", null, "COUNT"})));
    EXPECT_EQ(rows_of(merge), (std::vector<Values>{{"y", "SUM", "x", null, "COUNT"}}));
}

TEST(ScatterAggregate, AnExtremeOfNullsIsNull) {
    const sql::Scatter facts = scatter({Kind::max, Kind::min}, false);
    AggregateMerge merge(facts, {});
    ASSERT_FALSE(merge.describe(description(
        {{"max", text_oid, 0}, {"min", text_oid, 0}, {"h1", text_oid, 0}, {"h2", text_oid, 0}})));
    ASSERT_TRUE(add(merge, {null, null, "ff", "ff"}));
    ASSERT_TRUE(add(merge, {null, null, "ff", "ff"}));
    EXPECT_EQ(rows_of(merge), (std::vector<Values>{{null, null}}));
}

TEST(ScatterAggregate, SortKeysCompareAsUnsignedBytes) {
    const sql::Scatter facts = scatter({Kind::max, Kind::min}, false);
    AggregateMerge merge(facts, {});
    ASSERT_FALSE(merge.describe(description(
        {{"max", text_oid, 0}, {"min", text_oid, 0}, {"h1", text_oid, 0}, {"h2", text_oid, 0}})));
    for (const char *key : {"\x7f", "\xff", "\x01", "\x80"})
        ASSERT_TRUE(add(merge, {key, key, key, key}));
    EXPECT_EQ(rows_of(merge), (std::vector<Values>{{"\xff", "\x01"}}));
}

TEST(ScatterAggregate, FloatingPointSumsAreRefusedBeforeAnyRow) {
    for (const Kind kind : {Kind::sum, Kind::average}) {
        const sql::Scatter facts = scatter({kind}, false);
        AggregateMerge merge(facts, {});
        std::vector<Column> columns{{"total", float8_oid, 0}, {"h1", float8_oid, 1}};
        if (kind == Kind::average) columns.push_back({"h2", int8_oid, 1});
        const auto refusal = merge.describe(description(columns));
        ASSERT_TRUE(refusal);
        EXPECT_EQ(refusal->code, Code::scatter_unsupported);
        EXPECT_NE(refusal->detail.find("\"total\""), std::string::npos);
        EXPECT_NE(refusal->hint.find("::numeric"), std::string::npos);
    }
}

TEST(ScatterAggregate, OtherTypesAreRefused) {
    const auto code = [](Kind kind, const std::vector<Column> &columns) {
        const sql::Scatter facts = scatter({kind}, false);
        AggregateMerge merge(facts, {});
        const auto refusal = merge.describe(description(columns));
        return refusal ? refusal->code : Code::R01;
    };
    EXPECT_EQ(code(Kind::sum, {{"s", 99999, 0}, {"h", 99999, 1}}), Code::scatter_unsupported);
    EXPECT_EQ(code(Kind::sum, {{"s", 1700, 0}, {"h", 20, 1}}), Code::scatter_unsupported);
    EXPECT_EQ(code(Kind::average, {{"a", 790, 0}, {"h", 790, 1}, {"n", 20, 1}}),
              Code::scatter_unsupported);
    EXPECT_EQ(code(Kind::count, {{"c", 1700, 0}, {"h", 1700, 1}}), Code::scatter_unsupported);
    EXPECT_EQ(code(Kind::average, {{"a", 1700, 0}, {"h", 20, 1}, {"n", 1700, 1}}),
              Code::shards_disagree);
    EXPECT_EQ(code(Kind::sum, {{"s", 20, 0}, {"h", 20, 0}}), Code::shards_disagree);
    EXPECT_EQ(code(Kind::sum, {{"s", 20, 0}}), Code::shards_disagree);
    EXPECT_EQ(code(Kind::sum, {{"s", 20, 0}, {"h", 20, 1}, {"more", 20, 1}}),
              Code::shards_disagree);
    EXPECT_EQ(code(Kind::sum, {{"s", 20, 0}, {"h", 20, 1}}), Code::R01);
    EXPECT_EQ(code(Kind::sum, {{"s", 790, 0}, {"h", 790, 1}}), Code::R01);
    EXPECT_EQ(code(Kind::average, {{"a", 1700, 0}, {"h", 20, 1}, {"n", 20, 1}}), Code::R01);
}

TEST(ScatterAggregate, ManyGroupsGoInBatchesOfWholeGroups) {
    const sql::Scatter facts = scatter({Kind::group, Kind::sum}, true);
    AggregateMerge merge(facts, {});
    ASSERT_FALSE(merge.describe(description(
        {{"g", text_oid, 0}, {"sum", numeric_oid, 0}, {"k", text_oid, 0}, {"h", numeric_oid, 1}})));
    constexpr int groups = 300;
    const std::string wide(1000, 'n');
    for (int i = 0; i < groups; ++i) {
        const std::string key = std::to_string(1000 + i);
        for (int shard = 0; shard <= i % 3; ++shard)
            ASSERT_TRUE(add(merge, {key, "one", key, wide}));
    }
    int batches = 0;
    std::uint32_t next = 0;
    Buffer out;
    while (merge.request(out)) {
        ++batches;
        EXPECT_EQ(body_of(out, 'P').empty(), batches > 1);  // parsed once
        EXPECT_LT(out.size(), 2 * PartialSums::batch_bytes);
        std::vector<std::uint16_t> formats;
        const std::vector<Array> arrays = arrays_of(body_of(out, 'B'), &formats);
        std::vector<std::uint32_t> positions;
        for (const auto &element : arrays[0].elements)
            if (const std::uint32_t at = wire::load32(element->data());
                positions.empty() || positions.back() != at)
                positions.push_back(at);
        for (const std::uint32_t at : positions) {
            EXPECT_EQ(at, next++);
            ASSERT_FALSE(merge.take(row({"sum" + std::to_string(at)})));
        }
        EXPECT_FALSE(merge.answered());
        out.clear();
    }
    EXPECT_GT(batches, 1);
    const std::vector<Values> rows = rows_of(merge);
    ASSERT_EQ(rows.size(), static_cast<std::size_t>(groups));
    std::uint32_t combined = 0;
    for (int i = 0; i < groups; ++i) {
        EXPECT_EQ(*rows[i][0], std::to_string(1000 + i));
        EXPECT_EQ(*rows[i][1], i % 3 == 0 ? "one" : "sum" + std::to_string(combined++));
    }
}

}  // namespace
}  // namespace interlock
