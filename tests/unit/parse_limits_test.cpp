// Deep and long statements: refused by a bound, or parsed and analysed within the stack.
#include "analysis_cases.h"
#include "sql/parse_limits.h"

namespace interlock::test {
namespace {

std::string repeat(std::string_view text, std::size_t times) {
    std::string result;
    result.reserve(text.size() * times);
    for (std::size_t i = 0; i < times; ++i)
        result += text;
    return result;
}

/// SQLSTATE of the refusal, or "accepted".
std::string outcome(const std::string &text) {
    const auto result = analyse_text(text);
    return result ? "accepted" : std::string(result.error().state());
}

std::uint32_t nesting(std::string_view text) {
    return sql::pre_scan(text).nesting;
}

// One construct, repeated: each in the largest number that is allowed, and in far too many.
struct Construct {
    const char *name;
    const char *before;
    const char *again;
    const char *middle;
    const char *close;
    const char *after;
    std::size_t units;  ///< of depth, each time
};

std::string build_text(const Construct &c, std::size_t times) {
    return std::string(c.before) + repeat(c.again, times) + c.middle + repeat(c.close, times) +
           c.after;
}

const Construct constructs[] = {
    {"sum", "select 1", "+1", "", "", "", 1},
    {"power", "select 2", "^2", "", "", "", 1},
    {"concatenation", "select 'a'", "||'b'", "", "", "", 2},
    {"comparison", "select 1", " is null", "", "", "", 1},
    {"cast", "select 1", "::int", "", "", "", 2},
    {"minus", "select ", "- ", "1", "", "", 1},
    {"parentheses", "select ", "(", "1", ")", "", 1},
    {"sum in parentheses", "select ", "(1+", "1", ")", "", 2},
    {"not", "select ", "not ", "true", "", "", 1},
    {"not in parentheses", "select ", "not (", "true", ")", "", 2},
    {"call", "select ", "abs(", "1", ")", "", 1},
    {"coalesce", "select ", "coalesce(", "1", ")", "", 1},
    {"row", "select ", "row(", "1", ")", "", 1},
    {"array", "select array", "[", "1", "]", "", 1},
    {"subscript", "select a", "[b", "", "]", " from (values(1)) v(a)", 1},
    {"case", "select ", "case when ", "true", " then true end", "", 1},
    {"case in else", "select ", "case when true then true else ", "true", " end", "", 1},
    {"sub-select", "select ", "(select ", "1", ")", "", 1},
    {"sub-select in FROM", "", "select * from (", "select 1", ") x", "", 1},
    {"exists", "select ", "exists(select ", "1", ")", "", 1},
    {"in sub-select", "select ", "1 in (select ", "1", ")", "", 2},
    {"with", "", "with a as (", "select 1", ") select 1", "", 1},
    {"union", "select 1", " union all select 1", "", "", "", 1},
    {"join", "select 1 from pg_class a", " cross join pg_class b", "", "", "", 1},
    {"nested join", "select 1 from ", "(pg_class a cross join ", "pg_class b", ")", "", 2},
    {"or in and", "select ", "(true and (false or ", "true", "))", "", 2},
    {"between", "select 1", " between 1 and 2 is null", "", "", "", 2},
    {"collate", "select 'a'", " collate \"C\"", "", "", "", 1},
    {"at time zone", "select now()", " at time zone 'UTC'", "", "", "", 1},
    {"any", "select ", "1 = any(array[", "1", "])", "", 3},
    {"filter", "select ", "count(*) filter (where 1 < ", "1", ")", "", 3},
    {"window", "select ", "count(*) over (order by ", "1", ")", "", 2},
    {"atomic body", "", "create function f() returns int begin atomic ", "select 1;", " end;", "",
     1},
    {"case without a case", "select ", "(1) case, (case when ", "true", " then 1 end)", "", 1},
    {"number with a dot", "select 1", " is null and 1. is null", "", "", "", 0},
};

void PrintTo(const Construct &construct, std::ostream *out) {
    *out << construct.name;
}

class Depth : public ::testing::TestWithParam<Construct> {};

TEST_P(Depth, IsBoundedBeforeTheParserSeesIt) {
    const Construct &c = GetParam();
    if (c.units == 0) return;
    // Ten thousand of them, one after another as short as can be, would overrun any ordinary stack.
    EXPECT_EQ(outcome(build_text(c, 3000)), "54001");
    const std::string state = outcome(build_text(c, 20000));
    EXPECT_TRUE(state == "54001" || state == "54000") << state;  // deep, or longer than allowed
    EXPECT_GT(nesting(build_text(c, 20000)), sql::max_nesting);
}

TEST_P(Depth, WithinTheBoundFitsTheStack) {
    const Construct &c = GetParam();
    std::size_t times = sql::max_nesting;
    while (times > 0 && nesting(build_text(c, times)) > sql::max_nesting)
        --times;
    const std::string state = outcome(build_text(c, times));
    EXPECT_NE(state, "54001") << times;
    // Small depths are for ordinary statements.
    EXPECT_GE(times, 180U);
    RecordProperty("times", static_cast<int>(times));
}

INSTANTIATE_TEST_SUITE_P(Constructs, Depth, ::testing::ValuesIn(constructs), [](const auto &info) {
    std::string name = info.param.name;
    for (char &c : name)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
    return name;
});

TEST(ParseLimits, FortyEightKilobytesOfSumsAreRefused) {
    EXPECT_EQ(outcome("select 1" + repeat("+1", 24 * 1024)), "54001");
}

TEST(ParseLimits, ListsAreNoDepth) {
    EXPECT_EQ(outcome("select * from account where account_id = 1 and (false" +
                      repeat(" or balance = 1", 8000) + ")"),
              "accepted");
    EXPECT_EQ(
        outcome("select * from account where account_id = 1" + repeat(" and balance <> 1", 8000)),
        "accepted");
    EXPECT_EQ(outcome("select * from account where account_id in (1" + repeat(",1", 10000) + ")"),
              "accepted");
    EXPECT_EQ(outcome("insert into account values (1,'a',0,0)" + repeat(",(1,'a',0,0)", 10000)),
              "accepted");
    EXPECT_EQ(outcome("insert into account values ($1,'a',0,0)" + repeat(",($1,-1+2,0,0)", 10000)),
              "accepted");
    EXPECT_EQ(outcome("select 1" + repeat(", 1 + 1", 5000)), "accepted");
    EXPECT_EQ(outcome("select case" + repeat(" when 1 = 1 then 2", 5000) + " else 3 end"),
              "accepted");
    EXPECT_EQ(outcome(repeat("select 1 + 1;", 3000)), "accepted");
    EXPECT_EQ(outcome("select 1" + repeat(" union all select 1", 900)), "accepted");
}

TEST(ParseLimits, ALongLiteralIsNoLongStatement) {
    EXPECT_EQ(outcome("select '" + repeat("1+", 1 << 20) + "'"), "accepted");
    EXPECT_EQ(outcome("select $x$" + repeat("((", 1 << 20) + "$x$"), "accepted");
}

TEST(ParseLimits, ALongShapeIsRefused) {
    EXPECT_EQ(outcome("select 1" + repeat(", a", 200 * 1024)), "54000");
    EXPECT_EQ(outcome("select " + repeat("a", 257 * 1024)), "54000");
}

TEST(ParseLimits, WordsInStringsNamesAndCommentsDoNotCount) {
    EXPECT_LE(nesting("select 'not not not ((((', \"case case ((((\", $$((($$, E'\\'(((' -- ((("),
              3U);
    EXPECT_LE(nesting("select /* ((( /* ((( */ ((( */ 1"), 3U);
    EXPECT_LE(nesting("select E'a'\n  '\\'(((('"), 3U);
    EXPECT_LE(nesting("select U&'\\0041(((' , n'(((', b'0'"), 3U);
}

TEST(ParseLimits, AWordBehindADotIsAName) {
    EXPECT_GE(nesting("select " + repeat("case a.end when ", 100) + "1"), 100U);
    EXPECT_GE(nesting("select 1. is null is null is null"), 3U);
    EXPECT_GE(nesting("select * from a join b on 1. join c on 1. join d on 1. = 1"), 4U);
}

TEST(ParseLimits, OtherStacksAreUntouched) {
    // Run twice, deep and shallow by turns, from a second thread too.
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(outcome("select " + repeat("(1+", 400) + "1" + repeat(")", 400)), "accepted");
        EXPECT_EQ(outcome("select 1"), "accepted");
    }
}

TEST(ParseLimits, HintsAreFound) {
    const auto hints = sql::pre_scan("/* interlock: primary */ select 1 /*other*/ "
                                     "/*Interlock:shard=s1*/ -- interlock: no")
                           .hints;
    ASSERT_EQ(hints.size(), 2U);
    EXPECT_EQ(hints[0].text, "primary");
    EXPECT_EQ(hints[1].text, "shard=s1");
    EXPECT_EQ(hints[1].offset, 44U);
}

}  // namespace
}  // namespace interlock::test
