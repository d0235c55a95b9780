// The start-up packet: what PostgreSQL takes is taken, what it refuses is refused in its words.
#include "wire/frame.h"
#include "wire/startup.h"

#include <gtest/gtest.h>

#include <string>

namespace interlock::wire {
namespace {

using Kind = Startup::Kind;
using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string int32(std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8)
        bytes += static_cast<char>(value >> static_cast<unsigned>(shift));
    return bytes;
}

std::string packet(const std::string &body) {
    return int32(static_cast<std::uint32_t>(body.size() + 4)) + body;
}

std::string login(const Pairs &pairs, std::uint32_t version = protocol_version) {
    std::string body = int32(version);
    for (const auto &[name, value] : pairs)
        body += name + '\0' + value + '\0';
    return packet(body + '\0');
}

/// "ready", "need more", or SQLSTATE and message.
std::string outcome(const std::string &bytes, bool may_encrypt = true, bool may_gss = true) {
    Startup startup;
    Fatal fatal;
    switch (parse_startup(bytes, may_encrypt, may_gss, startup, fatal)) {
    case StartupState::ready: return "ready";
    case StartupState::need_more: return "need more";
    case StartupState::refused: return fatal.sqlstate + " " + fatal.message;
    }
    return "";
}

Startup parsed(const std::string &bytes) {
    Startup startup;
    Fatal fatal;
    EXPECT_EQ(parse_startup(bytes, true, true, startup, fatal), StartupState::ready)
        << fatal.message;
    return startup;
}

Pairs settings_of(const std::string &options) {
    return parsed(login({{"user", "u"}, {"options", options}})).parameters;
}

std::string options_fault(const std::string &options) {
    return outcome(login({{"user", "u"}, {"options", options}}));
}

TEST(Startup, ALoginHasUserDatabaseAndTheRestInOrder) {
    const Startup startup = parsed(login({{"application_name", "psql"},
                                          {"user", "alice"},
                                          {"database", "shop"},
                                          {"options", "-c geqo=off --work-mem=1MB"},
                                          {"DateStyle", "ISO"},
                                          {"replication", "off"}}));
    EXPECT_EQ(startup.kind, Kind::login);
    EXPECT_EQ(startup.user, "alice");
    EXPECT_EQ(startup.database, "shop");
    // Those of "options" first: what the packet says itself wins.
    EXPECT_EQ(startup.parameters, (Pairs{{"geqo", "off"},
                                         {"work_mem", "1MB"},
                                         {"application_name", "psql"},
                                         {"DateStyle", "ISO"}}));
    EXPECT_FALSE(startup.negotiate());
}

TEST(Startup, TheDatabaseIsTheUsersIfNotGivenAndNamesAreCut) {
    EXPECT_EQ(parsed(login({{"user", "alice"}})).database, "alice");
    EXPECT_EQ(parsed(login({{"user", "alice"}, {"database", ""}})).database, "alice");
    const std::string name(70, 'n');
    const Startup startup = parsed(login({{"user", name}, {"database", name}}));
    EXPECT_EQ(startup.user, name.substr(0, 63));
    EXPECT_EQ(startup.database, name.substr(0, 63));
    EXPECT_EQ(parsed(login({{"user", "a"}, {"user", "b"}})).user, "b");
}

TEST(Startup, TheLengthComesFirst) {
    const std::string bad = "08P01 invalid length of startup packet";
    for (const std::uint32_t length : {0U, 4U, 7U, 10005U, 0x7FFFFFFFU, 0xFFFFFFFFU})
        EXPECT_EQ(outcome(int32(length)), bad) << length;
    EXPECT_EQ(outcome("GET / HTTP/1.1\r\n"), bad);
    EXPECT_EQ(outcome("\x16\x03\x01\x02"), bad);  // TLS without asking
    for (const std::uint32_t length : {8U, 10004U})
        EXPECT_EQ(outcome(int32(length)), "need more") << length;
    EXPECT_EQ(outcome(""), "need more");
    std::string largest =
        login({{"user", "u"}, {"application_name", std::string(10004 - 34, 'x')}});
    ASSERT_EQ(largest.size(), 10004U);
    EXPECT_EQ(outcome(largest), "ready");
}

TEST(Startup, APacketMayComeByteByByteAndWithMoreBehindIt) {
    const std::string whole = login({{"user", "alice"}});
    for (std::size_t size = 0; size < whole.size(); ++size)
        EXPECT_EQ(outcome(whole.substr(0, size)), "need more") << size;
    const Startup startup = parsed(whole + "Q");
    EXPECT_EQ(startup.size, whole.size());
    EXPECT_EQ(startup.user, "alice");
}

TEST(Startup, MalformedLayouts) {
    const std::string bad = "08P01 invalid startup packet layout: expected terminator as last byte";
    const std::string version = int32(protocol_version);
    for (const std::string &body :
         {std::string(), std::string("user\0", 5), std::string("user"),
          std::string("user\0alice", 10), std::string("user\0alice\0", 11),
          std::string("user\0alice\0\0\0", 13), std::string("user\0alice\0\0x", 13)})
        EXPECT_EQ(outcome(packet(version + body)), bad) << body;
    const std::string nobody = "28000 no PostgreSQL user name specified in startup packet";
    EXPECT_EQ(outcome(login({})), nobody);
    EXPECT_EQ(outcome(login({{"user", ""}})), nobody);
    EXPECT_EQ(outcome(login({{"database", "shop"}})), nobody);
}

TEST(Startup, RequestsForEncryptionOnce) {
    const std::string tls = packet(int32(1234U << 16U | 5679U));
    const std::string gss = packet(int32(1234U << 16U | 5680U));
    EXPECT_EQ(parsed(tls).kind, Kind::tls);
    EXPECT_EQ(parsed(gss).kind, Kind::gssenc);
    EXPECT_EQ(outcome(tls, false, true),
              "0A000 unsupported frontend protocol 1234.5679: server supports 3.0 to 3.0");
    EXPECT_EQ(outcome(gss, true, false),
              "0A000 unsupported frontend protocol 1234.5680: server supports 3.0 to 3.0");
    EXPECT_EQ(outcome(packet(int32(1234U << 16U | 5679U) + "x")),
              "08P01 invalid length of startup packet");
}

TEST(Startup, CancelRequests) {
    const Startup cancel = parsed(packet(int32(1234U << 16U | 5678U) + int32(4711) + int32(99)));
    EXPECT_EQ(cancel.kind, Kind::cancel);
    EXPECT_EQ(cancel.cancel_pid, 4711U);
    EXPECT_EQ(cancel.cancel_secret, 99U);
    for (const std::string &body : {std::string(), int32(1), int32(1) + int32(2) + "x"})
        EXPECT_EQ(outcome(packet(int32(1234U << 16U | 5678U) + body)),
                  "08P01 invalid length of query cancel packet");
}

TEST(Startup, VersionsAreNegotiatedOrRefused) {
    for (const std::uint32_t major : {0U, 2U, 4U, 65535U})
        EXPECT_EQ(outcome(login({{"user", "u"}}, major << 16U)),
                  "0A000 unsupported frontend protocol " + std::to_string(major) +
                      ".0: server supports 3.0 to 3.0");
    const Startup newer = parsed(
        login({{"user", "u"}, {"_pq_.compression", "1"}, {"_pq_.x", ""}}, protocol_version + 2));
    EXPECT_TRUE(newer.negotiate());
    EXPECT_TRUE(newer.parameters.empty());
    Buffer out;
    append_negotiation(out, newer);
    const std::string body =
        int32(protocol_version) + int32(2) + "_pq_.compression" + '\0' + "_pq_.x" + '\0';
    EXPECT_EQ(out.view(), "v" + packet(body));
    EXPECT_TRUE(parsed(login({{"user", "u"}, {"_pq_.x", ""}})).negotiate());
    EXPECT_TRUE(parsed(login({{"user", "u"}}, protocol_version + 1)).negotiate());
}

TEST(Startup, ReplicationIsRefused) {
    for (const char *value : {"true", "on", "1", "yes", "database", "nonsense", "o", "fals0"})
        EXPECT_EQ(outcome(login({{"user", "u"}, {"replication", value}})),
                  "0A000 replication connections are not supported")
            << value;
    for (const char *value : {"false", "off", "OF", "0", "no", "f", "N"})
        EXPECT_EQ(outcome(login({{"user", "u"}, {"replication", value}})), "ready") << value;
}

TEST(Startup, OptionsAreSplitAsPostgreSQLSplitsThem) {
    using Words = std::vector<std::string>;
    EXPECT_EQ(split_options(""), Words{});
    EXPECT_EQ(split_options(" \t\n"), Words{});
    EXPECT_EQ(split_options("  -c a=1\t -c\nb=2 "), (Words{"-c", "a=1", "-c", "b=2"}));
    EXPECT_EQ(split_options(R"(a\ b\\c\d e\)"), (Words{"a b\\cd", "e"}));
    EXPECT_EQ(split_options(R"(\ )"), Words{" "});
    EXPECT_EQ(split_options(R"(\)"), Words{""});
}

TEST(Startup, OptionsAreSettings) {
    EXPECT_EQ(settings_of("-c a=1 -cb=2 --c-d=3 -c e-f= --g=h=i"),
              (Pairs{{"a", "1"}, {"b", "2"}, {"c_d", "3"}, {"e_f", ""}, {"g", "h=i"}}));
    EXPECT_EQ(settings_of(R"(-c search_path=a,\ b)"), (Pairs{{"search_path", "a, b"}}));
    EXPECT_EQ(settings_of(""), Pairs{});
    EXPECT_EQ(options_fault("-c a"), "42601 -c a requires a value");
    EXPECT_EQ(options_fault("-ca"), "42601 -c a requires a value");
    EXPECT_EQ(options_fault("--a"), "42601 --a requires a value");
    for (const char *bad : {"a=1", "-c", "--", "-", "-Z", "-c a=1 b", "-1"})
        EXPECT_EQ(options_fault(bad).substr(0, 5), "42601") << bad;
    for (const char *switches : {"-S 4MB", "-e", "-F", "-d5", "-tpa"})
        EXPECT_EQ(options_fault(switches).substr(0, 5), "0A000") << switches;
}

TEST(Startup, AFatalErrorIsAnErrorResponse) {
    Buffer out;
    append_fatal(out, {"53300", "sorry, too many clients already", "d", "h"});
    Frame frame;
    ASSERT_EQ(peek_frame(out, 1000, frame), FrameState::ready);
    EXPECT_EQ(frame.type, 'E');
    EXPECT_EQ(frame.size, out.size());
    ErrorFields error;
    ASSERT_TRUE(parse_error(frame.body, error));
    EXPECT_TRUE(error.fatal());
    EXPECT_EQ(error.sqlstate, "53300");
    EXPECT_EQ(error.message, "sorry, too many clients already");
    EXPECT_EQ(error.detail, "d");
    EXPECT_EQ(error.hint, "h");
}

}  // namespace
}  // namespace interlock::wire
