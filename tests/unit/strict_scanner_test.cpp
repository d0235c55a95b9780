// The scanner of the strict profile: tokens, and the checks that come before the grammar, in order.
#include "sql/strict_scanner.h"

#include <gtest/gtest.h>

#include <string>

namespace interlock::sql {
namespace {

/// Kinds as letters: w word, q quoted, l literal, p placeholder, s symbol, e end; or the code.
std::string kinds(std::string_view text) {
    const auto tokens = scan_strict(text);
    if (!tokens) return std::string(code_entry(tokens.error().code).name);
    std::string letters;
    for (const Token &token : *tokens)
        letters += "wqlpse"[static_cast<int>(token.kind)];
    return letters;
}

Refusal refusal_of(std::string_view text) {
    auto tokens = scan_strict(text);
    if (tokens) return Refusal{};
    return tokens.error();
}

TEST(StrictScanner, CutsATextIntoTokens) {
    const auto tokens = scan_strict("update account\tset b=b-?\nwhere k$1 = ?");
    ASSERT_TRUE(tokens);
    std::vector<std::string> texts;
    for (const Token &token : *tokens)
        texts.emplace_back(token.text);
    EXPECT_EQ(texts, (std::vector<std::string>{"update", "account", "set", "b", "=", "b", "-", "?",
                                               "where", "k$1", "=", "?", ""}));
    EXPECT_EQ(kinds("update account\tset b=b-?\nwhere k$1 = ?"), "wwwwswspwwspe");
    EXPECT_EQ((*tokens)[7].offset, 23U);
}

TEST(StrictScanner, EveryKindOfBlankSeparates) {
    EXPECT_EQ(kinds("a\tb\nc\rd\fe\vf g"), "wwwwwwwe");
    EXPECT_EQ(kinds(""), "e");
    EXPECT_EQ(kinds(" \n\t "), "e");
    // A no-break space is a letter of an identifier to PostgreSQL, too.
    EXPECT_EQ(kinds("a\xC2\xA0"
                    "b"),
              "we");
}

TEST(StrictScanner, CommentsAndSemicolonsComeFirst) {
    EXPECT_EQ(kinds("select 1 -- x"), "R23");
    EXPECT_EQ(kinds("select 1 /* x"), "R23");
    EXPECT_EQ(kinds("/**/"), "R23");
    EXPECT_EQ(kinds("--"), "R23");
    EXPECT_EQ(kinds("select 1;"), "R22");
    EXPECT_EQ(kinds(";"), "R22");
    EXPECT_EQ(kinds("drop table account;"), "R22");
    EXPECT_EQ(kinds("drop table account -- now"), "R23");
    EXPECT_EQ(kinds("set x = 'a'; --"), "R22");
    EXPECT_EQ(kinds("set x = 'a' -- ;"), "R23");
    EXPECT_EQ(kinds("a - - b"), "wsswe");
    EXPECT_EQ(kinds("a / * b"), "wsswe");
    EXPECT_EQ(kinds("a */ b"), "wsswe");
}

TEST(StrictScanner, InsideStringsCommentsAndSemicolonsAreText) {
    // What is left is R28 for the literal, or R01 for the quoted identifier.
    for (const char *text : {"select '--'", "select ';'", "select '/*'", "select ''';--'",
                             "select E'\\';--'", "select $$;--$$", "select $a$;$$--$a$",
                             "select U&';'", "select B'1;'", "select x'--'", "select n';'"})
        EXPECT_EQ(kinds(text), "R28") << text;
    EXPECT_EQ(kinds("select \";--\""), "R01");
    EXPECT_EQ(kinds("select U&\";--\""), "R01");
    EXPECT_EQ(kinds("select \"a\"\";--\""), "R01");
    // A backslash does not escape in a plain string: the string ends at the second quote.
    EXPECT_EQ(kinds("select '\\';--'"), "R22");
    // A word that only ends in e is no E'...' string.
    EXPECT_EQ(kinds("select whee'\\';'"), "R22");
    // A delimiter cannot begin within an identifier.
    EXPECT_EQ(kinds("select a$b$;"), "R22");
}

TEST(StrictScanner, WhatIsNotTerminatedIsR01) {
    for (const char *text :
         {"select '", "select 'a''", "select \"", "select \"a\"\"", "select e'\\'", "select $$",
          "select $a$ $$ $b$", "select U&'", "select U&\"", "'"})
        EXPECT_EQ(kinds(text), "R01") << text;
    // A comment sign inside it stays inside.
    EXPECT_EQ(kinds("select '--"), "R01");
    EXPECT_EQ(kinds("select $$ ;"), "R01");
}

TEST(StrictScanner, NumbersAreLiterals) {
    for (const char *text : {"1", "1.", ".1", "1.5", "1e3", "1E+3", "1e-3", "1e", "0x1F", "1_000",
                             "1a", "1.2.3", "12$"})
        EXPECT_EQ(kinds(std::string("a = ") + text), "R28") << text;
    EXPECT_EQ(kinds("a1 b_2 c$3"), "wwwe");
    EXPECT_EQ(kinds("a . b"), "wswe");
}

TEST(StrictScanner, ParametersWithDollarsAreNotPlaceholders) {
    EXPECT_EQ(kinds("a = $1"), "R28");
    EXPECT_EQ(kinds("a = $ 1"), "R28");
    EXPECT_EQ(kinds("a = $"), "wsse");
}

TEST(StrictScanner, TheFirstWordPicksOutDdl) {
    for (const char *word :
         {"create", "alter", "drop", "truncate", "comment", "grant", "revoke", "reindex", "vacuum",
          "analyze", "analyse", "cluster", "refresh", "import", "reassign", "security"}) {
        EXPECT_EQ(kinds(std::string(word) + " x"), "R24") << word;
        EXPECT_EQ(kinds(std::string(word) + " 'x' \"y\" join select"), "R24") << word;
        EXPECT_EQ(kinds(std::string("a ") + word), "wwe") << word;
    }
    EXPECT_EQ(kinds("DROP TABLE account"), "R24");
    EXPECT_EQ(kinds("DrOp"), "R24");
    EXPECT_EQ(kinds("\"drop\" table account"), "R01");
}

TEST(StrictScanner, TheFirstWordPicksOutSessionState) {
    for (const char *word :
         {"set",        "reset",   "show",       "listen",  "unlisten",  "notify",
          "prepare",    "execute", "deallocate", "discard", "savepoint", "release",
          "lock",       "declare", "fetch",      "move",    "close",     "load",
          "checkpoint", "start",   "end",        "abort"}) {
        EXPECT_EQ(kinds(std::string(word) + " x"), "R25") << word;
        EXPECT_EQ(kinds(word), "R25") << word;
    }
    EXPECT_EQ(kinds("SET statement_timeout = '1s'"), "R25");
    for (const char *word : {"begin", "commit", "rollback"}) {
        EXPECT_EQ(kinds(word), "we");
        EXPECT_EQ(kinds(std::string(word) + " work"), "R25");
        EXPECT_EQ(kinds(std::string(word) + " 1"), "R25");
        EXPECT_EQ(kinds(std::string(word) + " \"x\""), "R25");
    }
    EXPECT_EQ(kinds("rollback to savepoint a"), "R25");
    EXPECT_EQ(kinds("begin isolation level serializable"), "R25");
}

TEST(StrictScanner, TheFirstWordPicksOutStatementsOfOtherKinds) {
    for (const char *word : {"copy", "explain", "call", "do", "merge", "values", "table"}) {
        EXPECT_EQ(kinds(std::string(word) + " select 1"), "R01") << word;
        EXPECT_EQ(kinds(std::string("a ") + word), "wwe") << word;
    }
}

TEST(StrictScanner, ThenLiteralsQuotedNamesJoinsAndFurtherSelectsInThisOrder) {
    EXPECT_EQ(kinds("select select join \"q\" 1"), "R28");
    EXPECT_EQ(kinds("select select join \"q\""), "R01");
    EXPECT_EQ(kinds("select select join"), "R20");
    EXPECT_EQ(kinds("select select"), "R21");
    for (const char *word : {"union", "intersect", "except", "with", "select"})
        EXPECT_EQ(kinds(std::string("a ") + word), "R21") << word;
    EXPECT_EQ(kinds("with a"), "R21");
    EXPECT_EQ(kinds("a JoIn b"), "R20");
    EXPECT_EQ(kinds("a joined b"), "wwwe");
}

TEST(StrictScanner, ConstantsAreLiteralsUnlessTheyBelongToACondition) {
    for (const char *word : {"null", "true", "false", "NULL", "True"})
        EXPECT_EQ(kinds(std::string("a = ") + word), "R28") << word;
    EXPECT_EQ(kinds("a is null"), "wwwe");
    EXPECT_EQ(kinds("a is not null"), "wwwwe");
    EXPECT_EQ(kinds("a is true"), "wwwe");
    EXPECT_EQ(kinds("nulls"), "we");
}

TEST(StrictScanner, PositionsCountCharactersFromOne) {
    EXPECT_EQ(refusal_of("--").position, 1);
    EXPECT_EQ(refusal_of("select 1").position, 8);
    EXPECT_EQ(refusal_of("äöü 1").position, 5);
    EXPECT_EQ(refusal_of("\xF0\x9F\x9A\x82 \xE2\x82\xAC ;").position, 5);
    EXPECT_EQ(refusal_of("  drop").position, 3);
    EXPECT_EQ(refusal_of("a 'ü' ;").position, 7);
    EXPECT_EQ(refusal_of("a join").position, 3);
    EXPECT_EQ(refusal_of("é \"q\"").position, 3);
}

TEST(StrictScanner, RefusalsSayWhatAndHowToDoBetter) {
    const Refusal refusal = refusal_of("select 1");
    EXPECT_EQ(refusal.code, Code::R28);
    EXPECT_EQ(refusal.state(), "IL028");
    EXPECT_FALSE(refusal.message.empty());
    EXPECT_FALSE(refusal.hint.empty());
    EXPECT_NE(refusal_of("vacuum").message.find("VACUUM"), std::string::npos);
    EXPECT_FALSE(refusal_of("lock").detail.empty());
}

TEST(SameWord, ComparesAsciiLettersInAnyCase) {
    EXPECT_TRUE(same_word("SELECT", "select"));
    EXPECT_TRUE(same_word("sElEcT", "select"));
    EXPECT_FALSE(same_word("selec", "select"));
    EXPECT_FALSE(same_word("selectx", "select"));
    EXPECT_FALSE(same_word("selec\xC3\x94", "selec\xC3\xB4"));  // letters beyond ASCII do not fold
    EXPECT_FALSE(same_word("@", "`"));
    EXPECT_FALSE(same_word("[", "{"));
}

}  // namespace
}  // namespace interlock::sql
