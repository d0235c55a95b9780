// Arrays of keys: elements as PostgreSQL's array_in() and array_recv() would read them, or none.
#include "route/key_array.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace interlock {
namespace {

/// The elements in brackets, NULL for null; "malformed" at the end of one that is.
template <typename Array>
std::string read(Array array) {
    std::string shown;
    for (std::string_view element;;) {
        switch (array.next(element)) {
        case ArrayStep::element: shown += "[" + std::string(element) + "]"; break;
        case ArrayStep::null: shown += "NULL"; break;
        case ArrayStep::end: return shown;
        case ArrayStep::malformed: return shown + "malformed";
        }
    }
}

std::string text(std::string_view spelled) {
    return read(TextArray(spelled));
}

TEST(TextArray, ReadsElements) {
    EXPECT_EQ(text("{}"), "");
    EXPECT_EQ(text(" \t\n\v\f\r{ } \n"), "");
    EXPECT_EQ(text("{1}"), "[1]");
    EXPECT_EQ(text("{1,2,NULL,\"a b\"}"), "[1][2]NULL[a b]");
    EXPECT_EQ(text("{ 1 , \t2 }"), "[1][2]");
    EXPECT_EQ(text("{a b ,c\nd}"), "[a b][c\nd]");
    EXPECT_EQ(text("{null,Null,nULL,nulls,nul}"), "NULLNULLNULL[nulls][nul]");
    EXPECT_EQ(text("{\"NULL\",\"\"}"), "[NULL][]");
    EXPECT_EQ(text("{\"a\\\"b\\\\c\\d\"}"), "[a\"b\\cd]");
    EXPECT_EQ(text("{\" a \" , \"{}\",\",\"}"), "[ a ][{}][,]");
    EXPECT_EQ(text("{é,'}"), "[é][']");
}

TEST(TextArray, WhatIsNotPlainIsMalformed) {
    for (const char *spelled :
         {"",      " ",    "1",      "{",        "{ ",        "}",     "{1",  "{1 ",
          "{\"",   "{\"a", "{\"a\\", "{\"a\\\"", "[1:1]={1}", "{{1}}", "{,}", "{,1}",
          "{\\a}", "{}}",  "{}{}",   "{} x",     "{}x",       "{{}}"})
        EXPECT_EQ(text(spelled), "malformed") << spelled;
    EXPECT_EQ(text("{1,"), "[1]malformed");
    EXPECT_EQ(text("{1,}"), "[1]malformed");
    EXPECT_EQ(text("{1,,2}"), "[1]malformed");
    EXPECT_EQ(text("{1}x"), "[1]malformed");
    EXPECT_EQ(text("{1 \"a\"}"), "malformed");
    EXPECT_EQ(text("{\"a\"b}"), "[a]malformed");
    EXPECT_EQ(text("{\"a\"\"b\"}"), "[a]malformed");
    EXPECT_EQ(text("{a\"b\"}"), "malformed");
    EXPECT_EQ(text("{a\\,b}"), "malformed");
    EXPECT_EQ(text("{1,{2}}"), "[1]malformed");
}

std::string number(std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8)
        bytes += static_cast<char>(value >> shift);
    return bytes;
}
std::string numbers(const std::vector<std::uint32_t> &values) {
    std::string bytes;
    for (const std::uint32_t value : values)
        bytes += number(value);
    return bytes;
}
constexpr std::uint32_t none = 0xFFFFFFFF;

TEST(BinaryArray, ReadsElements) {
    EXPECT_EQ(read(BinaryArray(numbers({0, 0, 25}))), "");
    EXPECT_EQ(read(BinaryArray(numbers({1, 0, 25, 0, 1}))), "");
    EXPECT_EQ(read(BinaryArray(numbers({1, 0, 25, 2, 1, 1}) + "a" + number(0))), "[a][]");
    EXPECT_EQ(read(BinaryArray(numbers({1, 1, 25, 2, 7, none, 2}) + "ab")), "NULL[ab]");
    EXPECT_EQ(BinaryArray(numbers({1, 0, 20, 0, 1})).element_type(), 20U);
    EXPECT_EQ(BinaryArray(numbers({0, 0, 20})).element_type(), 20U);
}

TEST(BinaryArray, WhatIsNotOneDimensionalOrDoesNotEndIsMalformed) {
    const std::string whole = numbers({1, 1, 25, 2, 1, none, 2}) + "ab";
    for (std::size_t length = 0; length < whole.size(); ++length) {
        const std::string shown = read(BinaryArray(std::string_view(whole).substr(0, length)));
        EXPECT_TRUE(shown.ends_with("malformed")) << length << shown;
    }
    EXPECT_EQ(read(BinaryArray(whole + "x")), "NULL[ab]malformed");
    EXPECT_EQ(read(BinaryArray(numbers({0, 0, 25, 0}))), "malformed");
    EXPECT_EQ(read(BinaryArray(numbers({2, 0, 25, 1, 1, 1, 1, 0}))), "malformed");
    EXPECT_EQ(read(BinaryArray(numbers({none, 0, 25, 1, 1, 0}))), "malformed");
    EXPECT_EQ(read(BinaryArray(numbers({1, 2, 25, 1, 1, 0}))), "malformed");
    EXPECT_EQ(read(BinaryArray(numbers({1, 0, 25, none, 1, 0}))), "malformed");
    EXPECT_EQ(read(BinaryArray(numbers({1, 0, 25, 1, 1, 0xFFFFFFFE}))), "malformed");
    EXPECT_FALSE(BinaryArray(numbers({2, 0, 25})).element_type());
    EXPECT_FALSE(BinaryArray(numbers({1, 0, 25, 5, 1, 0})).element_type());
}

}  // namespace
}  // namespace interlock
