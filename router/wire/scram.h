// The server's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677, RFC 5929), with
// PostgreSQL's form of verifiers and its messages. Pure: sends and receives nothing.
//
// Neither a password nor anything that could be used in place of one is needed or kept: a verifier
// can check a proof, not make one. A user who is not there goes through the same exchange with a
// salt made from his name, and fails at its end as with a wrong password.
#pragma once

#include "wire/startup.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::wire {

inline constexpr std::size_t sha256_size = 32;
using Sha256 = std::array<unsigned char, sha256_size>;

struct ScramVerifier {
    std::uint32_t iterations = 0;
    std::string salt;  ///< base64, as it goes to the client
    Sha256 stored_key{};
    Sha256 server_key{};
};

/// Reads "SCRAM-SHA-256$iterations:salt$stored key:server key"; nothing if it is no such thing.
[[nodiscard]] std::optional<ScramVerifier> parse_verifier(std::string_view text);

/// What a user gets who is not there: always the same salt for the same name within a process, and
/// no proof that fits.
[[nodiscard]] ScramVerifier mock_verifier(std::string_view user);

/// 18 random bytes in base64.
[[nodiscard]] std::string scram_nonce();

class ScramExchange {
  public:
    enum class Outcome : std::uint8_t {
        go_on,      ///< reply() goes out, receive() gets the answer
        proven,     ///< reply() goes out, the client has proven to know the password
        refused,    ///< it has not
        malformed,  ///< fatal() says what is wrong with the message, or with the connection
    };

    /// Without a verifier the exchange goes on to its end and is refused. `end_point` is the
    /// certificate's hash; empty: the connection has no channel binding to offer. `nonce` is to be
    /// used once.
    ScramExchange(std::string_view user, const std::optional<ScramVerifier> &verifier, bool tls,
                  std::string end_point, std::string nonce);

    /// Names of the mechanisms on offer, best first.
    [[nodiscard]] std::vector<std::string_view> mechanisms() const;

    /// The client's choice. Outcome go_on (without a reply yet) or malformed.
    [[nodiscard]] Outcome choose(std::string_view mechanism);
    /// The client's next message.
    [[nodiscard]] Outcome receive(std::string_view message);

    /// Something that is no message of the exchange has come.
    [[nodiscard]] Outcome garbled() { return refuse("08P01", "invalid message format"); }

    [[nodiscard]] const std::string &reply() const { return reply_; }
    [[nodiscard]] const Fatal &fatal() const { return fatal_; }

  private:
    Outcome client_first(std::string_view message);
    Outcome client_final(std::string_view message);
    bool take_binding_flag(std::string_view &rest);
    Outcome refuse(std::string_view sqlstate, std::string message, std::string detail = {});
    Outcome malformed(std::string detail);
    bool proof_fits(std::string_view proof, const std::string &signed_text) const;

    ScramVerifier verifier_;
    bool doomed_;
    bool tls_;
    std::string end_point_;
    std::string nonce_;  ///< ours; then the client's with ours behind it
    bool binding_ = false;
    bool chosen_ = false;
    enum class Next : std::uint8_t { first, final, nothing } next_ = Next::first;
    std::string binding_header_;  ///< "n,,", "y,," or "p=tls-server-end-point,,"
    std::string client_first_bare_;
    std::string server_first_;
    std::string reply_;
    Fatal fatal_;
};

}  // namespace interlock::wire
