// PostgreSQL's frames: reading them at any cut, checking their length, writing them, their fields.
#include "wire/frame.h"

#include <gtest/gtest.h>

#include <string>

namespace interlock::wire {
namespace {

constexpr std::size_t no_limit = std::size_t{1} << 40;

std::string raw_frame(char type, std::uint32_t length, std::string_view body) {
    std::string bytes(1, type);
    for (const int shift : {24, 16, 8, 0})
        bytes += static_cast<char>(length >> shift);
    return bytes.append(body);
}
std::string frame(char type, std::string_view body) {
    return raw_frame(type, static_cast<std::uint32_t>(body.size() + 4), body);
}

FrameState peek(std::string_view bytes, std::size_t limit, Frame &out) {
    static Buffer buffer;
    buffer.clear();
    buffer.append(bytes);
    return peek_frame(buffer, limit, out);
}

TEST(Frame, IsReadyOnlyWhenAllOfItIsThere) {
    const std::string bytes = frame('D', "some body");
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
        Frame out;
        EXPECT_EQ(peek(bytes.substr(0, cut), no_limit, out), FrameState::need_more) << cut;
    }
    Frame out;
    ASSERT_EQ(peek(bytes, no_limit, out), FrameState::ready);
    EXPECT_EQ(out.type, 'D');
    EXPECT_EQ(out.body, "some body");
    EXPECT_EQ(out.size, bytes.size());
}

TEST(Frame, SeveralAreReadOneAfterTheOtherAtEveryCut) {
    const std::string bytes = frame('1', "") + frame('T', std::string(300, 't')) + frame('Z', "I");
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
        Buffer buffer;
        std::string types;
        Frame out;
        const auto read_all = [&] {
            while (peek_frame(buffer, no_limit, out) == FrameState::ready) {
                types += out.type;
                buffer.consume(out.size);
            }
        };
        buffer.append(bytes.substr(0, cut));
        read_all();
        buffer.append(bytes.substr(cut));
        read_all();
        EXPECT_EQ(types, "1TZ") << cut;
        EXPECT_TRUE(buffer.empty());
    }
}

TEST(Frame, ALengthThatCannotBeIsMalformed) {
    Frame out;
    for (const std::uint32_t length : {0U, 1U, 3U, 0x80000000U, 0xFFFFFFFFU})
        EXPECT_EQ(peek(raw_frame('D', length, "abc"), no_limit, out), FrameState::malformed);
    EXPECT_EQ(peek(raw_frame('D', 4, ""), no_limit, out), FrameState::ready);
    EXPECT_EQ(out.body, "");
    EXPECT_EQ(peek(raw_frame('D', 0x7fffffff, "abc"), no_limit, out), FrameState::need_more);
}

TEST(Frame, TheLimitBoundsTheWholeFrameAndIsSeenFromTheHeaderAlone) {
    Frame out;
    EXPECT_EQ(peek(frame('D', "abc"), 8, out), FrameState::ready);
    EXPECT_EQ(peek(frame('D', "abcd"), 8, out), FrameState::too_long);
    EXPECT_EQ(out.type, 'D');
    EXPECT_EQ(out.size, 9U);
    EXPECT_EQ(peek(raw_frame('D', 0x7fffffff, ""), 1 << 20, out), FrameState::too_long);
}

TEST(FrameWriter, WritesWhatTheReaderReads) {
    Buffer buffer;
    FrameWriter(buffer, 'B')
        .string("portal")
        .string("")
        .int16(0xABCD)
        .int32(0xDEADBEEF)
        .bytes(std::string_view("\0\1\2", 3));
    Frame out;
    ASSERT_EQ(peek_frame(buffer, no_limit, out), FrameState::ready);
    EXPECT_EQ(out.type, 'B');
    EXPECT_EQ(out.size, buffer.size());
    FieldReader fields(out.body);
    EXPECT_EQ(fields.string(), "portal");
    EXPECT_EQ(fields.string(), "");
    EXPECT_EQ(fields.int16(), 0xABCD);
    EXPECT_EQ(fields.int32(), 0xDEADBEEF);
    EXPECT_EQ(fields.bytes(3), std::string_view("\0\1\2", 3));
    EXPECT_TRUE(fields.ok());
    EXPECT_TRUE(fields.at_end());
}

TEST(FrameWriter, AFrameBehindOthersAndAcrossGrowthIsWhole) {
    Buffer buffer;
    buffer.append(std::string(500, '.'));
    buffer.consume(499);  // the writer must not rely on where the buffer begins
    { FrameWriter(buffer, 'S'); }
    {
        FrameWriter writer(buffer, 'd');
        for (int i = 0; i < 1000; ++i)
            writer.bytes(std::string(100, 'x'));
    }
    buffer.consume(1);
    Frame out;
    ASSERT_EQ(peek_frame(buffer, no_limit, out), FrameState::ready);
    EXPECT_EQ(out.size, 5U);
    buffer.consume(out.size);
    ASSERT_EQ(peek_frame(buffer, no_limit, out), FrameState::ready);
    EXPECT_EQ(out.body.size(), 100000U);
}

TEST(FieldReader, StopsAtTheFirstFieldThatIsNotWhollyThere) {
    for (const auto read : {+[](FieldReader &fields) { (void)fields.int8(); },
                            +[](FieldReader &fields) { (void)fields.int16(); },
                            +[](FieldReader &fields) { (void)fields.int32(); },
                            +[](FieldReader &fields) { (void)fields.string(); },
                            +[](FieldReader &fields) { (void)fields.bytes(1); }}) {
        FieldReader fields("");
        read(fields);
        EXPECT_FALSE(fields.ok());
    }
    FieldReader fields(std::string_view("\1\2\3", 3));
    EXPECT_EQ(fields.int16(), 0x0102);
    EXPECT_EQ(fields.int32(), 0U);
    EXPECT_FALSE(fields.ok());
    EXPECT_EQ(fields.int8(), 0);  // nothing is read any more, though a byte is left
    EXPECT_FALSE(fields.ok());
    EXPECT_EQ(FieldReader("abc").string(), "");  // no terminating zero
    EXPECT_EQ(FieldReader("abc").bytes(0xFFFFFFFF), "");
}

std::string error_body(std::string_view fields) {
    // Fields separated by |, for reading's sake.
    std::string body(fields);
    std::replace(body.begin(), body.end(), '|', '\0');
    return body + '\0';
}

TEST(ParseError, TakesTheFieldsThatMatter) {
    const std::string body = error_body("SFEHLER|VERROR|C23514|Mviolates check|Dthe row|Hdo not|"
                                        "Ffile.c|L12|Rroutine|");
    ErrorFields out;
    ASSERT_TRUE(parse_error(body, out));
    EXPECT_EQ(out.severity, "ERROR");
    EXPECT_EQ(out.sqlstate, "23514");
    EXPECT_EQ(out.message, "violates check");
    EXPECT_EQ(out.detail, "the row");
    EXPECT_EQ(out.hint, "do not");
    EXPECT_FALSE(out.fatal());
}

TEST(ParseError, FatalAndPanicEndTheSession) {
    const std::string fatal = error_body("VFATAL|C57P01|");
    const std::string panic = error_body("VPANIC|CXX000|");
    // A translated severity alone does not decide.
    const std::string translated = error_body("SFATAL|C57P01|");
    ErrorFields out;
    ASSERT_TRUE(parse_error(fatal, out));
    EXPECT_TRUE(out.fatal());
    ASSERT_TRUE(parse_error(panic, out));
    EXPECT_TRUE(out.fatal());
    ASSERT_TRUE(parse_error(translated, out));
    EXPECT_FALSE(out.fatal());
}

TEST(ParseError, MissingOrOddStatesBecomeXX000) {
    for (const char *fields : {"", "Mno state|", "C|", "C1234|", "C123456|"}) {
        const std::string body = error_body(fields);
        ErrorFields out;
        ASSERT_TRUE(parse_error(body, out)) << fields;
        EXPECT_EQ(out.sqlstate, "XX000") << fields;
    }
}

TEST(ParseError, AtEveryCutABodyIsMalformed) {
    const std::string body = error_body("VERROR|C23514|Mmessage|");
    for (std::size_t cut = 0; cut < body.size(); ++cut) {
        ErrorFields out;
        EXPECT_FALSE(parse_error(std::string_view(body).substr(0, cut), out)) << cut;
    }
}

TEST(CommandTag, IsCutIntoNameAndCount) {
    struct Case {
        const char *tag, *name;
        std::uint64_t count;
    };
    for (const auto &[tag, name, count] :
         {Case{"UPDATE 3", "UPDATE", 3}, Case{"INSERT 0 1", "INSERT", 1},
          Case{"SELECT 0", "SELECT", 0},
          Case{"DELETE 18446744073709551615", "DELETE", 18446744073709551615ULL},
          Case{"COMMIT", "COMMIT", 0}, Case{"ROLLBACK", "ROLLBACK", 0}, Case{"", "", 0},
          Case{"CREATE TABLE", "CREATE TABLE", 0}, Case{"SELECT", "SELECT", 0},
          Case{"COPY x", "COPY x", 0}, Case{"INSERT 0 ", "INSERT", 0}}) {
        EXPECT_EQ(tag_name(tag), name) << tag;
        EXPECT_EQ(tag_count(tag), count) << tag;
    }
}

TEST(Integers, AreReadInNetworkOrder) {
    EXPECT_EQ(load16("\x01\x02"), 0x0102);
    EXPECT_EQ(load16("\xFF\xFE"), 0xFFFE);
    EXPECT_EQ(load32("\x01\x02\x03\x04"), 0x01020304U);
    EXPECT_EQ(load32("\xFF\xFE\xFD\xFC"), 0xFFFEFDFCU);
}

}  // namespace
}  // namespace interlock::wire
