// From facts and values to the shard: which values are keys, of which type, and what is refused.
#include "plan/single_shard.h"

#include "fixtures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace interlock {
namespace {

using sql::Facts;
using sql::KeySource;
using enum KeySource::From;

// Positions in the reference table.
enum : std::uint32_t {
    account = 0,
    device = 1,
    person = 2,
    blob = 3,
    order = 4,
    narrow = 7,
    konto = 8
};

constexpr const char *uuid_text = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
constexpr std::string_view uuid_bytes("\xA0\xEE\xBC\x99\x9C\x0B\x4E\xF8\xBB\x6D\x6B\xB9\xBD\x38\x0A"
                                      "\x11",
                                      16);

Facts facts(std::initializer_list<KeySource> keys) {
    Facts made;
    made.keys = keys;
    return made;
}

KeySource key(std::uint32_t table, KeySource::From from, std::uint16_t index = 0,
              std::uint32_t cast = 0) {
    KeySource source;
    source.table = table;
    source.from = from;
    source.index = index;
    source.cast = cast;
    return source;
}

using Planned = Result<std::optional<Target>, Refusal>;

Planned run(const Facts &facts, std::string_view text,
            const std::vector<BoundParameter> &parameters = {}, bool utf8 = true) {
    sql::Shape shape;
    sql::make_shape(text, shape);
    return plan(facts, {text, shape.literals, parameters, utf8}, *test::reference_table());
}

/// "bucket 3", "any", or the code.
std::string show(const Planned &planned) {
    if (!planned) return std::string(code_entry(planned.error().code).name);
    if (!*planned) return "any";
    return "bucket " + std::to_string((*planned)->bucket);
}

std::string bucket(std::uint32_t table, std::int64_t hash) {
    const RouteTable &routes = *test::reference_table();
    const Keyspace &keyspace = routes.keyspaces[routes.tables[table].keyspace];
    return "bucket " + std::to_string(keyspace.bucket_of(Key{hash}));
}
std::string of_integer(std::int64_t value) {
    return bucket(account, placement::splitmix64(value));
}
std::string of_bytes(std::uint32_t table, std::string_view value) {
    return bucket(table, placement::xxh3_64(value.data(), value.size()));
}

std::string literal_key(std::uint32_t table, std::string_view text, std::uint32_t cast = 0,
                        bool negative = false, bool utf8 = true) {
    KeySource source = key(table, literal, 0, cast);
    source.negative = negative;
    return show(run(facts({source}), text, {}, utf8));
}

std::string parameter_key(std::uint32_t table, const BoundParameter &parameter,
                          std::uint32_t cast = 0, bool utf8 = true) {
    return show(
        run(facts({key(table, KeySource::From::parameter, 0, cast)}), "", {parameter}, utf8));
}

std::string array_key(std::uint32_t table, const BoundParameter &parameter,
                      std::uint32_t cast = 0) {
    return show(run(facts({key(table, array, 0, cast)}), "", {parameter}));
}

BoundParameter in_text(std::string_view bytes, std::uint32_t type = 0) {
    return {bytes, false, type};
}
BoundParameter in_binary(std::string_view bytes, std::uint32_t type = 0) {
    return {bytes, true, type};
}

std::string big_endian(std::int64_t value, int length) {
    std::string bytes;
    for (int i = length - 1; i >= 0; --i)
        bytes += static_cast<char>(value >> std::min(8 * i, 63));
    return bytes;
}

// The tests are of little worth unless keys differ in their buckets.
static_assert(placement::bucket_of_hash(placement::splitmix64(5), 16) !=
              placement::bucket_of_hash(placement::splitmix64(-5), 16));
static_assert(placement::bucket_of_hash(placement::splitmix64(5), 16) !=
              placement::bucket_of_hash(placement::splitmix64(50), 16));

TEST(SingleShardPlan, WithoutKeysAnyShardWillDo) {
    EXPECT_EQ(show(run(facts({}), "select 1")), "any");
}

TEST(SingleShardPlan, NamesShardTableAndBucket) {
    for (std::int64_t value = -50; value < 50; ++value) {
        KeySource source = key(order, literal);
        source.negative = value < 0;
        const auto planned = run(facts({source}), std::to_string(std::abs(value)));
        ASSERT_TRUE(planned && *planned) << value;
        EXPECT_EQ((*planned)->bucket, placement::bucket_of_hash(placement::splitmix64(value), 16));
        EXPECT_EQ((*planned)->shard, (*planned)->bucket % 2);
        EXPECT_EQ((*planned)->table, static_cast<std::uint32_t>(order));
    }
}

TEST(SingleShardPlan, NumberLiteralsAreIntegerKeysWhateverTheColumnsWidth) {
    for (const std::uint32_t table : {account, narrow, konto}) {
        EXPECT_EQ(literal_key(table, "5"), of_integer(5));
        EXPECT_EQ(literal_key(table, "005"), of_integer(5));
        EXPECT_EQ(literal_key(table, "5", 0, true), of_integer(-5));
        EXPECT_EQ(literal_key(table, "0", 0, true), of_integer(0));
        EXPECT_EQ(literal_key(table, "9223372036854775807"), of_integer(INT64_MAX));
        EXPECT_EQ(literal_key(table, "9223372036854775808", 0, true), of_integer(INT64_MIN));
        EXPECT_EQ(literal_key(table, "9223372036854775808"), "R27");
        EXPECT_EQ(literal_key(table, "9223372036854775809", 0, true), "R27");
        for (const char *text : {"5.0", "5e0", "5.", ".5"})
            EXPECT_EQ(literal_key(table, text), "R27") << text;
        EXPECT_EQ(literal_key(table, "5.0", oid::int8), "R27");
    }
}

TEST(SingleShardPlan, StringLiteralsAreReadAsTheColumnsType) {
    for (const char *text : {"'5'", "'+5'", "'05'", "E'5'", "E'\\x35'", "$$5$$", "$a$5$a$"})
        for (const std::uint32_t table : {account, narrow, konto})
            EXPECT_EQ(literal_key(table, text), of_integer(5)) << text;
    EXPECT_EQ(literal_key(account, "'-5'"), of_integer(-5));
    EXPECT_EQ(literal_key(account, "'40000'"), of_integer(40000));
    EXPECT_EQ(literal_key(narrow, "'40000'"), "R27");
    EXPECT_EQ(literal_key(konto, "'3000000000'"), "R27");
    for (const char *text : {"'abc'", "''", "' 5'", "'5.0'", "'9223372036854775808'", "'NULL'",
                             "U&'5'", "N'5'", "B'101'", "X'5'", "'5'\n''", "E'\\u'"})
        EXPECT_EQ(literal_key(account, text), "R27") << text;
    EXPECT_EQ(literal_key(account, "'5'", 0, true), "R27");

    EXPECT_EQ(literal_key(device, "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
              of_bytes(device, uuid_bytes));
    EXPECT_EQ(literal_key(device, "'a0eebc99'"), "R27");
    EXPECT_EQ(literal_key(person, "'it''s'"), of_bytes(person, "it's"));
    EXPECT_EQ(literal_key(person, "E'it\\'s'"), of_bytes(person, "it's"));
    EXPECT_EQ(literal_key(person, "$$it's$$"), of_bytes(person, "it's"));
    EXPECT_EQ(literal_key(person, "''"), of_bytes(person, ""));
    EXPECT_EQ(literal_key(person, "'5'"), of_bytes(person, "5"));
    EXPECT_EQ(literal_key(person, "'a\xFF'"), "R27");
    EXPECT_EQ(literal_key(person, "E'\\xe9'"), "R27");
    EXPECT_EQ(literal_key(blob, "'\\x6162'"), of_bytes(blob, "ab"));
    EXPECT_EQ(literal_key(blob, "E'\\\\x6162'"), of_bytes(blob, "ab"));
    EXPECT_EQ(literal_key(blob, "'ab'"), of_bytes(blob, "ab"));
    EXPECT_EQ(literal_key(blob, "'\\x616'"), "R27");
}

TEST(SingleShardPlan, NumbersAreNoKeysOfOtherTypes) {
    for (const std::uint32_t table : {device, person, blob})
        for (const char *text : {"5", "5.0"})
            EXPECT_EQ(literal_key(table, text), "R27");
    EXPECT_EQ(literal_key(person, "5", oid::text), "R27");
}

TEST(SingleShardPlan, ACastBoundsALiteral) {
    for (const std::uint32_t cast : {oid::int2, oid::int4, oid::int8})
        for (const std::uint32_t table : {account, narrow, konto}) {
            EXPECT_EQ(literal_key(table, "5", cast), of_integer(5));
            EXPECT_EQ(literal_key(table, "'5'", cast), of_integer(5));
            EXPECT_EQ(literal_key(table, "'-5'", cast), of_integer(-5));
        }
    EXPECT_EQ(literal_key(account, "32768", oid::int2), "R27");
    EXPECT_EQ(literal_key(account, "'32768'", oid::int2), "R27");
    EXPECT_EQ(literal_key(account, "32768", oid::int2, true), of_integer(-32768));
    EXPECT_EQ(literal_key(account, "2147483648", oid::int4), "R27");
    EXPECT_EQ(literal_key(account, "2147483648", oid::int4, true), of_integer(INT32_MIN));
    // Wider than the column: the value is what counts.
    EXPECT_EQ(literal_key(narrow, "'40000'", oid::int8), of_integer(40000));
    EXPECT_EQ(literal_key(narrow, "40000", oid::int8), of_integer(40000));

    EXPECT_EQ(literal_key(person, "'a'", oid::text), of_bytes(person, "a"));
    EXPECT_EQ(literal_key(person, "'a'", oid::varchar), of_bytes(person, "a"));
    EXPECT_EQ(literal_key(device, "'" + std::string(uuid_text) + "'", oid::uuid),
              of_bytes(device, uuid_bytes));
    EXPECT_EQ(literal_key(blob, "'ab'", oid::bytea), of_bytes(blob, "ab"));
    for (const std::uint32_t cast : {oid::text, oid::uuid, oid::numeric, oid::float8, 16500U})
        EXPECT_EQ(literal_key(account, "'5'", cast), "R27") << cast;
    EXPECT_EQ(literal_key(person, "'a'", oid::bpchar), "R27");
    EXPECT_EQ(literal_key(person, "'a'", oid::bytea), "R27");
    EXPECT_EQ(literal_key(device, "'" + std::string(uuid_text) + "'", oid::text), "R27");
}

TEST(SingleShardPlan, UntypedParametersAreReadAsTheColumnsType) {
    for (const std::uint32_t type : {0U, oid::unknown}) {
        EXPECT_EQ(parameter_key(account, in_text("-5", type)), of_integer(-5));
        EXPECT_EQ(parameter_key(narrow, in_text("40000", type)), "R27");
        EXPECT_EQ(parameter_key(narrow, in_text("40000", type), oid::int4), of_integer(40000));
        EXPECT_EQ(parameter_key(account, in_text("40000", type), oid::int2), "R27");
        EXPECT_EQ(parameter_key(account, in_binary(big_endian(-5, 8), type)), of_integer(-5));
        EXPECT_EQ(parameter_key(konto, in_binary(big_endian(-5, 4), type)), of_integer(-5));
        EXPECT_EQ(parameter_key(narrow, in_binary(big_endian(-5, 2), type)), of_integer(-5));
        EXPECT_EQ(parameter_key(narrow, in_binary(big_endian(-5, 8), type), oid::int8),
                  of_integer(-5));
        for (const int length : {0, 2, 4, 7, 9})
            EXPECT_EQ(parameter_key(account, in_binary(big_endian(5, length), type)), "R27");
        EXPECT_EQ(parameter_key(narrow, in_binary(big_endian(5, 8), type)), "R27");
        EXPECT_EQ(parameter_key(device, in_text(uuid_text, type)), of_bytes(device, uuid_bytes));
        EXPECT_EQ(parameter_key(device, in_binary(uuid_bytes, type)), of_bytes(device, uuid_bytes));
        EXPECT_EQ(parameter_key(device, in_binary(uuid_text, type)), "R27");
        EXPECT_EQ(parameter_key(person, in_text("\\x61", type)), of_bytes(person, "\\x61"));
        EXPECT_EQ(parameter_key(person, in_binary("é", type)), of_bytes(person, "é"));
        EXPECT_EQ(parameter_key(person, in_binary("\xE9", type)), "R27");
        EXPECT_EQ(parameter_key(blob, in_text("\\x61", type)), of_bytes(blob, "a"));
        EXPECT_EQ(parameter_key(blob, in_binary("\\x61", type)), of_bytes(blob, "\\x61"));
        EXPECT_EQ(parameter_key(blob, in_binary(std::string_view("\0\xFF", 2), type)),
                  of_bytes(blob, std::string_view("\0\xFF", 2)));
    }
    for (const char *text : {"", "abc", " 5", "5 ", "5.0", "9223372036854775808"})
        EXPECT_EQ(parameter_key(account, in_text(text)), "R27") << text;
}

TEST(SingleShardPlan, TypedParametersAreReadAsTheirOwnType) {
    const std::map<std::uint32_t, int> lengths = {{oid::int2, 2}, {oid::int4, 4}, {oid::int8, 8}};
    for (const auto &[type, length] : lengths)
        for (const std::uint32_t table : {account, narrow, konto}) {
            EXPECT_EQ(parameter_key(table, in_text("-5", type)), of_integer(-5));
            EXPECT_EQ(parameter_key(table, in_binary(big_endian(-5, length), type)),
                      of_integer(-5));
            EXPECT_EQ(parameter_key(table, in_binary(big_endian(5, length + 1), type)), "R27");
        }
    EXPECT_EQ(parameter_key(account, in_text("40000", oid::int2)), "R27");
    EXPECT_EQ(parameter_key(narrow, in_text("40000", oid::int4)), of_integer(40000));
    EXPECT_EQ(parameter_key(account, in_text("40000", oid::int8), oid::int2), "R27");
    EXPECT_EQ(parameter_key(account, in_binary(big_endian(40000, 8), oid::int8), oid::int2), "R27");
    EXPECT_EQ(parameter_key(account, in_text("40000", oid::int2), oid::int8), "R27");
    for (const std::uint32_t type : {oid::text, oid::varchar}) {
        EXPECT_EQ(parameter_key(person, in_text("a", type)), of_bytes(person, "a"));
        EXPECT_EQ(parameter_key(person, in_binary("a", type), oid::text), of_bytes(person, "a"));
    }
    EXPECT_EQ(parameter_key(device, in_binary(uuid_bytes, oid::uuid)),
              of_bytes(device, uuid_bytes));
    EXPECT_EQ(parameter_key(blob, in_text("ab", oid::bytea)), of_bytes(blob, "ab"));
    for (const std::uint32_t type : {oid::text, oid::varchar, oid::numeric, oid::float8, oid::oid,
                                     oid::boolean, oid::uuid, oid::int8_array, 16500U})
        EXPECT_EQ(parameter_key(account, in_text("5", type)), "R27") << type;
    EXPECT_EQ(parameter_key(account, in_binary(big_endian(5, 8), oid::float8)), "R27");
    EXPECT_EQ(parameter_key(person, in_text("a", oid::bpchar)), "R27");
    EXPECT_EQ(parameter_key(person, in_text("5", oid::int4)), "R27");
    EXPECT_EQ(parameter_key(person, in_text("5", oid::int4), oid::text), "R27");
    EXPECT_EQ(parameter_key(device, in_text(uuid_text, oid::text)), "R27");
}

TEST(SingleShardPlan, TextMayBeCastToTheKeysType) {
    for (const std::uint32_t type : {oid::text, oid::varchar}) {
        EXPECT_EQ(parameter_key(account, in_text("-5", type), oid::int8), of_integer(-5));
        EXPECT_EQ(parameter_key(account, in_binary("-5", type), oid::int8), of_integer(-5));
        EXPECT_EQ(parameter_key(account, in_binary(big_endian(5, 8), type), oid::int8), "R27");
        EXPECT_EQ(parameter_key(account, in_text("40000", type), oid::int2), "R27");
        EXPECT_EQ(parameter_key(device, in_binary(uuid_text, type), oid::uuid),
                  of_bytes(device, uuid_bytes));
        EXPECT_EQ(parameter_key(blob, in_binary("\\x61", type), oid::bytea), of_bytes(blob, "a"));
        EXPECT_EQ(array_key(account, in_binary("{5}", type), oid::int8_array), of_integer(5));
        EXPECT_EQ(array_key(account, in_text("{5}", type)), "R27");
    }
}

TEST(SingleShardPlan, TextKeysBeyondAsciiNeedUtf8) {
    EXPECT_EQ(parameter_key(person, in_text("é")), of_bytes(person, "é"));
    EXPECT_EQ(parameter_key(person, in_text("é"), 0, false), "R27");
    EXPECT_EQ(parameter_key(person, in_binary("é", oid::text), 0, false), "R27");
    EXPECT_EQ(parameter_key(person, in_text("e"), 0, false), of_bytes(person, "e"));
    EXPECT_EQ(literal_key(person, "'é'", 0, false, false), "R27");
    EXPECT_EQ(literal_key(person, "'e'", 0, false, false), of_bytes(person, "e"));
    // Unicode escapes are Unicode in every encoding.
    EXPECT_EQ(literal_key(person, "E'\\u00e9'", 0, false, false), of_bytes(person, "é"));
    EXPECT_EQ(literal_key(person, "E'\\u00e9é'", 0, false, false), "R27");
    EXPECT_EQ(show(run(facts({key(person, array)}), "", {in_text("{é}")}, false)), "R27");
    EXPECT_EQ(show(run(facts({key(person, array_text)}), "'{é}'", {}, false)), "R27");
    // What went before leaves no trace.
    EXPECT_EQ(show(run(facts({key(person, literal), key(person, parameter)}), "E'\\u00e9'",
                       {in_text("é")}, false)),
              "R27");
    EXPECT_EQ(parameter_key(blob, in_binary("é"), 0, false), of_bytes(blob, "é"));
}

TEST(SingleShardPlan, TheKeyMayBeSetToWhatItIs) {
    KeySource same = key(account, literal, 0);
    same.assigned = true;
    const Facts update = facts({key(account, literal, 1), same});
    EXPECT_EQ(show(run(update, "update account set account_id = 5 where account_id = '5'")),
              of_integer(5));
    EXPECT_EQ(show(run(update, "update account set account_id = 6 where account_id = 5")), "R29");
    const Facts several = facts({key(account, literal, 1), key(account, literal, 2), same});
    EXPECT_EQ(show(run(several, "update account set account_id = 5 where account_id in (5, 5)")),
              of_integer(5));
    EXPECT_EQ(show(run(several, "update account set account_id = 5 where account_id in (6, 5)")),
              "R29");
    KeySource sent = key(account, parameter, 0);
    sent.assigned = true;
    const Facts array_pinned = facts({key(account, array, 1), sent});
    EXPECT_EQ(show(run(array_pinned, "update", {{"5"}, {"{}"}})), "R29");
    EXPECT_EQ(show(run(array_pinned, "update", {{"5"}, {"{5}"}})), of_integer(5));
    EXPECT_EQ(show(run(array_pinned, "update", {{std::nullopt}, {"{5}"}})), "R27");
}

TEST(SingleShardPlan, AParameterOfUncertainTypeMustBeDeclared) {
    KeySource uncertain = key(account, parameter, 0);
    uncertain.typed = true;
    EXPECT_EQ(show(run(facts({uncertain}), "select", {{"5"}})), "R27");
    EXPECT_EQ(show(run(facts({uncertain}), "select", {{"5", false, oid::unknown}})), "R27");
    EXPECT_EQ(show(run(facts({uncertain}), "select", {{"5", false, oid::int8}})), of_integer(5));
}

TEST(SingleShardPlan, NullIsNoKey) {
    EXPECT_EQ(show(run(facts({key(account, null)}), "NULL")), "R27");
    const BoundParameter none{std::nullopt, false, 0};
    EXPECT_EQ(parameter_key(account, none), "R27");
    EXPECT_EQ(parameter_key(account, {std::nullopt, true, oid::int8}), "R27");
    EXPECT_EQ(array_key(account, none), "R27");
    for (const auto from : {parameter, array}) {
        const Planned refused = run(facts({key(account, from)}), "", {none});
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().message,
                  "the shard key \"account_id\" of table public.account is NULL");
    }
}

TEST(SingleShardPlan, AParameterThatWasNotSentIsR27) {
    EXPECT_EQ(show(run(facts({key(account, parameter, 1)}), "", {in_text("5")})), "R27");
    EXPECT_EQ(show(run(facts({key(account, array, 0)}), "", {})), "R27");
    EXPECT_EQ(show(run(facts({key(account, literal, 1)}), "5", {})), "R27");
    EXPECT_EQ(show(run(facts({key(account, array_text, 1)}), "'{5}'", {})), "R27");
}

std::string binary_array(std::uint32_t type, const std::vector<std::optional<std::string>> &items,
                         int dimensions = 1) {
    std::string bytes = big_endian(dimensions, 4) + big_endian(0, 4) + big_endian(type, 4);
    for (int i = 0; i < dimensions; ++i)
        bytes += big_endian(static_cast<std::int64_t>(items.size()), 4) + big_endian(1, 4);
    for (const auto &item : items)
        bytes += item ? big_endian(static_cast<std::int64_t>(item->size()), 4) + *item
                      : big_endian(-1, 4);
    return bytes;
}

TEST(SingleShardPlan, EachElementOfAnArrayIsAKey) {
    EXPECT_EQ(array_key(account, in_text("{5}")), of_integer(5));
    EXPECT_EQ(array_key(account, in_text(" { 5 , \"5\",NULL, null } ")), of_integer(5));
    EXPECT_EQ(array_key(account, in_text("{-5}", oid::int2_array)), of_integer(-5));
    EXPECT_EQ(array_key(account, in_text("{40000}", oid::int2_array)), "R27");
    EXPECT_EQ(array_key(narrow, in_text("{40000}")), "R27");
    EXPECT_EQ(array_key(narrow, in_text("{40000}"), oid::int4_array), of_integer(40000));
    EXPECT_EQ(array_key(narrow, in_text("{40000}"), oid::int4), of_integer(40000));
    EXPECT_EQ(array_key(person, in_text("{\"a b\"}")), of_bytes(person, "a b"));
    EXPECT_EQ(array_key(person, in_text("{a b}", oid::varchar_array)), of_bytes(person, "a b"));
    EXPECT_EQ(array_key(device, in_text("{" + std::string(uuid_text) + "}")),
              of_bytes(device, uuid_bytes));
    EXPECT_EQ(array_key(blob, in_text("{\"\\\\x61\"}", oid::bytea_array)), of_bytes(blob, "a"));
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::int8, {big_endian(5, 8)}))),
              of_integer(5));
    EXPECT_EQ(
        array_key(account, in_binary(binary_array(oid::int4, {big_endian(5, 4)}), oid::int4_array)),
        of_integer(5));
    EXPECT_EQ(array_key(device, in_binary(binary_array(oid::uuid, {std::string(uuid_bytes)}))),
              of_bytes(device, uuid_bytes));
    EXPECT_EQ(array_key(person, in_binary(binary_array(oid::varchar, {"é", std::nullopt}))),
              of_bytes(person, "é"));
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::int8, {big_endian(40000, 8)})),
                        oid::int2_array),
              "R27");
    EXPECT_EQ(show(run(facts({key(account, array_text)}), "'{5, 5}'")), of_integer(5));
    EXPECT_EQ(show(run(facts({key(account, array_text, 0, oid::int4_array)}), "E'{5}'")),
              of_integer(5));
    EXPECT_EQ(show(run(facts({key(account, array_text, 0, oid::int2_array)}), "'{40000}'")), "R27");
}

TEST(SingleShardPlan, ArraysThatAreNoKeysAreR27) {
    for (const char *text : {"", "5", "{5", "{5,}", "{,5}", "{a}", "{{5}}", "[1:1]={5}", "{5} 6",
                             "{5.0}", "{\"\"}", "{5\\0}", "{\"NULL\"}"})
        EXPECT_EQ(array_key(account, in_text(text)), "R27") << text;
    for (const std::uint32_t type : {oid::text_array, oid::numeric, oid::int8, 1231U, 16501U})
        EXPECT_EQ(array_key(account, in_text("{5}", type)), "R27") << type;
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::float8, {big_endian(5, 8)}))), "R27");
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::int8, {big_endian(5, 4)}))), "R27");
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::int8, {big_endian(5, 8)}, 2))), "R27");
    EXPECT_EQ(array_key(account, in_binary("{5}")), "R27");
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::text, {"5"}))), "R27");
    EXPECT_EQ(array_key(device, in_binary(binary_array(oid::bytea, {std::string(uuid_bytes)}))),
              "R27");
    EXPECT_EQ(show(run(facts({key(account, array_text)}), "5")), "R27");
    EXPECT_EQ(show(run(facts({key(account, array_text)}), "U&'{5}'")), "R27");
    EXPECT_EQ(show(run(facts({key(account, array_text, 0, oid::text_array)}), "'{5}'")), "R27");
}

TEST(SingleShardPlan, ArraysWithoutAValueLeadToAnyShard) {
    for (const char *text : {"{}", " { } ", "{NULL}", "{null,NULL}"}) {
        EXPECT_EQ(array_key(account, in_text(text)), "any") << text;
        // Another key decides.
        EXPECT_EQ(
            show(run(facts({key(account, array), key(order, literal)}), "5", {in_text(text)})),
            of_integer(5));
    }
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::int8, {}, 0))), "any");
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::int8, {}))), "any");
    EXPECT_EQ(array_key(account, in_binary(binary_array(oid::int8, {std::nullopt}))), "any");
    EXPECT_EQ(show(run(facts({key(account, array_text)}), "'{}'")), "any");
}

/// The first number from `from` on that lives on the shard, and its bucket is not `other_than`.
std::int64_t number_on(int shard, std::int64_t from = 1, int other_than = -1) {
    for (std::int64_t value = from;; ++value) {
        const auto found = placement::bucket_of_hash(placement::splitmix64(value), 16);
        if (found % 2 == shard && found != other_than) return value;
    }
}

TEST(SingleShardPlan, AllKeysMustLeadToOneShard) {
    const std::int64_t first = number_on(0);
    const int bucket_of_first = placement::bucket_of_hash(placement::splitmix64(first), 16);
    const std::string here = std::to_string(first);
    const std::string too = std::to_string(number_on(0, 1, bucket_of_first));
    const std::string there = std::to_string(number_on(1));
    const Facts two = facts({key(account, literal, 0), key(order, literal, 1)});
    EXPECT_EQ(show(run(two, here + " " + here)), of_integer(first));
    EXPECT_EQ(show(run(two, here + " " + too)), of_integer(first));
    EXPECT_EQ(show(run(two, here + " " + there)), "R11");
    EXPECT_EQ(show(run(two, there + " " + too)), "R11");
    EXPECT_EQ(array_key(account, in_text("{" + here + "," + too + "}")), of_integer(first));
    EXPECT_EQ(array_key(account, in_text("{" + here + ",NULL," + there + "}")), "R11");
    EXPECT_EQ(
        show(run(facts({key(account, parameter), key(account, literal)}), here, {in_text(there)})),
        "R11");

    const Planned refused = run(two, here + " " + there);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "the statement's keys are on several shards");
    EXPECT_EQ(refused.error().detail, "B" + of_integer(first).substr(1) + " is on shard s0, " +
                                          of_integer(number_on(1)) + " on shard s1.");
    EXPECT_NE(refused.error().hint, "");
}

TEST(SingleShardPlan, R11NamesTheKeyspacesWhereTheyDiffer) {
    std::string name;
    for (char c = 'a'; name.empty(); ++c)
        if (of_bytes(person, std::string_view(&c, 1)) == "bucket 1") name = c;
    const std::string here = std::to_string(number_on(0));
    const Planned refused =
        run(facts({key(account, literal, 0), key(person, literal, 1)}), here + " '" + name + "'");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::R11);
    EXPECT_NE(refused.error().detail.find(" of keyspace main is on shard s0"), std::string::npos)
        << refused.error().detail;
    EXPECT_NE(refused.error().detail.find("bucket 1 of keyspace person on shard s1."),
              std::string::npos)
        << refused.error().detail;
}

TEST(SingleShardPlan, MessagesNameValueTypeTableAndColumn) {
    const auto message = [](const Planned &planned) {
        return planned ? std::string("accepted") : planned.error().message;
    };
    const auto hint = [](const Planned &planned) {
        return planned ? std::string("accepted") : planned.error().hint;
    };
    EXPECT_EQ(message(run(facts({key(account, parameter)}), "", {in_text("x")})),
              "parameter $1 is not a value of type bigint, for the shard key \"account_id\" of "
              "table public.account");
    EXPECT_EQ(message(run(facts({key(narrow, literal, 0, oid::int4)}), "'x'")),
              "the literal is not a value of type integer, for the shard key \"small\" of table "
              "public.narrow");
    EXPECT_EQ(message(run(facts({key(order, null)}), "")),
              "the shard key \"account_id\" of table app.\"order\" is NULL");
    EXPECT_EQ(message(run(facts({key(device, array)}), "", {in_text("{x}")})),
              "an element of parameter $1 is not a value of type uuid, for the shard key "
              "\"device_id\" of table public.device");
    EXPECT_EQ(message(run(facts({key(account, parameter, 2)}), "", {in_text("x")})),
              "the shard key \"account_id\" of table public.account is parameter $3; "
              "parameters sent: 1");
    const Planned typed = run(facts({key(account, parameter)}), "", {in_text("5", oid::numeric)});
    EXPECT_EQ(message(typed), "parameter $1 has type numeric, which does not go with the shard key "
                              "\"account_id\" of table public.account");
    EXPECT_EQ(hint(typed), "Declare it as bigint, or cast it: $1::bigint.");
    EXPECT_EQ(hint(run(facts({key(account, array)}), "", {in_text("{5}", oid::text_array)})),
              "Declare it as bigint[], or cast it: $1::bigint[].");
    EXPECT_NE(message(run(facts({key(account, parameter)}), "", {in_text("5", 16500)}))
                  .find("type with OID 16500"),
              std::string::npos);
}

TEST(SingleShardPlan, ARefusedLiteralsPositionIsInCharacters) {
    const Facts second = facts({key(account, literal, 1)});
    const auto refused = run(second, "select 'ü' where k = 'x'");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().position, 22);
    const auto in_latin1 = run(second, "select '\xA9' where k = 'x'", {}, false);
    ASSERT_FALSE(in_latin1);
    EXPECT_EQ(in_latin1.error().position, 22);
    const auto of_parameter = run(facts({key(account, parameter)}), "", {in_text("x")});
    ASSERT_FALSE(of_parameter);
    EXPECT_EQ(of_parameter.error().position, 0);
}

}  // namespace
}  // namespace interlock
