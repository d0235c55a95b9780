// Spellings of keys: what is accepted hashes as PostgreSQL would store it; the rest is refused.
#include "route/key.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace interlock {
namespace {

std::optional<std::int64_t> hash_of(KeyType type, std::string_view text) {
    const auto key = parse_key(type, text);
    if (!key) return std::nullopt;
    return key->hash;
}

std::optional<std::int64_t> binary_hash_of(KeyType type, std::string_view value) {
    const auto key = parse_binary_key(type, value);
    if (!key) return std::nullopt;
    return key->hash;
}

std::int64_t integer(std::int64_t value) {
    return placement::splitmix64(value);
}
std::int64_t bytes(std::string_view value) {
    return placement::xxh3_64(value.data(), value.size());
}

TEST(IntegerKey, EverySpellingOfANumberIsTheSameKey) {
    for (const char *text : {"42", "+42", "042", "+00000000000000000000000000042"})
        EXPECT_EQ(hash_of(KeyType::int8, text), integer(42)) << text;
    for (const char *text : {"0", "-0", "+0", "00", "-000"})
        EXPECT_EQ(hash_of(KeyType::int8, text), integer(0)) << text;
    EXPECT_EQ(hash_of(KeyType::int8, "-7"), integer(-7));
}

TEST(IntegerKey, TheThreeWidthsGiveTheSameKey) {
    for (const char *text : {"-32768", "-1", "0", "1", "32767"}) {
        const auto wide = hash_of(KeyType::int8, text);
        ASSERT_TRUE(wide);
        EXPECT_EQ(hash_of(KeyType::int2, text), wide);
        EXPECT_EQ(hash_of(KeyType::int4, text), wide);
    }
}

TEST(IntegerKey, ExtremesAreInAndTheirNeighboursOut) {
    EXPECT_TRUE(hash_of(KeyType::int2, "-32768"));
    EXPECT_TRUE(hash_of(KeyType::int2, "32767"));
    EXPECT_FALSE(hash_of(KeyType::int2, "32768"));
    EXPECT_FALSE(hash_of(KeyType::int2, "-32769"));
    EXPECT_TRUE(hash_of(KeyType::int4, "-2147483648"));
    EXPECT_TRUE(hash_of(KeyType::int4, "2147483647"));
    EXPECT_FALSE(hash_of(KeyType::int4, "2147483648"));
    EXPECT_FALSE(hash_of(KeyType::int4, "-2147483649"));
    EXPECT_EQ(hash_of(KeyType::int8, "-9223372036854775808"),
              integer(std::numeric_limits<std::int64_t>::min()));
    EXPECT_EQ(hash_of(KeyType::int8, "9223372036854775807"),
              integer(std::numeric_limits<std::int64_t>::max()));
    EXPECT_FALSE(hash_of(KeyType::int8, "9223372036854775808"));
    EXPECT_FALSE(hash_of(KeyType::int8, "-9223372036854775809"));
    EXPECT_FALSE(hash_of(KeyType::int8, std::string(400, '9')));
}

TEST(IntegerKey, WhatIsNoPlainNumberIsRefused) {
    for (const char *text :
         {"",     "+",           "-",   "--1", "+-1", "-+1",
          " 1",   "1 ",          "1\t", "\n1", "1.0", "1e3",
          "0x10", "1_000",       "abc", "1a",  "a1",  "\xD9\xA1" /* an Arabic-Indic digit */,
          "NaN",  "\xEF\xBC\x91"})
        EXPECT_FALSE(hash_of(KeyType::int8, text)) << '"' << text << '"';
    EXPECT_FALSE(hash_of(KeyType::int8, std::string_view("1\0", 2)));
}

TEST(UuidKey, EverySpellingThatPostgresReadsIsTheSameKey) {
    const std::string canonical("\xA0\xEE\xBC\x99\x9C\x0B\x4E\xF8\xBB\x6D\x6B\xB9\xBD\x38\x0A\x11",
                                16);
    for (const char *text :
         {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
          "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "a0eebc999c0b4ef8bb6d6bb9bd380a11",
          "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11", "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}"})
        EXPECT_EQ(hash_of(KeyType::uuid, text), bytes(canonical)) << text;
}

TEST(UuidKey, WhatPostgresRefusesIsRefused) {
    for (const char *text : {"",
                             "{",
                             "}",
                             "{}",
                             "-",
                             "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1",
                             "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a111",
                             "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                             "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
                             "a0eebc999-c0b-4ef8-bb6d-6bb9bd380a11",
                             "a0eebc99--9c0b-4ef8-bb6d-6bb9bd380a11",
                             "-a0eebc999c0b4ef8bb6d6bb9bd380a11",
                             "a0eebc999c0b4ef8bb6d6bb9bd380a11-",
                             "g0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                             "a0-eebc999c0b4ef8bb6d6bb9bd380a11",
                             " a0eebc999c0b4ef8bb6d6bb9bd380a11",
                             "a0eebc999c0b4ef8bb6d6bb9bd380a11 ",
                             "{{a0eebc999c0b4ef8bb6d6bb9bd380a11}}",
                             "{a0eebc999c0b4ef8bb6d6bb9bd380a11)",
                             "{a0eebc999c0b4ef8bb6d6bb9bd380a111",
                             "a0eebc999c0b4ef8bb6d6bb9bd380a1}"})
        EXPECT_FALSE(hash_of(KeyType::uuid, text)) << '"' << text << '"';
}

TEST(TextKey, IsHashedByItsBytes) {
    for (const char *text : {"", " ", "a", "A", "a ", "straße", "\xF0\x9F\x9A\x82", "\\N", "\x01"})
        EXPECT_EQ(hash_of(KeyType::text, text), bytes(text));
    EXPECT_NE(hash_of(KeyType::text, "a"), hash_of(KeyType::text, "a "));
    // Composed and decomposed forms are different texts to PostgreSQL, too.
    EXPECT_NE(hash_of(KeyType::text, "\xC3\xA9"), hash_of(KeyType::text, "e\xCC\x81"));
    const std::string large(1 << 20, 'x');
    EXPECT_EQ(hash_of(KeyType::text, large), bytes(large));
}

TEST(TextKey, MustBeUtf8) {
    const std::vector<std::string> invalid = {"\x80",              // a continuation alone
                                              "\xC3",              // cut off
                                              "\xC0\x80",          // overlong NUL
                                              "\xC1\xBF",          // overlong
                                              "\xE0\x9F\xBF",      // overlong
                                              "\xED\xA0\x80",      // a surrogate
                                              "\xED\xBF\xBF",      // another
                                              "\xF0\x8F\xBF\xBF",  // overlong
                                              "\xF4\x90\x80\x80",  // above U+10FFFF
                                              "\xF5\x80\x80\x80",
                                              "\xFE",
                                              "\xFF",
                                              "\xE2\x82",
                                              "a\xE2\x28\xA1",
                                              "\xF0\x9F\x9A",
                                              std::string("a\0b", 3)};
    for (const std::string &text : invalid)
        EXPECT_FALSE(hash_of(KeyType::text, text)) << testing::PrintToString(text);
    for (const char *text :
         {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
          "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
        EXPECT_TRUE(hash_of(KeyType::text, text)) << testing::PrintToString(text);
}

TEST(ByteaKey, HexAndEscapeFormatGiveTheSameKey) {
    EXPECT_EQ(hash_of(KeyType::bytea, "\\x"), bytes(""));
    EXPECT_EQ(hash_of(KeyType::bytea, ""), bytes(""));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\x6162"), bytes("ab"));
    EXPECT_EQ(hash_of(KeyType::bytea, "ab"), bytes("ab"));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\141\\142"), bytes("ab"));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\x61 62\n"), bytes("ab"));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\xDEADbeef"), bytes("\xDE\xAD\xBE\xEF"));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\336\\255\\276\\357"), bytes("\xDE\xAD\xBE\xEF"));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\\\"), bytes("\\"));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\x00"), bytes(std::string_view("\0", 1)));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\000"), bytes(std::string_view("\0", 1)));
    EXPECT_EQ(hash_of(KeyType::bytea, "\\377"), bytes("\xFF"));
}

TEST(ByteaKey, WhatPostgresRefusesOrWouldConvertIsRefused) {
    for (const char *text : {"\\x1", "\\x1g", "\\x6 1", "\\x61 6", "\\", "a\\", "\\4", "\\40",
                             "\\400", "\\18a", "\\08", "\\X61", "\\a", "\xC3\xA9", "\\x\xC3"})
        EXPECT_FALSE(hash_of(KeyType::bytea, text)) << testing::PrintToString(text);
    EXPECT_FALSE(hash_of(KeyType::bytea, std::string_view("a\0", 2)));
}

TEST(BinaryKey, IntegersAreBigEndianOfTheirTypesLength) {
    using namespace std::string_view_literals;
    EXPECT_EQ(binary_hash_of(KeyType::int2, "\x01\x02"sv), integer(258));
    EXPECT_EQ(binary_hash_of(KeyType::int2, "\xFF\xFE"sv), integer(-2));
    EXPECT_EQ(binary_hash_of(KeyType::int2, "\x80\0"sv), integer(INT16_MIN));
    EXPECT_EQ(binary_hash_of(KeyType::int4, "\0\0\x01\x02"sv), integer(258));
    EXPECT_EQ(binary_hash_of(KeyType::int4, "\0\0\xFF\xFE"sv), integer(65534));
    EXPECT_EQ(binary_hash_of(KeyType::int4, "\xFF\xFF\xFF\xFE"sv), integer(-2));
    EXPECT_EQ(binary_hash_of(KeyType::int4, "\x7F\xFF\xFF\xFF"sv), integer(INT32_MAX));
    EXPECT_EQ(binary_hash_of(KeyType::int8, "\0\0\0\0\xFF\xFF\xFF\xFE"sv), integer(4294967294));
    EXPECT_EQ(binary_hash_of(KeyType::int8, "\x80\0\0\0\0\0\0\0"sv), integer(INT64_MIN));
    EXPECT_EQ(binary_hash_of(KeyType::int8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"sv), integer(-1));
    EXPECT_EQ(binary_hash_of(KeyType::int8, "\x01\x02\x03\x04\x05\x06\x07\x08"sv),
              integer(0x0102030405060708));
    const std::string zeros(16, '\0');
    for (std::size_t length = 0; length <= 16; ++length) {
        const std::string_view value = std::string_view(zeros).substr(0, length);
        EXPECT_EQ(binary_hash_of(KeyType::int2, value).has_value(), length == 2) << length;
        EXPECT_EQ(binary_hash_of(KeyType::int4, value).has_value(), length == 4) << length;
        EXPECT_EQ(binary_hash_of(KeyType::int8, value).has_value(), length == 8) << length;
        EXPECT_EQ(binary_hash_of(KeyType::uuid, value).has_value(), length == 16) << length;
    }
    EXPECT_FALSE(parse_binary_integer(KeyType::uuid, "\0\0\0\0\0\0\0\0"sv));
}

TEST(BinaryKey, TheOtherTypesAreTheirBytes) {
    const std::string uuid("\xA0\xEE\xBC\x99\x9C\x0B\x4E\xF8\xBB\x6D\x6B\xB9\xBD\x38\x0A\x11", 16);
    EXPECT_EQ(binary_hash_of(KeyType::uuid, uuid),
              hash_of(KeyType::uuid, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"));
    EXPECT_FALSE(binary_hash_of(KeyType::uuid, uuid + "x"));
    EXPECT_EQ(binary_hash_of(KeyType::text, ""), bytes(""));
    EXPECT_EQ(binary_hash_of(KeyType::text, "straße"), hash_of(KeyType::text, "straße"));
    EXPECT_FALSE(binary_hash_of(KeyType::text, "\xE9"));
    EXPECT_FALSE(binary_hash_of(KeyType::text, std::string_view("a\0", 2)));
    EXPECT_EQ(binary_hash_of(KeyType::bytea, "\\x61"), bytes("\\x61"));
    EXPECT_EQ(binary_hash_of(KeyType::bytea, std::string_view("\0\xFF", 2)),
              hash_of(KeyType::bytea, "\\x00ff"));
}

TEST(ParseInteger, ReadsDigitsBehindASign) {
    EXPECT_EQ(parse_digits("5", false, INT64_MIN, INT64_MAX), 5);
    EXPECT_EQ(parse_digits("5", true, INT64_MIN, INT64_MAX), -5);
    EXPECT_EQ(parse_digits("9223372036854775808", true, INT64_MIN, INT64_MAX), INT64_MIN);
    EXPECT_FALSE(parse_digits("9223372036854775808", false, INT64_MIN, INT64_MAX));
    EXPECT_FALSE(parse_digits("9223372036854775809", true, INT64_MIN, INT64_MAX));
    for (const char *text : {"", "-5", "+5", " 5", "5a", "5."})
        EXPECT_FALSE(parse_digits(text, false, INT64_MIN, INT64_MAX)) << text;
}

TEST(ParseInteger, RangesAreThoseOfTheTypes) {
    EXPECT_TRUE(range_of(KeyType::int2).holds(32767) && !range_of(KeyType::int2).holds(32768));
    EXPECT_TRUE(range_of(KeyType::int2).holds(-32768) && !range_of(KeyType::int2).holds(-32769));
    EXPECT_TRUE(range_of(KeyType::int4).holds(INT32_MAX));
    EXPECT_FALSE(range_of(KeyType::int4).holds(std::int64_t{INT32_MAX} + 1));
    EXPECT_TRUE(range_of(KeyType::int8).holds(INT64_MIN));
}

TEST(ParseInteger, KeepsToTheRangeGiven) {
    EXPECT_EQ(parse_integer("5", 5, 5), 5);
    EXPECT_FALSE(parse_integer("4", 5, 5));
    EXPECT_FALSE(parse_integer("6", 5, 5));
    EXPECT_EQ(parse_integer("-5", -5, 0), -5);
}

TEST(KeyType, FamiliesAreThoseOfTheKeyspaces) {
    using placement::KeyFamily;
    EXPECT_EQ(family_of(KeyType::int2), KeyFamily::integer);
    EXPECT_EQ(family_of(KeyType::int4), KeyFamily::integer);
    EXPECT_EQ(family_of(KeyType::int8), KeyFamily::integer);
    EXPECT_EQ(family_of(KeyType::uuid), KeyFamily::uuid);
    EXPECT_EQ(family_of(KeyType::text), KeyFamily::text);
    EXPECT_EQ(family_of(KeyType::bytea), KeyFamily::bytea);
}

}  // namespace
}  // namespace interlock
