#include "wire/scram.h"

#include <charconv>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdexcept>

namespace interlock::wire {

namespace {

constexpr std::string_view plain_mechanism = "SCRAM-SHA-256";
constexpr std::string_view plus_mechanism = "SCRAM-SHA-256-PLUS";
constexpr std::string_view binding_type = "tls-server-end-point";
constexpr std::uint32_t default_iterations = 4096;
constexpr std::size_t nonce_bytes = 18;
constexpr std::size_t mock_salt_bytes = 16;

const unsigned char *bytes_of(std::string_view text) {
    return reinterpret_cast<const unsigned char *>(text.data());
}

std::string_view text_of(const Sha256 &bytes) {
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

std::string base64(std::string_view raw) {
    std::string text(4 * ((raw.size() + 2) / 3) + 1, '\0');
    const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char *>(text.data()), bytes_of(raw),
                                     static_cast<int>(raw.size()));
    text.resize(static_cast<std::size_t>(size));
    return text;
}

/// Only the one spelling that encoding gives.
std::optional<std::string> from_base64(std::string_view text) {
    if (text.size() % 4 != 0) return std::nullopt;
    std::string raw(text.size() / 4 * 3, '\0');
    const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char *>(raw.data()), bytes_of(text),
                                     static_cast<int>(text.size()));
    if (size < 0) return std::nullopt;
    const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    raw.resize(static_cast<std::size_t>(size) - padding);
    if (base64(raw) != text) return std::nullopt;
    return raw;
}

std::optional<Sha256> hash_from_base64(std::string_view text) {
    const auto raw = from_base64(text);
    if (!raw || raw->size() != sha256_size) return std::nullopt;
    Sha256 hash{};
    std::copy(raw->begin(), raw->end(), hash.begin());
    return hash;
}

Sha256 hmac(std::string_view key, std::string_view text) {
    Sha256 out{};
    unsigned size = 0;
    // Fails only when memory is short, in which case nothing can be proven.
    if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(text), text.size(),
             out.data(), &size) == nullptr ||
        size != out.size())
        throw std::runtime_error("could not compute an HMAC");
    return out;
}

std::string random_bytes(std::size_t count) {
    std::string bytes(count, '\0');
    if (RAND_bytes(reinterpret_cast<unsigned char *>(bytes.data()), static_cast<int>(count)) != 1)
        throw std::runtime_error("no random bytes are to be had");
    return bytes;
}

/// Takes "x=value" and the comma behind it off the front of `rest`.
bool take_any(std::string_view &rest, char &name, std::string_view &value) {
    if (rest.size() < 2 || rest[1] != '=') return false;
    const bool letter = (rest[0] >= 'a' && rest[0] <= 'z') || (rest[0] >= 'A' && rest[0] <= 'Z');
    if (!letter) return false;
    name = rest[0];
    const std::size_t end = std::min(rest.find(','), rest.size());
    value = rest.substr(2, end - 2);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return true;
}

bool take_attribute(std::string_view &rest, char expected, std::string_view &value) {
    char name = 0;
    return rest.starts_with(expected) && take_any(rest, name, value);
}

std::string quoted(std::string_view rest) {
    if (rest.empty()) return "the end of the message";
    const auto c = static_cast<unsigned char>(rest[0]);
    if (c > 0x20 && c < 0x7F) return std::string("\"") + rest[0] + "\"";
    constexpr char digits[] = "0123456789abcdef";
    return std::string("byte 0x") + digits[c >> 4U] + digits[c & 15U];
}

std::string expected_attribute(char name, std::string_view rest) {
    return std::string("Expected attribute \"") + name + "\" but found " + quoted(rest) + ".";
}

}  // namespace

std::optional<ScramVerifier> parse_verifier(std::string_view text) {
    if (!text.starts_with(plain_mechanism) || text.substr(plain_mechanism.size(), 1) != "$")
        return std::nullopt;
    text.remove_prefix(plain_mechanism.size() + 1);
    ScramVerifier verifier;
    const char *const end = text.data() + text.size();
    const auto [after, error] = std::from_chars(text.data(), end, verifier.iterations);
    if (error != std::errc{} || verifier.iterations == 0 || after == end || *after != ':')
        return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(after + 1 - text.data()));
    const std::size_t dollar = text.find('$');
    if (dollar == std::string_view::npos) return std::nullopt;
    const std::string_view keys = text.substr(dollar + 1);
    const std::size_t colon = keys.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    verifier.salt = text.substr(0, dollar);
    const auto salt = from_base64(verifier.salt);
    const auto stored = hash_from_base64(keys.substr(0, colon));
    const auto server = hash_from_base64(keys.substr(colon + 1));
    if (!salt || salt->empty() || !stored || !server) return std::nullopt;
    verifier.stored_key = *stored;
    verifier.server_key = *server;
    return verifier;
}

ScramVerifier mock_verifier(std::string_view user) {
    static const std::string secret = random_bytes(sha256_size);
    ScramVerifier verifier;
    verifier.iterations = default_iterations;
    verifier.salt = base64(text_of(hmac(secret, user)).substr(0, mock_salt_bytes));
    return verifier;
}

std::string scram_nonce() {
    return base64(random_bytes(nonce_bytes));
}

ScramExchange::ScramExchange(std::string_view user, const std::optional<ScramVerifier> &verifier,
                             bool tls, std::string end_point, std::string nonce)
    : verifier_(verifier ? *verifier : mock_verifier(user)), doomed_(!verifier), tls_(tls),
      end_point_(std::move(end_point)), nonce_(std::move(nonce)) {}

std::vector<std::string_view> ScramExchange::mechanisms() const {
    if (tls_ && !end_point_.empty()) return {plus_mechanism, plain_mechanism};
    return {plain_mechanism};
}

ScramExchange::Outcome ScramExchange::refuse(std::string_view sqlstate, std::string message,
                                             std::string detail) {
    fatal_ = {std::string(sqlstate), std::move(message), std::move(detail)};
    next_ = Next::nothing;
    return Outcome::malformed;
}

ScramExchange::Outcome ScramExchange::malformed(std::string detail) {
    return refuse("08P01", "malformed SCRAM message", std::move(detail));
}

ScramExchange::Outcome ScramExchange::choose(std::string_view mechanism) {
    if (mechanism != plain_mechanism &&
        !(mechanism == plus_mechanism && tls_ && !end_point_.empty()))
        return refuse("08P01", "client selected an invalid SASL authentication mechanism");
    binding_ = mechanism == plus_mechanism;
    chosen_ = true;
    reply_.clear();
    return Outcome::go_on;
}

ScramExchange::Outcome ScramExchange::receive(std::string_view message) {
    reply_.clear();
    if (!chosen_ || next_ == Next::nothing) return malformed("No message was expected.");
    if (message.empty()) return malformed("The message is empty.");
    if (message.find('\0') != std::string_view::npos)
        return malformed("Message length does not match input length.");
    return next_ == Next::first ? client_first(message) : client_final(message);
}

/// "n,", "y," or "p=type,".
bool ScramExchange::take_binding_flag(std::string_view &rest) {
    const char flag = rest[0];
    if (flag == 'p') {
        std::string_view type;
        if (!binding_) {
            (void)malformed("The client selected SCRAM-SHA-256 without channel binding, but the "
                            "SCRAM message includes channel binding data.");
            return false;
        }
        if (!take_attribute(rest, 'p', type)) {
            (void)malformed(expected_attribute('p', rest));
            return false;
        }
        if (type != binding_type) {
            (void)refuse("08P01", "unsupported SCRAM channel-binding type");
            return false;
        }
        return true;
    }
    if (flag != 'n' && flag != 'y') {
        (void)malformed("Unexpected channel-binding flag " + quoted(rest) + ".");
        return false;
    }
    if (binding_) {
        (void)malformed("The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not "
                        "include channel binding data.");
        return false;
    }
    // Somebody in between has taken the better mechanism off our list.
    if (flag == 'y' && tls_ && !end_point_.empty()) {
        (void)refuse("28000", "SCRAM channel binding negotiation error",
                     "The client supports SCRAM channel binding but thinks the server does not.  "
                     "However, this server does support channel binding.");
        return false;
    }
    rest.remove_prefix(1);
    if (!rest.starts_with(',')) {
        (void)malformed("Comma expected, but found " + quoted(rest) + ".");
        return false;
    }
    rest.remove_prefix(1);
    return true;
}

ScramExchange::Outcome ScramExchange::client_first(std::string_view message) {
    std::string_view rest = message;
    if (!take_binding_flag(rest)) return Outcome::malformed;
    if (rest.starts_with('a'))
        return refuse("0A000", "client uses authorization identity, but it is not supported");
    if (!rest.starts_with(','))
        return malformed("Unexpected attribute " + quoted(rest) + " in client-first-message.");
    rest.remove_prefix(1);
    binding_header_ = message.substr(0, message.size() - rest.size());
    client_first_bare_ = rest;
    if (rest.starts_with('m'))
        return refuse("0A000", "client requires an unsupported SCRAM extension");
    std::string_view name;  // The start-up packet's name counts, as in PostgreSQL.
    std::string_view nonce;
    if (!take_attribute(rest, 'n', name)) return malformed(expected_attribute('n', rest));
    if (!take_attribute(rest, 'r', nonce)) return malformed(expected_attribute('r', rest));
    for (const char c : nonce)
        if (c < 0x21 || c > 0x7E) return refuse("08P01", "non-printable characters in SCRAM nonce");
    while (!rest.empty()) {
        char extension = 0;
        std::string_view value;
        if (!take_any(rest, extension, value))
            return malformed("Attribute expected, but found " + quoted(rest) + ".");
    }
    nonce_.insert(0, nonce);
    server_first_ =
        "r=" + nonce_ + ",s=" + verifier_.salt + ",i=" + std::to_string(verifier_.iterations);
    reply_ = server_first_;
    next_ = Next::final;
    return Outcome::go_on;
}

ScramExchange::Outcome ScramExchange::client_final(std::string_view message) {
    std::string_view rest = message;
    std::string_view binding;
    if (!take_attribute(rest, 'c', binding)) return malformed(expected_attribute('c', rest));
    if (binding != base64(binding_header_ + (binding_ ? end_point_ : std::string()))) {
        if (binding_) return refuse("28000", "SCRAM channel binding check failed");
        return refuse("08P01",
                      "unexpected SCRAM channel-binding attribute in client-final-message");
    }
    std::string_view nonce;
    if (!take_attribute(rest, 'r', nonce)) return malformed(expected_attribute('r', rest));
    char name = 0;
    std::string_view value;
    std::size_t before = 0;
    do {
        before = message.size() - rest.size();
        if (!take_any(rest, name, value)) return malformed(expected_attribute('p', rest));
    } while (name != 'p');
    if (!rest.empty() || message.ends_with(','))
        return malformed("Garbage found at the end of client-final-message.");
    const auto proof = from_base64(value);
    if (!proof || proof->size() != sha256_size)
        return malformed("Malformed proof in client-final-message.");
    if (nonce != nonce_) return refuse("08P01", "invalid SCRAM response", "Nonce does not match.");

    next_ = Next::nothing;
    const std::string signed_text =
        client_first_bare_ + ',' + server_first_ + ',' + std::string(message.substr(0, before - 1));
    // Both, always, so that the time taken does not tell which of them it was.
    const bool fits = proof_fits(*proof, signed_text);
    if (!fits || doomed_) return Outcome::refused;
    reply_ = "v=" + base64(text_of(hmac(text_of(verifier_.server_key), signed_text)));
    return Outcome::proven;
}

bool ScramExchange::proof_fits(std::string_view proof, const std::string &signed_text) const {
    Sha256 client_key = hmac(text_of(verifier_.stored_key), signed_text);
    for (std::size_t i = 0; i < sha256_size; ++i)
        client_key[i] ^= static_cast<unsigned char>(proof[i]);
    Sha256 stored{};
    unsigned size = 0;
    const bool hashed = EVP_Digest(client_key.data(), client_key.size(), stored.data(), &size,
                                   EVP_sha256(), nullptr) == 1;
    OPENSSL_cleanse(client_key.data(), client_key.size());
    return hashed && CRYPTO_memcmp(stored.data(), verifier_.stored_key.data(), sha256_size) == 0;
}

}  // namespace interlock::wire
