// Shapes: where literals are, what stays in the shape, which texts share one, what literals spell.
#include "sql/shape.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace interlock::sql {

static void PrintTo(LiteralKind kind, std::ostream *out) {
    *out << static_cast<int>(kind);
}

namespace {

using enum LiteralKind;

Shape shape(std::string_view text) {
    Shape made;
    make_shape(text, made);
    return made;
}

std::string key(std::string_view text) {
    return shape(text).text;
}

struct Found {
    std::string text;
    LiteralKind kind;
    bool operator==(const Found &) const = default;
};
void PrintTo(const Found &found, std::ostream *out) {
    *out << found.text << " of kind ";
    PrintTo(found.kind, out);
}

std::vector<Found> literals(std::string_view text) {
    std::vector<Found> found;
    for (const Literal &literal : shape(text).literals)
        found.push_back({std::string(text.substr(literal.offset, literal.length)), literal.kind});
    return found;
}
using Literals = std::vector<Found>;

TEST(Shape, NumbersAreWhatTheScannerTakesForNumbers) {
    EXPECT_EQ(literals("select 1, 2.5, .5, 1., 1e3, 1.e-3, .5E+10"),
              (Literals{{"1", integer},
                        {"2.5", number},
                        {".5", number},
                        {"1.", number},
                        {"1e3", number},
                        {"1.e-3", number},
                        {".5E+10", number}}));
    EXPECT_EQ(literals("1..10"), (Literals{{"1", integer}, {"10", integer}}));
    EXPECT_EQ(literals("1...5"), (Literals{{"1", integer}, {".5", number}}));
    EXPECT_EQ(literals("1.5.6"), (Literals{{"1.5", number}, {".6", number}}));
    EXPECT_EQ(literals("a.b.5"), (Literals{{".5", number}}));
    EXPECT_EQ(literals("1e"), (Literals{{"1", integer}}));
    EXPECT_EQ(literals("1e+"), (Literals{{"1", integer}}));
    EXPECT_EQ(literals("1e+a"), (Literals{{"1", integer}}));
    EXPECT_EQ(literals("0x1F"), (Literals{{"0", integer}}));
    EXPECT_EQ(literals("-7"), (Literals{{"7", integer}}));
    EXPECT_EQ(literals("."), Literals{});
}

TEST(Shape, DigitsInWordsAndParametersAreNoLiterals) {
    EXPECT_EQ(literals("a1 _2 a$3 é4 $5 $67 \"8\""), Literals{});
    EXPECT_EQ(literals("$1$2"), Literals{});
    EXPECT_EQ(literals("1$2"), (Literals{{"1", integer}}));
    EXPECT_EQ(literals("[1:2]"), (Literals{{"1", integer}, {"2", integer}}));
    EXPECT_NE(key("select $1"), key("select $2"));
    EXPECT_NE(key("select $1"), key("select $01"));
}

TEST(Shape, StringsEndWhereTheScannerEndsThem) {
    EXPECT_EQ(literals("'' 'a' 'it''s' '\\'"),
              (Literals{{"''", string}, {"'a'", string}, {"'it''s'", string}, {"'\\'", string}}));
    EXPECT_EQ(literals("E'a\\'b' e'\\\\' E''''"),
              (Literals{{"E'a\\'b'", escape}, {"e'\\\\'", escape}, {"E''''", escape}}));
    EXPECT_EQ(
        literals("b'01' X'1f' N'n''n' u&'\\0061'''"),
        (Literals{
            {"b'01'", other}, {"X'1f'", other}, {"N'n''n'", other}, {"u&'\\0061'''", other}}));
    // A bit string does not know doubled quotes, and a longer word is no prefix.
    EXPECT_EQ(literals("b'0''1'"), (Literals{{"b'0'", other}, {"'1'", string}}));
    EXPECT_EQ(literals("fe'a\\'"), (Literals{{"'a\\'", string}}));
    EXPECT_EQ(literals("xu&'a'"), (Literals{{"'a'", string}}));
    EXPECT_EQ(literals("a&'b'"), (Literals{{"'b'", string}}));
    EXPECT_EQ(literals("e 'a\\'"), (Literals{{"'a\\'", string}}));
    EXPECT_EQ(literals("u& 'a'"), (Literals{{"'a'", string}}));
    EXPECT_EQ(literals("'--' '/*' '$$'"),
              (Literals{{"'--'", string}, {"'/*'", string}, {"'$$'", string}}));
}

TEST(Shape, PiecesAcrossALineBreakAreOneLiteral) {
    for (const char *text :
         {"'a'\n'b'", "'a'\r'b'", "'a' \t\n \n 'b'", "'a' -- why\n'b'", "'a'--\n--\n \f'b'",
          "E'a'\n'\\''", "N'a'\n'b'", "u&'a'\n'b'", "x'a'\n'b'", "'a'\n'b' \n 'c'"})
        EXPECT_EQ(literals(text), (Literals{{text, other}})) << text;
    EXPECT_EQ(literals("'a' 'b'"), (Literals{{"'a'", string}, {"'b'", string}}));
    EXPECT_EQ(literals("'a' /* \n */ 'b'"), (Literals{{"'a'", string}, {"'b'", string}}));
    EXPECT_EQ(literals("'a' -\n'b'"), (Literals{{"'a'", string}, {"'b'", string}}));
    EXPECT_EQ(literals("'a'\nb'1'"), (Literals{{"'a'", string}, {"b'1'", other}}));
    EXPECT_EQ(literals("'a' -- b"), (Literals{{"'a'", string}}));
    EXPECT_EQ(literals("$$a$$\n'b'"), (Literals{{"$$a$$", dollar}, {"'b'", string}}));
}

TEST(Shape, DollarQuotesEndWithTheirOwnTag) {
    EXPECT_EQ(literals("$$a$$"), (Literals{{"$$a$$", dollar}}));
    EXPECT_EQ(literals("$a$ $$ $b$ $A$ $a$"), (Literals{{"$a$ $$ $b$ $A$ $a$", dollar}}));
    EXPECT_EQ(literals("$a$$b$a$"), (Literals{{"$a$$b$a$", dollar}}));
    EXPECT_EQ(literals("$$a$b$$"), (Literals{{"$$a$b$$", dollar}}));
    EXPECT_EQ(literals("$é1$'$é1$"), (Literals{{"$é1$'$é1$", dollar}}));
    EXPECT_EQ(literals("a$$b$$"), Literals{});
    EXPECT_EQ(literals("1$$b$$"), (Literals{{"1", integer}, {"$$b$$", dollar}}));
    EXPECT_EQ(literals("$1$$b$$"), (Literals{{"$$b$$", dollar}}));
    EXPECT_EQ(literals("$a 1"), (Literals{{"1", integer}}));
    EXPECT_EQ(literals("$a b$"), Literals{});
    EXPECT_EQ(literals("$1a$ '$1a$'"), (Literals{{"'$1a$'", string}}));
}

TEST(Shape, CommentsAndQuotedNamesHideWhatIsInThem) {
    EXPECT_EQ(literals("a -- 'b' 1\n, 2"), (Literals{{"2", integer}}));
    EXPECT_EQ(literals("a /* 1 /* 2 */ 3 */ 4"), (Literals{{"4", integer}}));
    EXPECT_EQ(literals("a /*/ 1 */ 4"), (Literals{{"4", integer}}));
    EXPECT_EQ(literals("a /***/ 4 /*/**/*/ 5"), (Literals{{"4", integer}, {"5", integer}}));
    EXPECT_EQ(literals("a+-- 1\n2"), (Literals{{"2", integer}}));
    EXPECT_EQ(literals("a+/* 1 */2"), (Literals{{"2", integer}}));
    EXPECT_EQ(literals("a*/*1*/2"), (Literals{{"2", integer}}));
    EXPECT_EQ(literals("a - - 1"), (Literals{{"1", integer}}));
    EXPECT_EQ(literals("\"a\"\"1'\" '2'"), (Literals{{"'2'", string}}));
    EXPECT_EQ(literals("U&\"a'\" '2'"), (Literals{{"'2'", string}}));
    EXPECT_EQ(literals("\"--\" 1"), (Literals{{"1", integer}}));
}

TEST(Shape, ValuesLayoutCommentsAndCaseDoNotMatter) {
    const std::string usual = key("select a from t where k = 1 and b = 'x'");
    for (const char *same : {"SELECT a FROM t WHERE k = 2 AND b = ''",
                             "  select\ta\nfrom t\f where k = 003 and b = 'it''s; -- $1'\r\n",
                             "select a/**/from t where/*x*/k = 1 and b = 'x' -- the end",
                             "-- first\nselect a from T where K = 2147483647 and b = 'é'"})
        EXPECT_EQ(key(same), usual) << same;
}

TEST(Shape, WhatTheAnalysisCanTellApartIsKeptApart) {
    const std::vector<std::vector<const char *>> apart = {
        {"select 1", "select 1.0", "select '1'", "select E'1'", "select $$1$$", "select $1",
         "select b'1'", "select x'1'", "select n'1'", "select u&'1'", "select '1'\n'1'",
         "select \"1\"", "select 2147483648", "select 9223372036854775808", "select a",
         "select -1"},
        {"a b", "ab", "a.b", "a . b", "\"a b\"", "\"A b\"", "U&\"a b\""},
        {"a+-1", "a + -1", "a +- 1", "a+ -1", "a - 1", "a--1\n"},
        {"a<b", "a< b", "a<=b", "a< =b"},
        {"1 a", "1a", "1e", "1 e", "1e1 a"},
        {"select $a", "select $ a", "select $1a", "select $1 a"},
        {"a", "a /* interlock: x */", "a /* interlock: y */", "/* interlock: x */ a",
         "a /*interlock: x */"},
        {"a", "a;", "a; b", ";a", "a;;"},
        {"a\x01", "a\x01\x01", "a", "a 1"},
        {"'a'", "'a", "E'a"},
        {"a", "a /*", "a \"", "a $$"},
    };
    for (const auto &texts : apart)
        for (std::size_t i = 0; i < texts.size(); ++i)
            for (std::size_t k = 0; k < i; ++k)
                EXPECT_NE(key(texts[i]), key(texts[k])) << texts[i] << "  and  " << texts[k];
}

TEST(Shape, AnIntegersTypeIsPartOfTheShape) {
    EXPECT_EQ(key("1"), key("2147483647"));
    EXPECT_EQ(key("1"), key("0000000000000000000000000000000000000000000001"));
    EXPECT_EQ(key("0"), key("000"));
    EXPECT_EQ(key("2147483648"), key("9223372036854775807"));
    EXPECT_EQ(key("9223372036854775808"), key(std::string(50, '9')));
}

TEST(Shape, LiteralsThatDecideWhatIsParsedStayInIt) {
    // The name is d!0061 or da.
    EXPECT_NE(key("select u&\"d!0061\" uescape '!'"), key("select u&\"d!0061\" uescape '@'"));
    EXPECT_NE(key("select u&\"d!0061\" UESCAPE/* */'!'"), key("select u&\"d!0061\" uescape '@'"));
    // float4 or float8.
    EXPECT_NE(key("select float(10) '1'"), key("select float(30) '1'"));
    EXPECT_NE(key("select a::FLOAT /**/ ( 10)"), key("select a::FLOAT /**/ ( 30)"));
    // They count as literals all the same.
    EXPECT_EQ(literals("select u&\"d!0061\" uescape '!', 1"),
              (Literals{{"'!'", string}, {"1", integer}}));
    EXPECT_EQ(key("select float(10) '1'"), key("select float(10) '2'"));
    EXPECT_EQ(key("select float8(10)"), key("select float8(30)"));
    EXPECT_EQ(key("select float + (10)"), key("select float + (30)"));
}

TEST(Shape, BytesBeyondAsciiBelongToWords) {
    EXPECT_EQ(literals("é1 \xFF\x80 2"), (Literals{{"2", integer}}));
    EXPECT_NE(key("É"), key("é"));
    EXPECT_NE(key("a\xC2\xA0 b"), key("a b"));  // a no-break space is no white space
    EXPECT_NE(key("a\vb"), key("a b"));         // nor is a vertical tab, to PostgreSQL 15
}

TEST(Shape, UnfinishedTextsAreRecognised) {
    for (const char *text :
         {"'",       "'a",    "'a''", "E'a\\'",  "E'\\",   "e'\\\\\\'", "\"a",
          "\"a\"\"", "U&\"a", "u&'a", "b'0",     "x'",     "/*",        "/* /* */",
          "/*/",     "/* *",  "$$",   "$a$ $b$", "$a$ $a", "'a'\n'b"})
        EXPECT_FALSE(shape(text).complete) << text;
    for (const char *text : {"", " ", "''", "''''", "\"\"", "/**/", "--", "-- '", "$", "$a", "$1$",
                             "a$$", "'a' -- '", "'a'\n"})
        EXPECT_TRUE(shape(text).complete) << text;
    EXPECT_NE(key("select 1 /*"), key("select 1 "));
}

TEST(Shape, CountsStatements) {
    EXPECT_EQ(shape("").statements, 1);
    EXPECT_EQ(shape(" ; ;").statements, 1);
    EXPECT_EQ(shape("a").statements, 1);
    EXPECT_EQ(shape("a;").statements, 1);
    EXPECT_EQ(shape("a; -- b\n ;").statements, 1);
    EXPECT_EQ(shape("; a").statements, 1);
    EXPECT_EQ(shape("a; /* interlock: b */").statements, 1);
    EXPECT_EQ(shape("/* interlock: b */ a").statements, 1);
    EXPECT_EQ(shape("a /* interlock: b */; c").statements, 2);
    EXPECT_EQ(shape("a;b").statements, 2);
    EXPECT_EQ(shape("a;;1").statements, 2);
    EXPECT_EQ(shape("a; b; c;").statements, 3);
    EXPECT_EQ(shape("a ';' \";\" $$;$$ /*;*/ -- ;").statements, 1);
}

TEST(Shape, StorageIsKeptFromOneStatementToTheNext) {
    Shape reused;
    make_shape("select a, 'b', 1, 2, 3 from a_table_with_a_rather_long_name", reused);
    const char *text = reused.text.data();
    const Literal *literals = reused.literals.data();
    make_shape("select c, 'd', 4 from another_table", reused);
    EXPECT_EQ(reused.text.data(), text);
    EXPECT_EQ(reused.literals.data(), literals);
    EXPECT_EQ(reused.literals.size(), 2U);
    make_shape("'", reused);
    EXPECT_FALSE(reused.complete);
    make_shape("a", reused);
    EXPECT_TRUE(reused.complete);
    EXPECT_EQ(reused.text, "a");
    EXPECT_TRUE(reused.literals.empty());
}

/// What the only literal of `text` spells, or "none".
std::string value(std::string_view text) {
    const Shape made = shape(text);
    EXPECT_EQ(made.literals.size(), 1U) << text;
    std::string scratch;
    const auto decoded = literal_value(text, made.literals.at(0), scratch);
    return decoded ? std::string(*decoded) : "none";
}

TEST(LiteralValue, OfNumbersIsTheirText) {
    EXPECT_EQ(value("select 0042"), "0042");
    EXPECT_EQ(value("select 1.5e3"), "1.5e3");
}

TEST(LiteralValue, OfPlainStringsKeepsBackslashes) {
    EXPECT_EQ(value("''"), "");
    EXPECT_EQ(value("'a'"), "a");
    EXPECT_EQ(value("''''"), "'");
    EXPECT_EQ(value("'it''s ''so'''"), "it's 'so'");
    EXPECT_EQ(value("'a\\n'"), "a\\n");
    EXPECT_EQ(value("'\\x61'"), "\\x61");
}

TEST(LiteralValue, OfDollarQuotesIsUntouched) {
    EXPECT_EQ(value("$$$$"), "");
    EXPECT_EQ(value("$$it's \\ $x$$"), "it's \\ $x");
    EXPECT_EQ(value("$ab$$$$ab$"), "$$");
}

TEST(LiteralValue, OfEscapeStringsIsDecoded) {
    EXPECT_EQ(value("E''"), "");
    EXPECT_EQ(value("E'abc'"), "abc");
    EXPECT_EQ(value("e'a''b\\'c\\\\'"), "a'b'c\\");
    EXPECT_EQ(value("E'\\b\\f\\n\\r\\t'"), "\b\f\n\r\t");
    EXPECT_EQ(value("E'\\q\\a\\\n'"), "qa\n");
    EXPECT_EQ(value("E'\\101\\60\\1014\\7'"), "A0A4\a");
    EXPECT_EQ(value("E'\\501'"), "A");  // the value of a byte: modulo 256
    EXPECT_EQ(value("E'\\x41\\x4a\\x4\\x411\\xg'"), "AJ\x04"
                                                    "A1xg");
    EXPECT_EQ(value("E'\\u0041\\u00e9\\u20AC\\U0001F600'"), "Aé€😀");
    EXPECT_EQ(value("E'\\uD83D\\uDE00\\ud83d\\U0000de00'"), "😀😀");
    EXPECT_EQ(value("E'\\u00411'"), "A1");
    EXPECT_EQ(value("E'\\é'"), "é");
}

TEST(LiteralValue, OfWhatPostgresRefusesOrReadsByItsOwnEncodingIsNone) {
    for (const char *text : {"E'\\0'",
                             "E'\\000'",
                             "E'\\400'",
                             "E'\\x0'",
                             "E'\\200'",
                             "E'\\777'",
                             "E'\\xe9'",
                             "E'\\u'",
                             "E'\\u004'",
                             "E'\\u004g'",
                             "E'\\u0000'",
                             "E'\\U00110000'",
                             "E'\\uD83D'",
                             "E'\\uD83D\\n'",
                             "E'\\uD83Dx'",
                             "E'\\uDE00'",
                             "E'\\uDE00\\uD83D'",
                             "E'\\uD83D\\uD83D'",
                             "E'\\UFFFFFFFF'",
                             "E'a\\v'"})
        EXPECT_EQ(value(text), "none") << text;
    for (const char *text : {"b'0'", "x'0'", "n'a'", "u&'a'", "'a'\n'b'", "E'a'\n'b'"})
        EXPECT_EQ(value(text), "none") << text;
}

TEST(LiteralValue, OfALiteralOfAnotherTextIsNone) {
    std::string scratch;
    EXPECT_FALSE(literal_value("abc", {2, 2, string}, scratch));
    EXPECT_FALSE(literal_value("abc", {4, 0, string}, scratch));
    EXPECT_FALSE(literal_value("a", {0, 1, string}, scratch));
    EXPECT_FALSE(literal_value("ab", {0, 2, escape}, scratch));
    EXPECT_FALSE(literal_value("$$", {0, 2, dollar}, scratch));
    EXPECT_FALSE(literal_value("a'b'", {0, 4, string}, scratch));
}

}  // namespace
}  // namespace interlock::sql
