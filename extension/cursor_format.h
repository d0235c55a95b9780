// The outer form of a cursor: bytes, their text, their MAC. Pure: no PostgreSQL, no allocation, no
// C++ runtime, so that it is fuzzed and unit-tested by itself. What the bytes hold is said in
// cursor.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace interlock::cursor_format {

inline constexpr unsigned char version = 1;
inline constexpr std::size_t digest_size = 8;
inline constexpr std::size_t secret_size = 32;
inline constexpr std::size_t mac_size = 16;
inline constexpr std::size_t keyset_offset = 2;  ///< behind version and key id
inline constexpr std::size_t scope_offset = keyset_offset + digest_size;
inline constexpr std::size_t values_offset = scope_offset + digest_size;
inline constexpr std::size_t least_size = values_offset + mac_size;

// --- text: base64url (RFC 4648, section 5) without padding, one spelling of each byte string ---

constexpr std::size_t encoded_size(std::size_t size) {
    return size / 3 * 4 + (size % 3 == 0 ? 0 : size % 3 + 1);
}

/// Writes encoded_size(size) characters.
inline void encode(const unsigned char *bytes, std::size_t size, char *out) {
    constexpr char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const unsigned char *end = bytes + size;
    for (; end - bytes >= 3; bytes += 3) {
        const std::uint32_t three =
            std::uint32_t{bytes[0]} << 16 | std::uint32_t{bytes[1]} << 8 | bytes[2];
        *out++ = alphabet[three >> 18];
        *out++ = alphabet[three >> 12 & 63];
        *out++ = alphabet[three >> 6 & 63];
        *out++ = alphabet[three & 63];
    }
    if (end == bytes) return;
    *out++ = alphabet[bytes[0] >> 2];
    if (end - bytes == 1) {
        *out = alphabet[bytes[0] << 4 & 63];
    } else {
        *out++ = alphabet[(bytes[0] << 4 | bytes[1] >> 4) & 63];
        *out = alphabet[bytes[1] << 2 & 63];
    }
}

struct Alphabet {
    std::int8_t value[256];
};

constexpr Alphabet make_alphabet() {
    Alphabet alphabet = {};
    for (int c = 0; c < 256; ++c)
        alphabet.value[c] = static_cast<std::int8_t>(c >= 'A' && c <= 'Z'   ? c - 'A'
                                                     : c >= 'a' && c <= 'z' ? c - 'a' + 26
                                                     : c >= '0' && c <= '9' ? c - '0' + 52
                                                     : c == '-'             ? 62
                                                     : c == '_'             ? 63
                                                                            : -1);
    return alphabet;
}

constexpr std::size_t decoded_size(std::size_t length) {
    return length / 4 * 3 + length % 4 * 3 / 4;
}

/// Writes decoded_size(length) bytes. False unless the text is what encode() writes: any other
/// character (padding, white space), a length that no bytes have, bits beyond the last byte.
[[nodiscard]] inline bool decode(const char *text, std::size_t length, unsigned char *out) {
    constexpr Alphabet alphabet = make_alphabet();
    if (length % 4 == 1) return false;
    std::uint32_t held = 0;
    int bits = 0;
    for (std::size_t i = 0; i < length; ++i) {
        const std::int8_t value = alphabet.value[static_cast<unsigned char>(text[i])];
        if (value < 0) return false;
        held = held << 6 | static_cast<std::uint32_t>(value);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            *out++ = static_cast<unsigned char>(held >> bits);
        }
    }
    return (held & ((1U << bits) - 1)) == 0;
}

// --- MAC: HMAC-SHA256 (RFC 2104), the first mac_size bytes ---

// Of OpenSSL, the plain contexts: a key's two first blocks are hashed once, and a row of a page
// copies the states instead of allocating contexts.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

struct MacKey {
    SHA256_CTX inner;
    SHA256_CTX outer;
};

inline void prepare(MacKey *key, const unsigned char secret[secret_size]) {
    unsigned char block[SHA256_CBLOCK];
    const auto begin = [&](SHA256_CTX *state, unsigned char pad) {
        std::memset(block, pad, sizeof(block));
        for (std::size_t i = 0; i < secret_size; ++i)
            block[i] = static_cast<unsigned char>(block[i] ^ secret[i]);
        SHA256_Init(state);
        SHA256_Update(state, block, sizeof(block));
    };
    begin(&key->inner, 0x36);
    begin(&key->outer, 0x5c);
    OPENSSL_cleanse(block, sizeof(block));
}

inline void compute_mac(const MacKey &key, const unsigned char *bytes, std::size_t size,
                        unsigned char mac[mac_size]) {
    unsigned char whole[SHA256_DIGEST_LENGTH];
    SHA256_CTX state = key.inner;
    SHA256_Update(&state, bytes, size);
    SHA256_Final(whole, &state);
    state = key.outer;
    SHA256_Update(&state, whole, sizeof(whole));
    SHA256_Final(whole, &state);
    std::memcpy(mac, whole, mac_size);
}

/// SHA-256, the first digest_size bytes.
inline void digest(const void *bytes, std::size_t size, unsigned char out[digest_size]) {
    unsigned char whole[SHA256_DIGEST_LENGTH];
    SHA256_CTX state;
    SHA256_Init(&state);
    SHA256_Update(&state, bytes, size);
    SHA256_Final(whole, &state);
    std::memcpy(out, whole, digest_size);
}

#pragma GCC diagnostic pop

// --- the parts ---

/// Fills in the first bytes; the values follow at values_offset.
inline void write_head(unsigned char *bytes, unsigned char key_id, const unsigned char *keyset,
                       const unsigned char *scope) {
    bytes[0] = version;
    bytes[1] = key_id;
    std::memcpy(bytes + keyset_offset, keyset, digest_size);
    std::memcpy(bytes + scope_offset, scope, digest_size);
}

/// Whether the bytes may be a cursor of this version at all; its parts may be looked at then.
[[nodiscard]] inline bool has_form(const unsigned char *bytes, std::size_t size) {
    return size >= least_size && bytes[0] == version;
}

inline unsigned char key_id_of(const unsigned char *bytes) {
    return bytes[1];
}

inline std::size_t values_size(std::size_t size) {
    return size - least_size;
}

/// Writes the MAC behind the first size - mac_size bytes.
inline void seal(const MacKey &key, unsigned char *bytes, std::size_t size) {
    compute_mac(key, bytes, size - mac_size, bytes + size - mac_size);
}

/// In a time that does not depend on where the MAC differs. Requires has_form().
[[nodiscard]] inline bool is_sealed(const MacKey &key, const unsigned char *bytes,
                                    std::size_t size) {
    unsigned char mac[mac_size];
    compute_mac(key, bytes, size - mac_size, mac);
    return CRYPTO_memcmp(mac, bytes + size - mac_size, mac_size) == 0;
}

}  // namespace interlock::cursor_format
