// The first packet of a connection to the PostgreSQL listener: no type byte, a length that counts
// itself, a code, a body. Pure: what to answer is decided above.
//
// Read as PostgreSQL reads it (postmaster.c, ProcessStartupPacket): the same bounds, the same
// messages, the same taking apart of "options". Format: PostgreSQL documentation,
// "Frontend/Backend Protocol", "Message Formats".
#pragma once

#include "base/buffer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace interlock::wire {

/// Bytes of a packet behind its length, at most.
inline constexpr std::size_t max_startup_packet = 10000;
/// The one protocol version there is, 3.0, as NegotiateProtocolVersion names it.
inline constexpr std::uint32_t protocol_version = 3U << 16U;

/// What a connection is ended with before it has begun; goes out as an ErrorResponse, FATAL.
struct Fatal {
    std::string sqlstate;
    std::string message;
    std::string detail = {};
    std::string hint = {};
};

/// One packet, taken apart.
struct Startup {
    enum class Kind : std::uint8_t { login, tls, gssenc, cancel } kind = Kind::login;

    // of a login
    std::string user;      ///< not empty; cut to 63 bytes, as every name
    std::string database;  ///< the user's name when none is given
    /// Settings, in the order in which they are to be made: those of "options", then the others.
    std::vector<std::pair<std::string, std::string>> parameters;
    std::uint16_t minor_version = 0;
    std::vector<std::string> unknown_extensions;  ///< names beginning with _pq_.

    /// Whether the client has to be told that there is less than it asked for.
    [[nodiscard]] bool negotiate() const {
        return minor_version > 0 || !unknown_extensions.empty();
    }

    // of a cancel request
    std::uint32_t cancel_pid = 0;
    std::uint32_t cancel_secret = 0;

    std::size_t size = 0;  ///< bytes of the packet in the buffer
};

enum class StartupState { ready, need_more, refused };

/// Looks at the packet at the front of `input`; it stays there: consume(out.size) when done.
/// `may_encrypt`, `may_gss`: whether a request for TLS, for GSSAPI encryption would be the first of
/// its kind; a second one is no known protocol version. On `refused` only `fatal` is set.
[[nodiscard]] StartupState parse_startup(std::string_view input, bool may_encrypt, bool may_gss,
                                         Startup &out, Fatal &fatal);

/// Appends NegotiateProtocolVersion: protocol 3.0, and which extensions are not known.
void append_negotiation(Buffer &out, const Startup &startup);
/// Appends an ErrorResponse of severity FATAL.
void append_fatal(Buffer &out, const Fatal &fatal);

/// Takes the "options" parameter apart into words as PostgreSQL does: blanks separate, a backslash
/// takes the next byte as it is.
[[nodiscard]] std::vector<std::string> split_options(std::string_view options);

}  // namespace interlock::wire
