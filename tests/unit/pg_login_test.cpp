// The start of a connection to the PostgreSQL listener, over a socket pair: who comes in, as whom,
// and what the others are told.
#include "login_fixture.h"

#include <fcntl.h>
#include <fstream>

namespace interlock {
namespace {

using test::Caller;
using test::int32;
using test::packet;
using test::startup_packet;
using Kind = Opening::Kind;

const std::string ok = "R" + packet(int32(0));
// The password is "pencil".
const std::string verifier =
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

class Logins : public test::LoginTest {};

class PasswordLogins : public test::LoginTest {
  protected:
    PasswordLogins() {
        settings_.pg_auth = "scram-sha-256";
        settings_.pg_auth_file = certificates_.file("users");
        std::ofstream(settings_.pg_auth_file)
            << "\"alice\" \"" << verifier << "\" \"shop_app\"\n\"bob\" \"" << verifier
            << "\"\n\"carol\" \"\"\n";
        certificates_.add("server", "localhost");
        certificates_.add("alice", "alice");
        certificates_.add("stranger", "alice", true);
    }
    void with_tls(const std::string &mode) {
        settings_.pg_tls = mode;
        settings_.pg_tls_cert_file = certificates_.file("server.crt");
        settings_.pg_tls_key_file = certificates_.file("server.key");
    }
    std::string answer_to(const std::string &user, const std::string &password) {
        std::string heard;
        open([&](Caller &caller) {
            caller.send(startup_packet(user));
            caller.scram(password);
            heard = caller.fatal();
        });
        return heard;
    }

    test::Certificates certificates_;
};

TEST_F(Logins, TrustLetsEveryoneInWhenAskedFor) {
    std::string heard;
    const Opening opening = open([&](Caller &caller) {
        caller.send(startup_packet("alice"));
        heard = caller.read(ok.size());
    });
    EXPECT_EQ(heard, ok);
    ASSERT_EQ(opening.kind, Kind::login);
    EXPECT_EQ(opening.login.user, "alice");
    EXPECT_EQ(opening.login.database, "shop");
    EXPECT_EQ(opening.login.backend_login, "alice");
    EXPECT_EQ(clients_during_, 1U);
}

TEST_F(Logins, WhatComesBehindTheStartupPacketIsKept) {
    const Opening opening = open([&](Caller &caller) {
        caller.send(startup_packet("alice") + "Qmore");
        caller.read(ok.size());
    });
    EXPECT_EQ(opening.kind, Kind::login);
    EXPECT_EQ(left_, "Qmore");
}

TEST_F(Logins, ByteByByte) {
    const Opening opening = open([&](Caller &caller) {
        for (const char byte : test::gss_request)
            caller.send(std::string(1, byte));
        EXPECT_EQ(caller.read(1), "N");
        for (const char byte : startup_packet("alice"))
            caller.send(std::string(1, byte));
        EXPECT_EQ(caller.read(ok.size()), ok);
    });
    EXPECT_EQ(opening.kind, Kind::login);
}

TEST_F(Logins, CancelRequestsPassEvenWhenThereAreTooManyClients) {
    clients_before_ = settings_.pg_max_clients = 1;
    const Opening opening = open([&](Caller &caller) {
        caller.send(packet(int32(1234U << 16U | 5678U) + int32(4711) + int32(0xFFFFFFFF)));
        EXPECT_EQ(caller.read_all(), "");
    });
    ASSERT_EQ(opening.kind, Kind::cancel);
    EXPECT_EQ(opening.cancel_pid, 4711U);
    EXPECT_EQ(opening.cancel_secret, 0xFFFFFFFFU);
}

TEST_F(Logins, RefusalsAreFatalAndTheLastThingSaid) {
    EXPECT_EQ(told("GET / HTTP/1.1\r\n\r\n"), "08P01 invalid length of startup packet");
    EXPECT_EQ(told(startup_packet("")),
              "28000 no PostgreSQL user name specified in startup packet");
    EXPECT_EQ(told(startup_packet("u", "shop", 2U << 16U)),
              "0A000 unsupported frontend protocol 2.0: server supports 3.0 to 3.0");
}

TEST_F(Logins, TheDatabaseMayBeFixed) {
    // Only to somebody who has proven who he is, as PostgreSQL does.
    EXPECT_EQ(told(startup_packet("u", "interlock"), ok),
              "3D000 database \"interlock\" does not exist");
    settings_.pg_database = "shop";
    EXPECT_EQ(told(startup_packet("u", "other"), ok), "3D000 database \"other\" does not exist");
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(startup_packet("u", "shop"));
                  caller.read(ok.size());
              }).kind,
              Kind::login);
}

TEST_F(Logins, TooManyClientsAreTurnedAway) {
    clients_before_ = settings_.pg_max_clients = 3;
    EXPECT_EQ(told(startup_packet("u")), "53300 sorry, too many clients already");
    clients_before_ = 0;
    starting_before_ = 3;  // and those that say nothing at all have their bound too
    EXPECT_EQ(told(startup_packet("u")), "closed");
}

TEST_F(Logins, WhoSaysNothingOrLeavesIsDropped) {
    EXPECT_EQ(open([](Caller &) {}).kind, Kind::closed);
    EXPECT_EQ(open([](Caller &caller) { caller.send(startup_packet("u").substr(0, 9)); }).kind,
              Kind::closed);
    settings_.pg_login_timeout = 50;
    std::string heard = "?";
    EXPECT_EQ(open([&](Caller &caller) { heard = caller.read_all(); }).kind, Kind::closed);
    EXPECT_EQ(heard, "");
}

TEST_F(Logins, NewerProtocolsAreNegotiatedDown) {
    std::string body = int32(wire::protocol_version + 7);
    for (const char *word : {"user", "u", "_pq_.shiny", "1"})
        body += std::string(word) + '\0';
    const Opening opening = open([&](Caller &caller) {
        caller.send(packet(body + '\0'));
        const auto [type, answer] = caller.message();
        EXPECT_EQ(type, 'v');
        EXPECT_EQ(answer, int32(wire::protocol_version) + int32(1) + "_pq_.shiny" + '\0');
        EXPECT_EQ(caller.read(ok.size()), ok);
    });
    EXPECT_EQ(opening.kind, Kind::login);
    EXPECT_TRUE(opening.login.parameters.empty());
}

TEST_F(Logins, WithoutTlsTheAnswerIsNoAndNothingMayComeBeforeIt) {
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(test::ssl_request);
                  EXPECT_EQ(caller.read(1), "N");
                  caller.send(test::gss_request);
                  EXPECT_EQ(caller.read(1), "N");
                  caller.send(startup_packet("u"));
                  EXPECT_EQ(caller.read(ok.size()), ok);
              }).kind,
              Kind::login);
    EXPECT_EQ(told(test::ssl_request + startup_packet("u")),
              "08P01 received unencrypted data after SSL request");
    EXPECT_EQ(told(test::gss_request + startup_packet("u")),
              "08P01 received unencrypted data after GSSAPI encryption request");
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(test::ssl_request);
                  EXPECT_EQ(caller.read(1), "N");
                  caller.send(test::ssl_request);
                  EXPECT_EQ(caller.fatal(), "0A000 unsupported frontend protocol 1234.5679: "
                                            "server supports 3.0 to 3.0");
              }).kind,
              Kind::closed);
}

TEST_F(PasswordLogins, ThePasswordLetsIn) {
    const Opening opening = open([](Caller &caller) {
        caller.send(startup_packet("alice"));
        caller.scram("pencil");
        EXPECT_EQ(caller.offered, std::string("SCRAM-SHA-256\0\0", 15));
        EXPECT_TRUE(caller.is_in());
    });
    ASSERT_EQ(opening.kind, Kind::login);
    EXPECT_EQ(opening.login.user, "alice");
    EXPECT_EQ(opening.login.backend_login, "shop_app");
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(startup_packet("bob"));
                  caller.scram("pencil");
                  EXPECT_TRUE(caller.is_in());
              }).login.backend_login,
              "bob");
}

TEST_F(PasswordLogins, AllFailuresSoundTheSame) {
    for (const char *user : {"alice", "carol", "nobody"})
        EXPECT_EQ(answer_to(user, "pencil "),
                  std::string("28P01 password authentication failed for user \"") + user + "\"");
}

TEST_F(PasswordLogins, WhatIsNoPasswordExchangeIsRefused) {
    const auto after_offer = [&](const std::string &bytes) {
        std::string heard;
        open([&](Caller &caller) {
            caller.send(startup_packet("alice"));
            caller.message();
            caller.send(bytes);
            heard = caller.fatal();
        });
        return heard;
    };
    EXPECT_EQ(after_offer("Q" + packet(std::string("select 1\0", 9))),
              "08P01 expected SASL response, got message type 81");
    EXPECT_EQ(after_offer("p" + int32(2000)), "08P01 invalid message length");
    EXPECT_EQ(after_offer("p" + int32(3)), "08P01 invalid message length");
    EXPECT_EQ(after_offer("p" + packet("")), "08P01 invalid message format");
    EXPECT_EQ(after_offer("p" + packet("SCRAM-SHA-256")), "08P01 invalid message format");
    EXPECT_EQ(after_offer("p" + packet(std::string("SCRAM-SHA-256\0", 14) + int32(9) + "n,,")),
              "08P01 invalid message format");
    EXPECT_EQ(after_offer("p" + packet(std::string("PLAIN\0", 6) + int32(0))),
              "08P01 client selected an invalid SASL authentication mechanism");
    EXPECT_EQ(after_offer("p" + packet(std::string("SCRAM-SHA-256\0", 14) + int32(3) + "n,,")),
              "08P01 malformed SCRAM message");
}

TEST_F(PasswordLogins, TheFirstMessageMayComeAfterTheChoice) {
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(startup_packet("alice"));
                  caller.message();
                  caller.send_message('p', std::string("SCRAM-SHA-256\0", 14) + int32(0xFFFFFFFF));
                  EXPECT_EQ(caller.message().second, int32(11));
                  const test::ScramClient client{"pencil"};
                  caller.send_message('p', client.first());
                  const std::string first = caller.message().second.substr(4);
                  caller.expected_signature = client.expected(first);
                  caller.send_message('p', client.final(first));
                  EXPECT_TRUE(caller.is_in());
              }).kind,
              Kind::login);
}

TEST_F(PasswordLogins, WhoTakesTooLongIsToldSo) {
    settings_.pg_login_timeout = 100;
    std::string heard;
    open([&](Caller &caller) {
        caller.send(startup_packet("alice"));
        caller.message();
        heard = caller.fatal();
    });
    EXPECT_EQ(heard, "57014 canceling authentication due to timeout");
}

TEST_F(PasswordLogins, ACatalogThatDoesNotAnswerIsNoWrongPassword) {
    settings_.pg_auth_file.clear();
    std::string heard;
    open([&](Caller &caller) {
        caller.send(startup_packet("alice"));
        heard = caller.fatal();
    });
    EXPECT_EQ(heard, "57P03 users cannot be looked up at present");
}

TEST_F(PasswordLogins, TlsWithChannelBinding) {
    with_tls("allow");
    const auto log_in = [&](const std::string &binding) {
        return open([&](Caller &caller) {
            caller.send(test::ssl_request);
            EXPECT_EQ(caller.read(1), "S");
            ASSERT_TRUE(caller.start_tls());
            caller.send(startup_packet("alice"));
            caller.scram("pencil", "SCRAM-SHA-256-PLUS", "p=tls-server-end-point,,",
                         binding.empty() ? caller.end_point() : binding);
            EXPECT_EQ(caller.offered, std::string("SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0", 34));
            if (binding.empty())
                EXPECT_TRUE(caller.is_in());
            else
                EXPECT_EQ(caller.fatal(), "28000 SCRAM channel binding check failed");
        });
    };
    EXPECT_EQ(log_in("").kind, Kind::login);
    EXPECT_EQ(log_in(std::string(32, 'x')).kind, Kind::closed);
}

TEST_F(PasswordLogins, TlsIsNewEnoughOrRefused) {
    with_tls("allow");
    for (const auto &[version, good] :
         {std::pair(TLS1_VERSION, false), std::pair(TLS1_1_VERSION, false),
          std::pair(TLS1_2_VERSION, true), std::pair(TLS1_3_VERSION, true)})
        EXPECT_EQ(open([&, version = version, good = good](Caller &caller) {
                      caller.send(test::ssl_request);
                      EXPECT_EQ(caller.read(1), "S");
                      EXPECT_EQ(caller.start_tls("", "", version), good);
                      if (!good) return;
                      caller.send(startup_packet("alice"));
                      caller.scram("pencil");
                      EXPECT_TRUE(caller.is_in());
                  }).kind,
                  good ? Kind::login : Kind::closed);
}

TEST_F(PasswordLogins, TlsMayBeRequired) {
    with_tls("require");
    std::string heard;
    open([&](Caller &caller) {
        caller.send(startup_packet("alice"));
        heard = caller.fatal();
    });
    EXPECT_EQ(heard, "28000 connections without TLS are not accepted");
}

TEST_F(PasswordLogins, NothingReadBeforeTheHandshakeCounts) {
    with_tls("allow");
    // Together with the request: seen at once.
    EXPECT_EQ(told(test::ssl_request + startup_packet("mallory")),
              "08P01 received unencrypted data after SSL request");
    // Later, but before the handshake: it is taken for the handshake, which fails.
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(test::ssl_request);
                  EXPECT_EQ(caller.read(1), "S");
                  caller.send(startup_packet("mallory"));
                  EXPECT_FALSE(caller.start_tls());
              }).kind,
              Kind::closed);
    // Encrypted twice is not on offer.
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(test::ssl_request);
                  EXPECT_EQ(caller.read(1), "S");
                  ASSERT_TRUE(caller.start_tls());
                  caller.send(test::gss_request);
                  EXPECT_EQ(caller.fatal().substr(0, 5), "0A000");
              }).kind,
              Kind::closed);
}

TEST_F(PasswordLogins, AHandshakeThatIsNotFinishedRunsOutOfTime) {
    with_tls("allow");
    settings_.pg_login_timeout = 100;
    EXPECT_EQ(open([](Caller &caller) {
                  caller.send(test::ssl_request);
                  EXPECT_EQ(caller.read(1), "S");
                  EXPECT_EQ(caller.read_all(), "");
              }).kind,
              Kind::closed);
}

TEST_F(PasswordLogins, CertificatesNameTheUser) {
    with_tls("allow");
    settings_.pg_auth = "cert";
    settings_.pg_tls_ca_file = certificates_.file("ca.crt");
    const auto log_in = [&](const std::string &certificate, const std::string &user) {
        std::string heard;
        open([&](Caller &caller) {
            caller.send(test::ssl_request);
            caller.read(1);
            const std::string path = certificates_.file(certificate);
            if (!(certificate.empty() ? caller.start_tls()
                                      : caller.start_tls(path + ".crt", path + ".key"))) {
                heard = "no handshake";
                return;
            }
            caller.send(startup_packet(user));
            const auto [type, body] = caller.message();
            heard = type == 'R' ? "in" : type == 'E' ? std::string(body) : "closed";
        });
        return heard;
    };
    EXPECT_EQ(log_in("alice", "alice"), "in");
    EXPECT_NE(log_in("alice", "bob").find("certificate authentication failed for user \"bob\""),
              std::string::npos);
    EXPECT_NE(log_in("", "alice").find("connection requires a valid client certificate"),
              std::string::npos);
    EXPECT_EQ(log_in("stranger", "alice"), "closed");
    certificates_.add("dave", "dave");
    EXPECT_NE(log_in("dave", "dave").find("certificate authentication failed for user \"dave\""),
              std::string::npos);
}

TEST_F(PasswordLogins, RulesThatDoNotFitTogether) {
    const auto fault = [&] {
        const auto rules = load_login_rules(settings_);
        return rules ? "" : rules.error();
    };
    EXPECT_EQ(fault(), "");
    with_tls("allow");
    EXPECT_EQ(fault(), "");
    settings_.pg_auth = "cert";
    EXPECT_NE(fault().find("pg.auth = cert needs TLS"), std::string::npos);
    settings_.pg_tls_ca_file = certificates_.file("nothing");
    EXPECT_NE(fault().find("could not load certificate authorities"), std::string::npos);
    settings_.pg_tls_ca_file = certificates_.file("ca.crt");
    EXPECT_EQ(fault(), "");
    ::chmod(settings_.pg_tls_key_file.c_str(), 0644);
    EXPECT_NE(fault().find("group or world access"), std::string::npos);
    ::chmod(settings_.pg_tls_key_file.c_str(), 0600);
    settings_.pg_tls_key_file = certificates_.file("alice.key");
    EXPECT_NE(fault().find("key values mismatch"), std::string::npos);
    settings_.pg_tls_key_file = certificates_.file("");
    EXPECT_NE(fault().find("not a regular file"), std::string::npos);
    settings_.pg_tls_key_file.clear();
    EXPECT_NE(fault().find("needs pg.tls_cert_file and pg.tls_key_file"), std::string::npos);
    with_tls("require");
    settings_.pg_tls_cert_file = certificates_.file("nothing");
    EXPECT_NE(fault().find("could not load server certificate file"), std::string::npos);
    settings_.pg_tls = "disable";
    settings_.pg_auth = "scram-sha-256";
    settings_.pg_auth_file = certificates_.file("nothing");
    EXPECT_NE(fault().find("could not read file of users"), std::string::npos);
}

}  // namespace
}  // namespace interlock
