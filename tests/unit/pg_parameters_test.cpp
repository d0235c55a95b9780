#include "session/pg_client.h"
#include "session/pg_parameters.h"

#include <gtest/gtest.h>

namespace interlock {
namespace {

TEST(PgParameters, AreFoundInAnyCaseAndTheReportedOnesComeFirst) {
    ASSERT_NE(find_tracked("timezone"), nullptr);
    EXPECT_EQ(find_tracked("TIMEZONE"), find_tracked("TimeZone"));
    EXPECT_EQ(find_tracked("role"), nullptr);
    EXPECT_EQ(find_tracked("transform_null_equals"), nullptr);
    EXPECT_EQ(find_tracked(""), nullptr);
    bool reported = true;
    for (const TrackedParameter &parameter : tracked_parameters()) {
        EXPECT_TRUE(reported || !parameter.reported) << parameter.name;
        reported = parameter.reported;
    }
}

TEST(PgParameters, EqualSetsAreOneSet) {
    ParameterSets sets;
    const auto *zone = find_tracked("TimeZone");
    const auto *memory = find_tracked("work_mem");
    const Parameters one = sets.with(sets.with(nullptr, zone, "UTC"), memory, "1MB");
    const Parameters other = sets.with(sets.with(nullptr, memory, "1MB"), zone, "UTC");
    EXPECT_EQ(one, other);
    EXPECT_NE(one, sets.with(one, zone, "Asia/Tokyo"));
    EXPECT_EQ(sets.without(sets.without(one, zone), memory), nullptr);
    EXPECT_EQ(sets.without(nullptr, zone), nullptr);
    EXPECT_EQ(*value_in(one, memory), "1MB");
    EXPECT_EQ(value_in(nullptr, memory), nullptr);
}

TEST(PgParameters, OnlyDifferencesAreSent) {
    ParameterSets sets;
    const auto *zone = find_tracked("TimeZone");
    const auto *name = find_tracked("application_name");
    const Parameters from = sets.with(sets.with(nullptr, zone, "UTC"), name, "a");
    const Parameters to = sets.with(sets.with(nullptr, find_tracked("work_mem"), "1MB"), name, "a");
    EXPECT_EQ(change_parameters_sql(from, from), "");
    EXPECT_EQ(change_parameters_sql(from, nullptr), "RESET application_name;RESET TimeZone;");
    EXPECT_EQ(change_parameters_sql(from, to),
              "RESET TimeZone;SELECT pg_catalog.set_config('work_mem', '1MB', false)");
    EXPECT_EQ(change_parameters_sql(nullptr, sets.with(nullptr, name, "it's")),
              "SELECT pg_catalog.set_config('application_name', 'it''s', false)");
}

TEST(PgParameters, EncodingsWhoseCharactersHoldAsciiAreUnsafe) {
    for (const char *unsafe : {"SJIS", "shift_jis", "BIG5", "gbk", "GB18030", "UHC", "JOHAB",
                               "SHIFT_JIS_2004", "Win949"})
        EXPECT_FALSE(safe_client_encoding(unsafe)) << unsafe;
    for (const char *safe : {"UTF8", "utf-8", "UNICODE", "LATIN1", "WIN1252", "EUC_JP", "KOI8R"})
        EXPECT_TRUE(safe_client_encoding(safe)) << safe;
}

TEST(PgParameters, AWordStandsAtTheBeginning) {
    EXPECT_TRUE(begins_with_word("  START transaction", "start"));
    EXPECT_FALSE(begins_with_word("restart", "start"));
    EXPECT_FALSE(begins_with_word("", "start"));
}

std::string column(std::uint32_t table, std::uint32_t type, std::uint32_t modifier,
                   std::uint16_t format) {
    Buffer out;
    wire::FrameWriter(out, 'T')
        .int16(1)
        .string("c")
        .int32(table)
        .int16(1)
        .int32(type)
        .int16(8)
        .int32(modifier)
        .int16(format);
    return std::string(out.view().substr(wire::frame_header));
}

TEST(ResultFingerprint, KnowsTypesAndNothingElse) {
    const std::uint64_t one = result_fingerprint(column(16384, 20, 0xFFFFFFFF, 0));
    EXPECT_NE(one, 0U);
    EXPECT_EQ(one, result_fingerprint(column(99999, 20, 0xFFFFFFFF, 1)));
    EXPECT_NE(one, result_fingerprint(column(16384, 23, 0xFFFFFFFF, 0)));
    EXPECT_NE(one, result_fingerprint(column(16384, 20, 5, 0)));
    EXPECT_NE(one, result_fingerprint(""));
    EXPECT_NE(result_fingerprint(""), 0U);
    // Types of users have other numbers on each shard.
    EXPECT_EQ(result_fingerprint(column(1, 16390, 0, 0)),
              result_fingerprint(column(1, 17000, 0, 0)));
    EXPECT_NE(result_fingerprint("\x7f"), 0U);  // cut off: some number, no read beyond the end
}

}  // namespace
}  // namespace interlock
