// The outer form of cursors: published vectors, one spelling each, and that any change is seen.
#include "cursor_format.h"

#include <gtest/gtest.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <string_view>

namespace interlock::cursor_format {
namespace {

const unsigned char *bytes_of(std::string_view text) {
    return reinterpret_cast<const unsigned char *>(text.data());
}

std::string hex(const unsigned char *bytes, std::size_t size) {
    std::string result;
    for (std::size_t i = 0; i < size; ++i) {
        char pair[3];
        std::snprintf(pair, sizeof(pair), "%02x", bytes[i]);
        result += pair;
    }
    return result;
}

std::string encoded(std::string_view bytes) {
    std::string text(encoded_size(bytes.size()), '?');
    encode(bytes_of(bytes), bytes.size(), text.data());
    return text;
}

std::optional<std::string> decoded(std::string_view text) {
    // Not one byte more than is promised: the sanitizers watch the end of the buffer.
    std::string bytes(decoded_size(text.size()), '?');
    bytes.shrink_to_fit();
    if (!decode(text.data(), text.size(), reinterpret_cast<unsigned char *>(bytes.data())))
        return std::nullopt;
    return bytes;
}

MacKey key_of(std::string_view secret) {
    std::array<unsigned char, secret_size> padded = {};
    std::memcpy(padded.data(), secret.data(), secret.size());
    MacKey key;
    prepare(&key, padded.data());
    return key;
}

std::string mac_of(std::string_view secret, std::string_view message) {
    std::array<unsigned char, mac_size> mac = {};
    compute_mac(key_of(secret), bytes_of(message), message.size(), mac.data());
    return hex(mac.data(), mac.size());
}

std::string sealed(std::string_view secret, unsigned char key_id, std::string_view values) {
    const std::string keyset = "keyset__", scope = "scope___";
    std::string bytes(values_offset, '\0');
    write_head(reinterpret_cast<unsigned char *>(bytes.data()), key_id, bytes_of(keyset),
               bytes_of(scope));
    bytes += values;
    bytes.append(mac_size, '\0');
    seal(key_of(secret), reinterpret_cast<unsigned char *>(bytes.data()), bytes.size());
    return bytes;
}

bool accepts(std::string_view secret, std::string_view bytes) {
    return has_form(bytes_of(bytes), bytes.size()) &&
           is_sealed(key_of(secret), bytes_of(bytes), bytes.size());
}

TEST(CursorFormat, Base64HasThePublishedValues) {
    // RFC 4648, section 10, without the padding; and the two characters of the URL alphabet.
    EXPECT_EQ(encoded(""), "");
    EXPECT_EQ(encoded("f"), "Zg");
    EXPECT_EQ(encoded("fo"), "Zm8");
    EXPECT_EQ(encoded("foo"), "Zm9v");
    EXPECT_EQ(encoded("foob"), "Zm9vYg");
    EXPECT_EQ(encoded("fooba"), "Zm9vYmE");
    EXPECT_EQ(encoded("foobar"), "Zm9vYmFy");
    EXPECT_EQ(encoded("\xfb\xff\xbf"), "-_-_");
}

TEST(CursorFormat, EveryByteStringComesBack) {
    std::mt19937 random(7);
    for (std::size_t size = 0; size < 200; ++size) {
        std::string bytes(size, '\0');
        for (char &byte : bytes)
            byte = static_cast<char>(random());
        EXPECT_EQ(decoded(encoded(bytes)), bytes);
    }
}

TEST(CursorFormat, ThereIsOneSpelling) {
    // Whatever is decoded must be what would be encoded: all texts of up to three characters, and
    // all last characters of a longer one.
    int valid = 0;
    const auto check = [&](const std::string &text) {
        const auto bytes = decoded(text);
        if (!bytes) return;
        ++valid;
        EXPECT_EQ(encoded(*bytes), text);
    };
    std::string text;
    for (int a = 0; a < 256; ++a) {
        check(std::string(1, static_cast<char>(a)));
        for (int b = 0; b < 256; ++b) {
            text.assign({static_cast<char>(a), static_cast<char>(b)});
            check(text);
            for (int c = 0; c < 256; c += a < 128 && b < 128 ? 1 : 85) {
                text.assign({static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)});
                check(text);
            }
        }
    }
    EXPECT_EQ(valid, 256 + 65536);  // one for each string of one byte and of two
    for (const char *wrong : {"Zg==", "Zg=", "Zm8=", "Zh", "Zm9", "Zm9v ", " Zm9v", "Zm9v\n",
                              "Zm+v", "Zm/v", "A", "AAAAA", "Z\0g", "Zm9vY\xc3\xa9"})
        EXPECT_FALSE(decoded(wrong)) << wrong;
    EXPECT_FALSE(decoded(std::string_view("Zm\0v", 4)));
}

TEST(CursorFormat, MacsHaveThePublishedValues) {
    // RFC 4231, cases 1 to 5, the first 128 bits. A shorter key is one with zeros behind it.
    EXPECT_EQ(mac_of(std::string(20, '\x0b'), "Hi There"), "b0344c61d8db38535ca8afceaf0bf12b");
    EXPECT_EQ(mac_of("Jefe", "what do ya want for nothing?"), "5bdcc146bf60754e6a042426089575c7");
    EXPECT_EQ(mac_of(std::string(20, '\xaa'), std::string(50, '\xdd')),
              "773ea91e36800e46854db8ebd09181a7");
    std::string counting;
    for (char c = 1; c <= 25; ++c)
        counting += c;
    EXPECT_EQ(mac_of(counting, std::string(50, '\xcd')), "82558a389a443c0ea4cc819899f2083a");
    EXPECT_EQ(mac_of(std::string(20, '\x0c'), "Test With Truncation"),
              "a3b6167473100ee06e0c796c2955552b");
}

TEST(CursorFormat, MacsOfAllLengthsAgreeWithOpenSsl) {
    std::mt19937 random(11);
    std::string secret(secret_size, '\0'), message;
    for (std::size_t size = 0; size < 300; ++size) {
        for (char &byte : secret)
            byte = static_cast<char>(random());
        std::array<unsigned char, EVP_MAX_MD_SIZE> whole = {};
        unsigned int length = 0;
        ASSERT_NE(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                       bytes_of(message), message.size(), whole.data(), &length),
                  nullptr);
        EXPECT_EQ(mac_of(secret, message), hex(whole.data(), mac_size)) << size;
        message += static_cast<char>(random());
    }
}

TEST(CursorFormat, DigestsHaveThePublishedValues) {
    std::array<unsigned char, digest_size> out = {};
    digest("abc", 3, out.data());
    EXPECT_EQ(hex(out.data(), out.size()), "ba7816bf8f01cfea");
    digest("", 0, out.data());
    EXPECT_EQ(hex(out.data(), out.size()), "e3b0c44298fc1c14");
}

TEST(CursorFormat, APreparedKeyServesAnyNumberOfTimes) {
    const MacKey key = key_of("secret");
    std::array<unsigned char, mac_size> first = {}, second = {};
    compute_mac(key, bytes_of("one"), 3, first.data());
    compute_mac(key, bytes_of("two"), 3, second.data());
    EXPECT_NE(first, second);
    compute_mac(key, bytes_of("one"), 3, second.data());
    EXPECT_EQ(first, second);
}

TEST(CursorFormat, EachFlippedBitAndEachCutIsSeen) {
    for (const std::string_view values : {std::string_view(""), std::string_view("values")}) {
        const std::string good = sealed("secret", 3, values);
        ASSERT_TRUE(accepts("secret", good));
        EXPECT_FALSE(accepts("another", good));
        EXPECT_EQ(values_size(good.size()), values.size());
        EXPECT_EQ(key_id_of(bytes_of(good)), 3);
        for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
            std::string changed = good;
            changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
            EXPECT_FALSE(accepts("secret", changed)) << "bit " << bit;
        }
        for (std::size_t size = 0; size < good.size(); ++size) {
            EXPECT_FALSE(accepts("secret", good.substr(0, size))) << "cut to " << size;
            EXPECT_FALSE(accepts("secret", good.substr(good.size() - size))) << "last " << size;
        }
        EXPECT_FALSE(accepts("secret", good + '\0'));
    }
}

}  // namespace
}  // namespace interlock::cursor_format
