// The file of users: what is taken, and that a complaint names the line but no secret.
#include "session/auth_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <unistd.h>

namespace interlock {
namespace {

const std::string verifier =
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

std::string fault(const std::string &text) {
    const auto users = parse_auth_file(text, "users");
    return users ? "" : users.error();
}

TEST(AuthFile, UsersVerifiersAndRoles) {
    const auto good =
        parse_auth_file("; comment\n\n# comment\r\n\"alice\" \"" + verifier + "\"\n\t\"bob\"\t\"" +
                            verifier + "\" \"shop_app\" \r\n \"carol\" \"\"",
                        "users");
    ASSERT_TRUE(good) << good.error();
    ASSERT_EQ(good->size(), 3U);
    EXPECT_EQ(good->at("alice").backend_login, "alice");
    EXPECT_TRUE(good->at("alice").verifier);
    EXPECT_EQ(good->at("bob").backend_login, "shop_app");
    EXPECT_EQ(good->at("carol").backend_login, "carol");
    EXPECT_FALSE(good->at("carol").verifier);
    ASSERT_TRUE(parse_auth_file("", "users"));
}

TEST(AuthFile, AQuoteIsDoubled) {
    const auto users = parse_auth_file(R"("a""b" "" "x""")", "users");
    ASSERT_TRUE(users) << users.error();
    EXPECT_EQ(users->at("a\"b").backend_login, "x\"");
}

TEST(AuthFile, ComplaintsNameTheLineAndNoSecret) {
    for (const std::string &line :
         {std::string("alice secret"), std::string("\"alice\""), std::string("\"alice\" \"secret"),
          std::string("\"alice\" \"secret\""), std::string("\"alice\" \"md5secret\""),
          std::string("\"\" \"\""), std::string("\"a\" \"\" \"\""),
          std::string("\"a\" \"\" \"b\" \"secret\""), "\"" + std::string(64, 'a') + "\" \"\"",
          "\"a\" \"" + verifier + " \"", std::string("\"a\0b\" \"\"", 8)}) {
        const std::string why = fault("\n" + line + "\n");
        EXPECT_TRUE(why.starts_with("users:2: ")) << why;
        EXPECT_EQ(why.find("secret"), std::string::npos) << why;
    }
    EXPECT_EQ(fault("\"a\" \"\"\n\"a\" \"\""), "users:2: user \"a\" is there twice");
}

TEST(AuthFile, IsReadFromDisk) {
    char path[] = "/tmp/interlock-users-XXXXXX";
    ::close(::mkstemp(path));
    std::ofstream(path) << "\"alice\" \"" << verifier << "\"\n";
    const auto users = read_auth_file(path);
    std::remove(path);
    ASSERT_TRUE(users);
    EXPECT_TRUE(users->contains("alice"));
    EXPECT_NE(read_auth_file(path).error().find("No such file"), std::string::npos);
    EXPECT_NE(read_auth_file("/tmp").error().find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace interlock
