// SCRAM: the RFC's example, PostgreSQL's own verifier, everything that is not quite right.
#include "scram_client.h"

#include "wire/scram.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace interlock::wire {
namespace {

using test::base64;
using test::hmac;
using Client = test::ScramClient;
using Outcome = ScramExchange::Outcome;

// RFC 7677, section 3; the keys follow from the password "pencil".
const std::string rfc_verifier =
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
// ALTER ROLE alice PASSWORD 'correct horse' on PostgreSQL 15.
const std::string postgres_verifier =
    "SCRAM-SHA-256$4096:rqyIrGkUPsEot/SPIXtrSA==$L4J2bmx4zcn9gSodzL76RWd/FEgtVTHVI43TsPrexpY=:"
    "yeTkU5B/mQwNbvbTYN73qqBloL/XpT3AyfqmQTd7rCg=";

ScramExchange exchange(const std::optional<ScramVerifier> &verifier, bool tls = false,
                       const std::string &end_point = {}) {
    ScramExchange scram("user", verifier, tls, end_point, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0");
    EXPECT_EQ(scram.choose("SCRAM-SHA-256"), Outcome::go_on);
    return scram;
}

ScramExchange plus(const std::string &end_point) {
    ScramExchange scram("user", parse_verifier(rfc_verifier), true, end_point, "server");
    EXPECT_EQ(scram.choose("SCRAM-SHA-256-PLUS"), Outcome::go_on);
    return scram;
}

TEST(Scram, TheExampleOfRfc7677) {
    ScramExchange scram = exchange(parse_verifier(rfc_verifier));
    ASSERT_EQ(scram.receive("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"), Outcome::go_on);
    EXPECT_EQ(scram.reply(), "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
                             "s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
    ASSERT_EQ(scram.receive("c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
                            "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="),
              Outcome::proven);
    EXPECT_EQ(scram.reply(), "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
}

TEST(Scram, AVerifierThatPostgreSQLMade) {
    for (const char *password : {"correct horse", "correct hors", "Correct horse", ""}) {
        ScramExchange scram = exchange(parse_verifier(postgres_verifier));
        const Client client{password};
        ASSERT_EQ(scram.receive(client.first()), Outcome::go_on);
        const std::string first = scram.reply();
        const bool right = password == std::string("correct horse");
        EXPECT_EQ(scram.receive(client.final(first)), right ? Outcome::proven : Outcome::refused);
        EXPECT_EQ(scram.reply(), right ? client.expected(first) : "");
    }
}

TEST(Scram, AUserWhoIsNotThereGoesThroughTheSameExchange) {
    const ScramVerifier mock = mock_verifier("nobody");
    EXPECT_EQ(mock.salt, mock_verifier("nobody").salt);
    EXPECT_NE(mock.salt, mock_verifier("nobodz").salt);
    EXPECT_EQ(mock.salt.size(), parse_verifier(rfc_verifier)->salt.size());
    EXPECT_EQ(mock.iterations, 4096U);
    ScramExchange scram("nobody", std::nullopt, false, "", "server");
    ASSERT_EQ(scram.choose("SCRAM-SHA-256"), Outcome::go_on);
    const Client client{"guess"};
    ASSERT_EQ(scram.receive(client.first()), Outcome::go_on);
    EXPECT_EQ(scram.reply(), "r=" + client.nonce + "server,s=" + mock.salt + ",i=4096");
    EXPECT_EQ(scram.receive(client.final(std::string(scram.reply()))), Outcome::refused);
    EXPECT_EQ(scram.reply(), "");
}

// Even who knows the keys that nobody has (all zero) does not get in.
TEST(Scram, NoProofFitsTheMock) {
    ScramExchange scram("nobody", std::nullopt, false, "", "server");
    ASSERT_EQ(scram.choose("SCRAM-SHA-256"), Outcome::go_on);
    const Client client{""};
    ASSERT_EQ(scram.receive(client.first()), Outcome::go_on);
    const std::string first(scram.reply());
    const std::string signature = hmac(std::string(sha256_size, '\0'), client.signed_text(first));
    EXPECT_EQ(scram.receive(client.without_proof(first) + ",p=" + base64(signature)),
              Outcome::refused);
}

TEST(Scram, ChannelBinding) {
    const std::string hash(32, 'h');
    const std::string header = "p=tls-server-end-point,,";
    {
        ScramExchange scram = plus(hash);
        EXPECT_EQ(scram.mechanisms(),
                  (std::vector<std::string_view>{"SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"}));
        const Client client{"pencil", header, hash};
        ASSERT_EQ(scram.receive(client.first()), Outcome::go_on);
        EXPECT_EQ(scram.receive(client.final(std::string(scram.reply()))), Outcome::proven);
    }
    {  // somebody in between, with another certificate
        ScramExchange scram = plus(hash);
        const Client client{"pencil", header, std::string(32, 'x')};
        ASSERT_EQ(scram.receive(client.first()), Outcome::go_on);
        EXPECT_EQ(scram.receive(client.final(std::string(scram.reply()))), Outcome::malformed);
        EXPECT_EQ(scram.fatal().sqlstate, "28000");
        EXPECT_EQ(scram.fatal().message, "SCRAM channel binding check failed");
    }
    for (const char *other : {"n,,", "y,,", "p=tls-unique,,"}) {
        ScramExchange scram = plus(hash);
        EXPECT_EQ(scram.receive(std::string(other) + "n=,r=x"), Outcome::malformed) << other;
        EXPECT_EQ(scram.fatal().sqlstate, "08P01") << other;
    }
    {  // who thinks that we have none was lied to
        ScramExchange scram = exchange(parse_verifier(rfc_verifier), true, hash);
        EXPECT_EQ(scram.receive("y,,n=,r=x"), Outcome::malformed);
        EXPECT_EQ(scram.fatal().sqlstate, "28000");
    }
    for (const bool tls : {false, true}) {
        ScramExchange scram = exchange(parse_verifier(rfc_verifier), tls);
        EXPECT_EQ(scram.mechanisms(), std::vector<std::string_view>{"SCRAM-SHA-256"});
        EXPECT_EQ(scram.receive(header + "n=,r=x"), Outcome::malformed);
        const Client client{"pencil", "y,,"};
        ScramExchange other = exchange(parse_verifier(rfc_verifier), tls);
        ASSERT_EQ(other.receive(client.first()), Outcome::go_on);
        EXPECT_EQ(other.receive(client.final(std::string(other.reply()))), Outcome::proven);
    }
}

TEST(Scram, OnlyMechanismsOnOffer) {
    for (const char *other : {"", "PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "scram-sha-256"}) {
        ScramExchange scram("user", std::nullopt, false, "hash", "server");
        EXPECT_EQ(scram.choose(other), Outcome::malformed) << other;
        EXPECT_EQ(scram.fatal().message,
                  "client selected an invalid SASL authentication mechanism");
        EXPECT_EQ(scram.receive("n,,n=,r=x"), Outcome::malformed);
    }
}

TEST(Scram, MalformedFirstMessages) {
    for (const std::string &bad :
         {std::string(), std::string("n"), std::string("n,"), std::string("n,,"),
          std::string("x,,n=,r=x"), std::string("nn,n=,r=x"), std::string("n,x,n=,r=x"),
          std::string("n,,r=x,n="), std::string("n,,n=,"), std::string("n,,n=,r"),
          std::string("n,,n=,r=a b"), std::string("n,,n=,r=\x7f"), std::string("n,,n=,r=x,1=y"),
          std::string("n,,n=,r=x\0", 10), std::string("p=,,n=,r=x")}) {
        ScramExchange scram = exchange(parse_verifier(rfc_verifier));
        EXPECT_EQ(scram.receive(bad), Outcome::malformed) << bad;
        EXPECT_EQ(scram.fatal().sqlstate, "08P01") << bad;
        EXPECT_EQ(scram.receive("n,,n=,r=x"), Outcome::malformed) << "after " << bad;
    }
    for (const char *unsupported : {"n,a=root,n=,r=x", "n,,m=x,n=,r=x"}) {
        ScramExchange scram = exchange(parse_verifier(rfc_verifier));
        EXPECT_EQ(scram.receive(unsupported), Outcome::malformed) << unsupported;
        EXPECT_EQ(scram.fatal().sqlstate, "0A000") << unsupported;
    }
}

TEST(Scram, MalformedFinalMessages) {
    const Client client{"pencil"};
    const auto outcome = [&](auto change) {
        ScramExchange scram = exchange(parse_verifier(rfc_verifier));
        EXPECT_EQ(scram.receive(client.first()), Outcome::go_on);
        const Outcome result = scram.receive(change(client.final(std::string(scram.reply()))));
        EXPECT_EQ(scram.receive(""), Outcome::malformed);
        return result;
    };
    const auto replaced = [](std::string from, std::string to) {
        return [=](std::string message) {
            return message.replace(message.find(from), from.size(), to);
        };
    };
    EXPECT_EQ(outcome(replaced("", "")), Outcome::proven);
    for (const auto &[from, to] :
         std::vector<std::pair<std::string, std::string>>{{"c=biws", "c=eSws"},
                                                          {"c=biws,", ""},
                                                          {"c=biws", "c=biws="},
                                                          {"r=r", "r=R"},
                                                          {"k0,p", "k1,p"},
                                                          {"k0,", "k,"},
                                                          {",p=", ",p=AA"},
                                                          {",p=", ",q="},
                                                          {",p=", ",p"}})
        EXPECT_EQ(outcome(replaced(from, to)), Outcome::malformed) << from << " -> " << to;
    for (const char *more : {",", ",x=y", "="})
        EXPECT_EQ(outcome([&](const std::string &m) { return m + more; }), Outcome::malformed);
    // An extension between nonce and proof is signed too: here it was not.
    EXPECT_EQ(outcome(replaced(",p=", ",x=y,p=")), Outcome::refused);
}

TEST(Scram, Verifiers) {
    const auto parsed = parse_verifier(rfc_verifier);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->iterations, 4096U);
    EXPECT_EQ(parsed->salt, "W22ZaJ0SNY7soEsUEjb6gQ==");
    const auto with = [](std::string from, std::string to) {
        std::string text = rfc_verifier;
        return parse_verifier(text.replace(text.find(from), from.size(), to)).has_value();
    };
    EXPECT_TRUE(with("4096", "1"));
    for (const auto &[from, to] :
         std::vector<std::pair<std::string, std::string>>{{"4096", "0"},
                                                          {"4096", ""},
                                                          {"4096", "-1"},
                                                          {"4096", "99999999999"},
                                                          {"4096", "4096x"},
                                                          {"SHA-256$", "SHA-1$"},
                                                          {"SHA-256$", "SHA-256"},
                                                          {"W22Z", "W22"},
                                                          {"gQ==", "gR=="},
                                                          {"WG5d", "WG5"},
                                                          {"WG5d", "WG5dAAAA"},
                                                          {":wfPL", "wfPL"},
                                                          {"2dU=", "2dU"},
                                                          {"2dU=", "2dU=x"},
                                                          {"2dU=", "2dU= "},
                                                          {"$WG", ":WG"}})
        EXPECT_FALSE(with(from, to)) << from << " -> " << to;
    for (const char *bad : {"", "SCRAM-SHA-256", "SCRAM-SHA-256$", "SCRAM-SHA-256$4096:$:",
                            "md5aa7ff3ac7fdabbe0d1e5ddd4eb2e9e1b", "secret"})
        EXPECT_FALSE(parse_verifier(bad)) << bad;
}

TEST(Scram, NoncesDiffer) {
    std::set<std::string> nonces;
    for (int i = 0; i < 100; ++i)
        nonces.insert(scram_nonce());
    EXPECT_EQ(nonces.size(), 100U);
    EXPECT_EQ(nonces.begin()->size(), 24U);
}

}  // namespace
}  // namespace interlock::wire
