// The pure parts of a scatter: order of the merge, checks of keys, rows and descriptions as bytes,
// pages that are held.
#include "session/scatter_merge.h"
#include "session/scatter_page.h"
#include "session/scatter_row.h"

#include "fake_shard.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace interlock {
namespace {

using Keys = std::vector<std::string>;

/// All keys of the streams, in the order of the merge; `tied` counts how often the least head had
/// an equal among the others.
Keys merge(const std::vector<Keys> &streams, int *tied = nullptr) {
    MergeOrder order(streams.size());
    std::vector<std::size_t> at(streams.size(), 0);
    const auto show = [&](std::size_t i) {
        if (at[i] < streams[i].size())
            order.head(i, streams[i][at[i]]);
        else
            order.end(i);
    };
    for (std::size_t i = 0; i < streams.size(); ++i)
        show(i);
    Keys merged;
    for (std::size_t i = order.least(); i != MergeOrder::none; i = order.least()) {
        if (tied != nullptr && order.rival() != MergeOrder::none) ++*tied;
        merged.emplace_back(order.key(i));
        ++at[i];
        show(i);
    }
    return merged;
}

TEST(MergeOrder, TakesTheLeastKeyOfAnyNumberOfStreams) {
    std::minstd_rand random(7);
    for (std::size_t count = 1; count <= 17; ++count) {
        std::vector<Keys> streams(count);
        Keys all;
        for (int i = 0; i < 200; ++i) {
            const std::string key = std::to_string(random() % 100);
            streams[random() % count].push_back(key);
            all.push_back(key);
        }
        for (Keys &stream : streams)
            std::sort(stream.begin(), stream.end());
        std::sort(all.begin(), all.end());
        EXPECT_EQ(merge(streams), all) << count << " streams";
    }
}

TEST(MergeOrder, ComparesBytesAndLengths) {
    const Keys sorted = {"00", "0000", "0a", "7f", "80", "ff"};
    EXPECT_EQ(merge({{"0a", "80"}, {"00", "ff"}, {"0000", "7f"}}), sorted);
}

TEST(MergeOrder, EmptyStreamsAndNone) {
    EXPECT_EQ(merge({{}, {"b"}, {}}), Keys{"b"});
    EXPECT_EQ(merge({{}, {}}), Keys{});
    EXPECT_EQ(merge({}), Keys{});
}

TEST(MergeOrder, EqualHeadsComeInTheOrderOfTheStreamsAndAreToldOf) {
    MergeOrder order(5);
    for (std::size_t i = 0; i < 5; ++i)
        order.head(i, i == 0 ? "z" : "a");
    EXPECT_EQ(order.least(), 1U);
    EXPECT_NE(order.rival(), MergeOrder::none);
    EXPECT_NE(order.rival(), 1U);
    for (std::size_t i = 1; i < 4; ++i) {
        EXPECT_EQ(order.least(), i);
        order.end(i);
    }
    EXPECT_EQ(order.least(), 4U);
    EXPECT_EQ(order.rival(), MergeOrder::none);
    int tied = 0;
    (void)merge({{"a", "c"}, {"b"}, {"c"}}, &tied);
    EXPECT_EQ(tied, 1);
}

TEST(KeyCheck, KeysRiseAndBeginWithTheDigest) {
    KeyCheck check;
    EXPECT_EQ(check.take("aa01", "aa"), KeyFault::none);
    EXPECT_EQ(check.take("aa0100", "aa"), KeyFault::none);
    EXPECT_EQ(check.take("aa0100", "aa"), KeyFault::repeats);
    EXPECT_EQ(check.take("aa00", "aa"), KeyFault::falls);
    EXPECT_EQ(check.take("ab02", "aa"), KeyFault::digest);
    EXPECT_EQ(check.take("a", "aa"), KeyFault::malformed);
    EXPECT_EQ(check.take("", ""), KeyFault::malformed);
    EXPECT_EQ(check.take("aa02", "aa"), KeyFault::none);
}

// Rows --------------------------------------------------------------------------------------------

using Value = std::optional<std::string>;

std::string row_of(const std::vector<Value> &values) {
    Buffer out;
    {
        wire::FrameWriter row(out, 'D');
        row.int16(static_cast<std::uint16_t>(values.size()));
        for (const Value &value : values) {
            if (value)
                row.int32(static_cast<std::uint32_t>(value->size())).bytes(*value);
            else
                row.int32(0xFFFFFFFFU);
        }
    }
    return std::string(out.view().substr(wire::frame_header));
}

struct Col {
    std::string name;
    std::uint32_t type = 25;
    std::uint16_t format = 0;
};

std::string description_of(const std::vector<Col> &columns) {
    Buffer out;
    {
        wire::FrameWriter description(out, 'T');
        description.int16(static_cast<std::uint16_t>(columns.size()));
        for (const Col &column : columns)
            description.string(column.name)
                .int32(16400)
                .int16(1)
                .int32(column.type)
                .int16(8)
                .int32(0xFFFFFFFFU)
                .int16(column.format);
    }
    return std::string(out.view().substr(wire::frame_header));
}

std::string visible(std::string_view body, std::uint16_t columns, std::uint16_t hidden) {
    RowParts parts;
    if (!split_row(body, columns, hidden, parts)) return "malformed";
    std::string out;
    visible_row(body, parts, static_cast<std::uint16_t>(columns - hidden), out);
    return out;
}

TEST(ScatterRow, HiddenColumnsAreTakenOff) {
    const std::string whole = row_of({"a", std::nullopt, "", "00ff", "x"});
    EXPECT_EQ(visible(whole, 5, 2), row_of({"a", std::nullopt, ""}));
    EXPECT_EQ(visible(whole, 5, 5), row_of({}));
    EXPECT_EQ(visible(whole, 5, 0), whole);
    RowParts parts;
    ASSERT_TRUE(split_row(whole, 5, 2, parts));
    EXPECT_TRUE(parts.has_key);
    EXPECT_EQ(parts.key, "00ff");
    ASSERT_TRUE(split_row(row_of({"a", std::nullopt}), 2, 1, parts));
    EXPECT_FALSE(parts.has_key);
}

TEST(ScatterRow, WhatIsNoRowIsNotTaken) {
    const std::string whole = row_of({"abc", std::nullopt, "00ff"});
    RowParts parts;
    EXPECT_FALSE(split_row(whole, 4, 1, parts));
    EXPECT_FALSE(split_row(whole, 2, 1, parts));
    EXPECT_FALSE(split_row(whole + "x", 3, 1, parts));
    for (std::size_t size = 0; size < whole.size(); ++size)
        EXPECT_FALSE(split_row(std::string_view(whole).substr(0, size), 3, 1, parts)) << size;
}

TEST(ScatterRow, DescriptionsAgreeInNamesBuiltInTypesAndFormats) {
    const std::string one = description_of({{"a", 20}, {"b", 16500}, {"key", 25}});
    EXPECT_EQ(describe_difference(one, one), "");
    EXPECT_EQ(describe_difference(one, description_of({{"a", 20}, {"b", 17000}, {"key", 25}})), "");
    EXPECT_NE(describe_difference(one, description_of({{"a", 23}, {"b", 16500}, {"key", 25}})), "");
    EXPECT_NE(describe_difference(one, description_of({{"a", 20}, {"b", 25}, {"key", 25}})), "");
    EXPECT_NE(describe_difference(one, description_of({{"a", 20}, {"c", 16500}, {"key", 25}})), "");
    EXPECT_NE(describe_difference(one, description_of({{"a", 20, 1}, {"b", 16500}, {"key", 25}})),
              "");
    EXPECT_NE(describe_difference(one, description_of({{"a", 20}, {"b", 16500}})), "");
    EXPECT_NE(describe_difference(one, one.substr(0, one.size() - 1)), "");
}

TEST(ScatterRow, ADescriptionLosesItsHiddenColumns) {
    const std::string whole = description_of({{"a", 20}, {"", 25, 1}, {"key", 25}});
    EXPECT_EQ(visible_description(whole, 1), description_of({{"a", 20}, {"", 25, 1}}));
    EXPECT_EQ(visible_description(whole, 3), description_of({}));
    EXPECT_EQ(visible_description(whole, 0), whole);
}

// Pages -------------------------------------------------------------------------------------------

TEST(LastRows, KeepsTheLastOnesInOrder) {
    LastRows last(3);
    Keys kept;
    const auto look = [&] {
        kept.clear();
        for (std::size_t i = 0; i < last.size(); ++i)
            kept.emplace_back(last[i]);
        return kept;
    };
    last.add("a");
    last.add("bb");
    EXPECT_EQ(look(), (Keys{"a", "bb"}));
    EXPECT_EQ(last.bytes(), 3U);
    for (const char *row : {"ccc", "d", "e", "ffff", "g"})
        last.add(row);
    EXPECT_EQ(look(), (Keys{"e", "ffff", "g"}));
    EXPECT_EQ(last.bytes(), 6U);
    LastRows none(0);
    none.add("a");
    EXPECT_EQ(none.size(), 0U);
}

TEST(PageRewrite, APageWithoutAShardHasNoCursorAndSaysSo) {
    sql::PageColumns columns;
    columns.cursor = {1};
    columns.complete = {2};
    columns.missing_shards = {3};
    const Keys missing = {"s2", "s 3"};
    for (const std::uint16_t format : {0, 1}) {
        const auto rewrite =
            PageRewrite::find(columns, description_of({{"id", 20},
                                                       {"cursor", 25},
                                                       {"complete", 16, format},
                                                       {"missing_shards", 1009, format}}));
        ASSERT_TRUE(rewrite);
        std::string out;
        rewrite->rewrite(row_of({"7", "c1", format == 0 ? "t" : "\1", "{}"}), missing, out);
        const std::string expected =
            format == 0 ? row_of({"7", std::nullopt, "f", "{s2,\"s 3\"}"})
                        : row_of({"7", std::nullopt, std::string(1, '\0'), array_binary(missing)});
        EXPECT_EQ(out, expected);
    }
}

TEST(PageRewrite, ColumnsBehindAnOpenPlaceAreFoundByTheWidthOfTheAnswer) {
    sql::PageColumns columns;
    columns.open = 1;  // id, (item).*, cursor
    columns.known = 2;
    columns.cursor = {1};
    const auto rewrite =
        PageRewrite::find(columns, description_of({{"id"}, {"a"}, {"b"}, {"cursor"}}));
    ASSERT_TRUE(rewrite);
    std::string out;
    rewrite->rewrite(row_of({"1", "2", "3", "c"}), {}, out);
    EXPECT_EQ(out, row_of({"1", "2", "3", std::nullopt}));
}

TEST(PageRewrite, WhatIsNotWhatItShouldBeIsNotRewritten) {
    sql::PageColumns columns;
    columns.cursor = {0};
    EXPECT_FALSE(PageRewrite::find(columns, description_of({{"cursor", 20}})));
    columns.cursor = {4};
    EXPECT_FALSE(PageRewrite::find(columns, description_of({{"cursor", 25}})));
    columns.cursor = {};
    EXPECT_TRUE(PageRewrite::find(columns, description_of({{"id", 20}})));
    columns.in_expressions = true;
    EXPECT_FALSE(PageRewrite::find(columns, description_of({{"id", 20}})));
}

TEST(PageRewrite, ArraysAreSpelledAsPostgreSQLSpellsThem) {
    EXPECT_EQ(array_text({}), "{}");
    EXPECT_EQ(array_text(Keys{"s1", "", "NULL", "a,b", "q\"\\"}),
              "{s1,\"\",\"NULL\",\"a,b\",\"q\\\"\\\\\"}");
    EXPECT_EQ(array_binary({}), std::string("\0\0\0\0\0\0\0\0\0\0\0\x19", 12));
    EXPECT_EQ(array_binary(Keys{"s1"}), std::string("\0\0\0\1\0\0\0\0\0\0\0\x19\0\0\0\1\0\0\0\1"
                                                    "\0\0\0\2s1",
                                                    26));
}

}  // namespace
}  // namespace interlock
