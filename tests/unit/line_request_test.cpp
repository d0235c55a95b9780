// Request lines: fields, escapes, NULL, and everything that is R02.
#include "session/line_format.h"

#include <gtest/gtest.h>

#include <string>

namespace interlock {
namespace {

constexpr std::size_t many = 65535;

struct Parsed {
    bool ok = false;
    std::string error;
    LineRequest request;
};

Parsed parse(std::string_view line, std::size_t max_parameters = many) {
    Parsed parsed;
    parsed.ok = parse_line(line, max_parameters, parsed.request, parsed.error);
    return parsed;
}

std::string error_of(std::string_view line, std::size_t max_parameters = many) {
    const Parsed parsed = parse(line, max_parameters);
    return parsed.ok ? "accepted" : parsed.error;
}

TEST(LineRequest, StatusStandsAlone) {
    EXPECT_EQ(parse("STATUS").request.verb, Verb::status);
    EXPECT_TRUE(parse("STATUS").ok);
    EXPECT_EQ(error_of("STATUS\t"), "STATUS takes no fields");
    EXPECT_EQ(error_of("STATUS\tx"), "STATUS takes no fields");
}

TEST(LineRequest, AQueryHasAStatementAndParameters) {
    LineRequest request;
    std::string error;
    ASSERT_TRUE(parse_line("Q\tselect ?, ?\ta\t\tb", many, request, error));
    EXPECT_EQ(request.verb, Verb::query);
    EXPECT_EQ(request.sql, "select ?, ?");
    ASSERT_EQ(request.parameters.size(), 3U);
    EXPECT_EQ(request.parameters[0], "a");
    EXPECT_EQ(request.parameters[1], "");
    EXPECT_EQ(request.parameters[2], "b");
    ASSERT_TRUE(parse_line("Q\t", many, request, error));
    EXPECT_EQ(request.sql, "");
    EXPECT_TRUE(request.parameters.empty());
}

TEST(LineRequest, FieldsAreUrlDecoded) {
    LineRequest request;
    std::string error;
    ASSERT_TRUE(parse_line("Q\t%53%65lect%20%2A\t%09%0A%0d\ta+b\t%25\t100%25%", many, request,
                           error) == false);
    ASSERT_TRUE(parse_line("Q\t%53%65lect%20%2A\t%09%0A%0d\ta+b\t%25\t%e2%82%AC%c3%a9", many,
                           request, error));
    EXPECT_EQ(request.sql, "Select *");
    ASSERT_EQ(request.parameters.size(), 4U);
    EXPECT_EQ(request.parameters[0], "\t\n\r");
    EXPECT_EQ(request.parameters[1], "a+b");  // a plus is a plus
    EXPECT_EQ(request.parameters[2], "%");
    EXPECT_EQ(request.parameters[3], "€é");
}

TEST(LineRequest, ARawBackslashNIsNullAndAnEncodedOneIsText) {
    LineRequest request;
    std::string error;
    ASSERT_TRUE(parse_line("Q\tx\t\\N\t%5CN\t\\%4E\t\\n\t\\N \tN", many, request, error));
    ASSERT_EQ(request.parameters.size(), 6U);
    EXPECT_EQ(request.parameters[0], std::nullopt);
    EXPECT_EQ(request.parameters[1], "\\N");
    EXPECT_EQ(request.parameters[2], "\\N");
    EXPECT_EQ(request.parameters[3], "\\n");
    EXPECT_EQ(request.parameters[4], "\\N ");
    EXPECT_EQ(request.parameters[5], "N");
    // The statement itself is never NULL.
    ASSERT_TRUE(parse_line("Q\t\\N", many, request, error));
    EXPECT_EQ(request.sql, "\\N");
}

TEST(LineRequest, AnUnknownVerbIsRefused) {
    for (const char *line : {"", " ", "\t", "q\tx", "Q", "QQ\tx", " Q\tx", "status", "STATUSS",
                             "GET / HTTP/1.1", "Q x", "%51\tx"})
        EXPECT_FALSE(parse(line).ok) << line;
    EXPECT_EQ(error_of("Q"), "Q has no statement");
    EXPECT_EQ(error_of("X\ty"), "the line begins with neither Q nor STATUS");
}

TEST(LineRequest, BadEscapesAreRefusedAndTheirFieldNamed) {
    for (const char *field : {"%", "%4", "%ZZ", "%4G", "%G4", "abc%", "%%41", "% 41", "%-1", "%2"})
        EXPECT_EQ(error_of(std::string("Q\t") + field), "field 1 is not properly URL-encoded")
            << field;
    EXPECT_EQ(error_of("Q\tx\ty\t%"), "field 3 is not properly URL-encoded");
    EXPECT_EQ(error_of("Q\tx\t\\N\t%zz"), "field 3 is not properly URL-encoded");
}

TEST(LineRequest, NulIsRefusedRawAndEncoded) {
    EXPECT_EQ(error_of(std::string_view("Q\ta\0b", 5)), "the line contains a NUL byte");
    EXPECT_EQ(error_of(std::string_view("\0", 1)), "the line contains a NUL byte");
    EXPECT_EQ(error_of("Q\ta%00b"), "field 1 is not properly URL-encoded");
    EXPECT_EQ(error_of("Q\tx\t%00"), "field 2 is not properly URL-encoded");
}

TEST(LineRequest, WhatIsNotUtf8IsRefused) {
    EXPECT_EQ(error_of("Q\t\xFF"), "field 1 is not valid UTF-8");
    EXPECT_EQ(error_of("Q\tx\t%FF%FE"), "field 2 is not valid UTF-8");
    EXPECT_EQ(error_of("Q\tx\ty\t%C0%AF"), "field 3 is not valid UTF-8");
    EXPECT_EQ(error_of("Q\tx\t%ED%A0%80"), "field 2 is not valid UTF-8");
    // A character must not be put together from two fields.
    EXPECT_EQ(error_of("Q\tx\t%C3\t%A9"), "field 2 is not valid UTF-8");
    // A character may be cut between raw and encoded bytes.
    EXPECT_TRUE(parse("Q\tx\t\xC3%A9").ok);
}

TEST(LineRequest, TheNumberOfParametersIsBounded) {
    EXPECT_TRUE(parse("Q\tx\t1\t2", 2).ok);
    EXPECT_EQ(error_of("Q\tx\t1\t2\t3", 2), "the line has more than 2 parameters");
    EXPECT_EQ(error_of("Q\tx\t1", 0), "the line has more than 0 parameters");
    EXPECT_TRUE(parse("Q\tx", 0).ok);
    std::string line = "Q\tx";
    for (std::size_t i = 0; i < many; ++i)
        line += "\t1";
    EXPECT_TRUE(parse(line).ok);
    EXPECT_FALSE(parse(line + "\t1").ok);
}

TEST(LineRequest, ViewsStayValidHoweverLongTheLine) {
    std::string line = "Q\t" + std::string(5000, 's');
    for (int i = 0; i < 2000; ++i)
        line += "\t%41" + std::to_string(i);
    LineRequest request;
    std::string error;
    ASSERT_TRUE(parse_line(line, many, request, error));
    EXPECT_EQ(request.sql, std::string(5000, 's'));
    for (int i = 0; i < 2000; ++i)
        EXPECT_EQ(request.parameters[static_cast<std::size_t>(i)], "A" + std::to_string(i));
}

TEST(LineRequest, ARequestIsUsedAgainWithoutTraces) {
    LineRequest request;
    std::string error;
    ASSERT_TRUE(parse_line("Q\tone\ta\tb", many, request, error));
    ASSERT_TRUE(parse_line("Q\ttwo", many, request, error));
    EXPECT_EQ(request.sql, "two");
    EXPECT_TRUE(request.parameters.empty());
    ASSERT_FALSE(parse_line("Q\tx\t%", many, request, error));
    ASSERT_TRUE(parse_line("STATUS", many, request, error));
    EXPECT_EQ(request.verb, Verb::status);
}

TEST(PercentEncoded, LeavesOnlyUnreservedCharacters) {
    EXPECT_EQ(percent_encoded("aZ09-_.~"), "aZ09-_.~");
    EXPECT_EQ(percent_encoded("a b\t\n%+\\"), "a%20b%09%0A%25%2B%5C");
    EXPECT_EQ(percent_encoded("é"), "%C3%A9");
    EXPECT_EQ(percent_encoded(""), "");
}

TEST(PercentEncoded, EveryTextSurvivesTheWay) {
    std::string text;
    for (int c = 1; c < 128; ++c)
        text += static_cast<char>(c);
    text += "€é\xF0\x9F\x9A\x82";
    LineRequest request;
    std::string error;
    const std::string line = "Q\t" + percent_encoded(text) + "\t" + percent_encoded(text) + "\t" +
                             percent_encoded("\\N");
    ASSERT_TRUE(parse_line(line, many, request, error)) << error;
    EXPECT_EQ(request.sql, text);
    EXPECT_EQ(request.parameters[0], text);
    EXPECT_EQ(request.parameters[1], "\\N");
}

}  // namespace
}  // namespace interlock
