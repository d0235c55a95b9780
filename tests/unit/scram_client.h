// The client's half of SCRAM, for tests.
#pragma once

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string>

namespace interlock::test {

inline std::string base64(const std::string &raw) {
    std::string text(4 * ((raw.size() + 2) / 3) + 1, '\0');
    text.resize(static_cast<std::size_t>(EVP_EncodeBlock(
        reinterpret_cast<unsigned char *>(text.data()),
        reinterpret_cast<const unsigned char *>(raw.data()), static_cast<int>(raw.size()))));
    return text;
}

inline std::string unbase64(const std::string &text) {
    std::string raw(text.size() / 4 * 3, '\0');
    EVP_DecodeBlock(reinterpret_cast<unsigned char *>(raw.data()),
                    reinterpret_cast<const unsigned char *>(text.data()),
                    static_cast<int>(text.size()));
    for (std::size_t i = text.size(); i > 0 && text[i - 1] == '='; --i)
        raw.pop_back();
    return raw;
}

inline std::string hmac(const std::string &key, const std::string &text) {
    std::string out(std::size_t{32}, '\0');
    HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char *>(text.data()), text.size(),
         reinterpret_cast<unsigned char *>(out.data()), nullptr);
    return out;
}

inline std::string sha256(const std::string &text) {
    std::string out(std::size_t{32}, '\0');
    EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char *>(out.data()), nullptr,
               EVP_sha256(), nullptr);
    return out;
}

/// The client's half, written from the RFC alone.
struct ScramClient {
    std::string password;
    std::string header = "n,,";
    std::string binding = {};  ///< bytes behind the header in c=
    std::string nonce = "rOprNGfwEbeRWgbNEkqO";
    std::string bare = "n=user,r=" + nonce;

    std::string first() const { return header + bare; }

    std::string salted(const std::string &server_first) const {
        const std::size_t salt = server_first.find(",s=") + 3;
        const std::size_t iterations = server_first.find(",i=", salt);
        const std::string raw = unbase64(server_first.substr(salt, iterations - salt));
        std::string key(std::size_t{32}, '\0');
        PKCS5_PBKDF2_HMAC(password.data(), static_cast<int>(password.size()),
                          reinterpret_cast<const unsigned char *>(raw.data()),
                          static_cast<int>(raw.size()),
                          std::stoi(server_first.substr(iterations + 3)), EVP_sha256(),
                          std::size_t{32}, reinterpret_cast<unsigned char *>(key.data()));
        return key;
    }
    std::string without_proof(const std::string &server_first) const {
        return "c=" + base64(header + binding) +
               ",r=" + server_first.substr(2, server_first.find(',') - 2);
    }
    std::string signed_text(const std::string &server_first) const {
        return bare + "," + server_first + "," + without_proof(server_first);
    }
    std::string final(const std::string &server_first) const {
        std::string proof = hmac(salted(server_first), "Client Key");
        const std::string signature = hmac(sha256(proof), signed_text(server_first));
        for (std::size_t i = 0; i < proof.size(); ++i)
            proof[i] = static_cast<char>(proof[i] ^ signature[i]);
        return without_proof(server_first) + ",p=" + base64(proof);
    }
    std::string expected(const std::string &server_first) const {
        return "v=" +
               base64(hmac(hmac(salted(server_first), "Server Key"), signed_text(server_first)));
    }
};

}  // namespace interlock::test
