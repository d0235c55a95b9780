// Fuzz target: any text as a cursor. What decode() takes is exactly what encode() writes of it, a
// second reading written after RFC 4648 agrees, and no text is sealed but by the key.
#include "check.h"
#include "cursor_format.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace {

using namespace interlock;

// Bit by bit, with padding put back as in the RFC and the rules of strictness spelled out.
std::optional<std::string> reference_decode(std::string_view text) {
    constexpr std::string_view alphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::string bits;
    for (const char c : text) {
        const std::size_t value = alphabet.find(c);
        if (value == std::string_view::npos) return std::nullopt;
        for (int bit = 5; bit >= 0; --bit)
            bits += value >> bit & 1 ? '1' : '0';
    }
    if (bits.size() % 8 >= 6) return std::nullopt;  // a character too many
    std::string bytes;
    for (; bits.size() >= 8; bits.erase(0, 8))
        bytes += static_cast<char>(std::stoi(bits.substr(0, 8), nullptr, 2));
    if (bits.find('1') != std::string::npos) return std::nullopt;
    return bytes;
}

const unsigned char *bytes_of(std::string_view text) {
    return reinterpret_cast<const unsigned char *>(text.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size > 512) return 0;
    const std::string_view text(reinterpret_cast<const char *>(data), size);
    // On the heap, of exactly the promised size.
    const std::size_t decoded_size = cursor_format::decoded_size(size);
    unsigned char *bytes = new unsigned char[decoded_size];
    const bool taken = cursor_format::decode(text.data(), size, bytes);
    const auto expected = reference_decode(text);
    HOLDS(taken == expected.has_value());
    if (taken) {
        HOLDS(*expected == std::string_view(reinterpret_cast<const char *>(bytes), decoded_size));
        std::string again(cursor_format::encoded_size(decoded_size), '?');
        cursor_format::encode(bytes, decoded_size, again.data());
        HOLDS(again == text);
        if (cursor_format::has_form(bytes, decoded_size)) {
            // A fuzzer cannot guess a MAC; one that is put there is right, and wrong after a
            // change.
            unsigned char secret[cursor_format::secret_size] = {1, 2, 3};
            cursor_format::MacKey key;
            cursor_format::prepare(&key, secret);
            HOLDS(!cursor_format::is_sealed(key, bytes, decoded_size));
            cursor_format::seal(key, bytes, decoded_size);
            HOLDS(cursor_format::is_sealed(key, bytes, decoded_size));
            bytes[cursor_format::key_id_of(bytes) % decoded_size] ^= 4;
            HOLDS(!cursor_format::has_form(bytes, decoded_size) ||
                  !cursor_format::is_sealed(key, bytes, decoded_size));
        }
    }
    delete[] bytes;

    // Any bytes at all have a spelling, which leads back to them.
    std::string spelled(cursor_format::encoded_size(size), '?');
    cursor_format::encode(bytes_of(text), size, spelled.data());
    std::string back(size, '?');
    HOLDS(cursor_format::decode(spelled.data(), spelled.size(),
                                reinterpret_cast<unsigned char *>(back.data())));
    HOLDS(back == text);
    return 0;
}
