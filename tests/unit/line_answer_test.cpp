// Answer lines: rows as JSON, their budgets, and the fields of OK and ERR.
#include "session/line_format.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace interlock {
namespace {

using Value = std::optional<std::string>;

/// RowDescription's body for columns of these types.
std::string description(const std::vector<std::uint32_t> &types) {
    Buffer buffer;
    {
        wire::FrameWriter writer(buffer, 'T');
        writer.int16(static_cast<std::uint16_t>(types.size()));
        for (const std::uint32_t type : types)
            writer.string("column").int32(0).int16(0).int32(type).int16(8).int32(0).int16(0);
    }
    return std::string(buffer.view().substr(wire::frame_header));
}

std::string data_row(const std::vector<Value> &values) {
    Buffer buffer;
    {
        wire::FrameWriter writer(buffer, 'D');
        writer.int16(static_cast<std::uint16_t>(values.size()));
        for (const Value &value : values) {
            if (value)
                writer.int32(static_cast<std::uint32_t>(value->size())).bytes(*value);
            else
                writer.int32(0xFFFFFFFF);
        }
    }
    return std::string(buffer.view().substr(wire::frame_header));
}

std::string line_of(const Reply &reply, const JsonRows &rows) {
    Buffer out;
    append_reply(out, reply, rows);
    return std::string(out.view());
}

class JsonRowsTest : public testing::Test {
  protected:
    std::string json(const std::vector<std::uint32_t> &types, const std::vector<Value> &values) {
        JsonRows rows(1 << 20, shared_, 1 << 20);
        rows.describe(description(types));
        EXPECT_TRUE(rows.row(data_row(values)));
        return std::string(rows.text());
    }
    std::string text(const std::string &value) { return json({oid::text}, {value}); }

    std::size_t shared_ = 0;
};

TEST_F(JsonRowsTest, EachTypeHasItsForm) {
    EXPECT_EQ(json({oid::int2, oid::int4, oid::int8, oid::oid}, {"-1", "2", "3", "4"}),
              "[-1,2,3,4]");
    EXPECT_EQ(json({oid::boolean, oid::boolean}, {"t", "f"}), "[true,false]");
    // Numbers that JSON readers would round, and everything else, are strings.
    EXPECT_EQ(json({oid::numeric, oid::float8, oid::uuid, 1114}, {"1.50", "NaN", "a0", "now"}),
              R"(["1.50","NaN","a0","now"])");
    EXPECT_EQ(
        json({oid::int8, oid::text, oid::boolean}, {std::nullopt, std::nullopt, std::nullopt}),
        "[null,null,null]");
    EXPECT_EQ(json({oid::text, oid::text}, {"", "null"}), R"(["","null"])");
    EXPECT_EQ(json({}, {}), "[]");
}

TEST_F(JsonRowsTest, StringsAreEscaped) {
    EXPECT_EQ(text("a\"b\\c"), R"(["a\"b\\c"])");
    EXPECT_EQ(text("\n\r\t"), R"(["\n\r\t"])");
    EXPECT_EQ(text("\x01\x1f\x08\x0c"), R"(["\u0001\u001f\u0008\u000c"])");
    EXPECT_EQ(text("\x7f/"), "[\"\x7f/\"]");
    EXPECT_EQ(text("é€\xF0\x9F\x9A\x82"), "[\"é€\xF0\x9F\x9A\x82\"]");
}

TEST_F(JsonRowsTest, NoControlCharacterIsLeftInAnAnswer) {
    std::string every;
    for (int c = 1; c < 256; ++c)
        every += static_cast<char>(c);
    for (const char c : text(every))
        EXPECT_GE(static_cast<unsigned char>(c), 0x20) << static_cast<int>(c);
}

TEST_F(JsonRowsTest, RowsAreSeparatedByCommas) {
    JsonRows rows(1 << 20, shared_, 1 << 20);
    EXPECT_FALSE(rows.described());
    rows.describe(description({oid::int4}));
    EXPECT_TRUE(rows.described());
    EXPECT_TRUE(rows.row(data_row({"1"})));
    EXPECT_TRUE(rows.row(data_row({"2"})));
    EXPECT_EQ(rows.text(), "[1],[2]");
    EXPECT_EQ(rows.count(), 2U);
}

TEST_F(JsonRowsTest, AnAnswerIsBounded) {
    JsonRows rows(100, shared_, 1 << 20);
    rows.describe(description({oid::text}));
    EXPECT_TRUE(rows.row(data_row({std::string(50, 'x')})));
    EXPECT_FALSE(rows.row(data_row({std::string(50, 'x')})));
    // What escaping makes of it counts, not what came.
    JsonRows quoted(100, shared_, 1 << 20);
    quoted.describe(description({oid::text}));
    EXPECT_FALSE(quoted.row(data_row({std::string(60, '"')})));
}

TEST_F(JsonRowsTest, AllAnswersTogetherAreBoundedAndTheBudgetComesBack) {
    {
        JsonRows first(1 << 20, shared_, 150);
        first.describe(description({oid::text}));
        EXPECT_TRUE(first.row(data_row({std::string(80, 'x')})));
        EXPECT_EQ(shared_, first.text().size());
        JsonRows second(1 << 20, shared_, 150);
        second.describe(description({oid::text}));
        EXPECT_FALSE(second.row(data_row({std::string(80, 'x')})));
        EXPECT_EQ(shared_, first.text().size());
    }
    EXPECT_EQ(shared_, 0U);
}

TEST_F(JsonRowsTest, DamagedRowsAreRefusedNotRead) {
    const std::string whole = data_row({"12345", "x"});
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
        JsonRows rows(1 << 20, shared_, 1 << 20);
        rows.describe(description({oid::int8, oid::text}));
        EXPECT_FALSE(rows.row(std::string_view(whole).substr(0, cut))) << cut;
    }
    const std::string described = description({oid::int8, oid::text});
    for (std::size_t cut = 0; cut < described.size(); ++cut) {
        JsonRows rows(1 << 20, shared_, 1 << 20);
        rows.describe(std::string_view(described).substr(0, cut));
        EXPECT_TRUE(rows.row(whole)) << cut;  // columns not described are strings
    }
    EXPECT_EQ(shared_, 0U);
}

class AppendReplyTest : public testing::Test {
  protected:
    std::size_t shared_ = 0;
    JsonRows none_{1 << 20, shared_, 1 << 20};
};

TEST_F(AppendReplyTest, AWrite) {
    Reply reply;
    reply.tag = "UPDATE";
    reply.shard = "s0";
    reply.route_version = 1;
    reply.transaction = Transaction::open;
    reply.pid = 1457801;
    reply.count = 1;
    EXPECT_EQ(line_of(reply, none_), "OK tag=UPDATE shard=s0 rv=1 tx=T pid=1457801 count=1\n");
}

TEST_F(AppendReplyTest, ARead) {
    Reply reply;
    reply.tag = "SELECT";
    reply.shard = "s0";
    reply.route_version = 1;
    reply.pid = 7;
    reply.count = 1;
    JsonRows rows(1 << 20, shared_, 1 << 20);
    rows.describe(description({oid::int8, oid::text}));
    ASSERT_TRUE(rows.row(data_row({"1", "bob"})));
    EXPECT_EQ(line_of(reply, rows),
              "OK tag=SELECT shard=s0 rv=1 tx=I pid=7 count=1 rows=[[1,\"bob\"]]\n");
    JsonRows empty(1 << 20, shared_, 1 << 20);
    empty.describe(description({oid::int8}));
    reply.count = 0;
    EXPECT_EQ(line_of(reply, empty), "OK tag=SELECT shard=s0 rv=1 tx=I pid=7 count=0 rows=[]\n");
}

TEST_F(AppendReplyTest, NoBackendIsNone) {
    Reply reply;
    reply.tag = "COMMIT";
    reply.route_version = 3;
    EXPECT_EQ(line_of(reply, none_), "OK tag=COMMIT shard=none rv=3 tx=I pid=none count=0\n");
    reply.no_transaction = true;
    EXPECT_EQ(line_of(reply, none_),
              "OK tag=COMMIT shard=none rv=3 tx=I pid=none count=0 note=no_transaction\n");
}

TEST_F(AppendReplyTest, APageOfAllShardsNamesNoneOfThem) {
    Reply reply;
    reply.tag = "SELECT";
    reply.shard = "*";
    reply.route_version = 4;
    EXPECT_EQ(line_of(reply, none_), "OK tag=SELECT shard=* rv=4 tx=I pid=none count=0\n");
    reply.refusal = make_refusal(Code::bad_cursor, "invalid cursor");
    reply.shard.clear();
    EXPECT_EQ(line_of(reply, none_),
              "ERR code=BAD_CURSOR tx=I rv=4 sqlstate=IL201 msg=invalid cursor\n");
}

TEST_F(AppendReplyTest, ARefusal) {
    Reply reply;
    reply.route_version = 2;
    reply.transaction = Transaction::failed;
    reply.refusal = Refusal{Code::R12, "other shard", "It was rolled back.", "Stay.", {}, 0};
    EXPECT_EQ(line_of(reply, none_), "ERR code=R12 tx=E rv=2 sqlstate=IL012 msg=other shard; "
                                     "DETAIL: It was rolled back.; HINT: Stay.\n");
    reply.refusal = Refusal{Code::R28, "a literal", {}, {}, {}, 17};
    reply.transaction = Transaction::none;
    EXPECT_EQ(line_of(reply, none_),
              "ERR code=R28 tx=I rv=2 sqlstate=IL028 position=17 msg=a literal\n");
}

TEST_F(AppendReplyTest, ABackendsErrorNamesShardAndProcess) {
    Reply reply;
    reply.route_version = 1;
    reply.transaction = Transaction::failed;
    reply.shard = "s0";
    reply.pid = 123;
    reply.refusal = Refusal{Code::R31, "violates check", {}, {}, "23514", 0};
    EXPECT_EQ(line_of(reply, none_),
              "ERR code=R31 tx=E rv=1 sqlstate=23514 shard=s0 pid=123 msg=violates check\n");
}

TEST_F(AppendReplyTest, AMessageIsAlwaysOneLine) {
    Reply reply;
    reply.refusal = Refusal{Code::R31, "line\nbreaks\r\nin", "de\ntail", "hi\nnt", "23514", 0};
    const std::string line = line_of(reply, none_);
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    EXPECT_EQ(line.find('\r'), std::string::npos);
    EXPECT_TRUE(line.ends_with("msg=line breaks  in; DETAIL: de tail; HINT: hi nt\n"));
}

TEST_F(AppendReplyTest, ARefusalShowsNoRows) {
    JsonRows rows(1 << 20, shared_, 1 << 20);
    rows.describe(description({oid::int8}));
    ASSERT_TRUE(rows.row(data_row({"1"})));
    Reply reply;
    reply.refusal = Refusal{Code::R37, "too large", {}, {}, {}, 0};
    EXPECT_EQ(line_of(reply, rows).find("rows="), std::string::npos);
}

}  // namespace
}  // namespace interlock
