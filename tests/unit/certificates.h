// Certificates for tests: an authority of its own, made in memory, written to a folder that goes
// with it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string>
#include <sys/stat.h>

namespace interlock::test {

class Certificates {
  public:
    Certificates() {
        char path[] = "/tmp/interlock-certificates-XXXXXX";
        folder_ = ::mkdtemp(path);
        ca_key_ = EVP_EC_gen("P-256");
        ca_ = make("authority", ca_key_, nullptr);
        write(file("ca.crt"), ca_, nullptr);
    }
    ~Certificates() {
        X509_free(ca_);
        EVP_PKEY_free(ca_key_);
        std::filesystem::remove_all(folder_);
    }
    Certificates(const Certificates &) = delete;
    Certificates &operator=(const Certificates &) = delete;

    [[nodiscard]] std::string file(const std::string &name) const { return folder_ + "/" + name; }

    /// NAME.crt and NAME.key, signed by the authority (or by itself).
    void add(const std::string &name, const std::string &common_name, bool self_signed = false) {
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *certificate = make(common_name, key, self_signed ? nullptr : ca_);
        write(file(name + ".crt"), certificate, nullptr);
        write(file(name + ".key"), nullptr, key);
        X509_free(certificate);
        EVP_PKEY_free(key);
    }

  private:
    X509 *make(const std::string &common_name, EVP_PKEY *key, X509 *issuer) {
        X509 *certificate = X509_new();
        X509_set_version(certificate, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial_);
        X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
        X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
        X509_set_pubkey(certificate, key);
        X509_NAME *name = X509_get_subject_name(certificate);
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                   reinterpret_cast<const unsigned char *>(common_name.data()),
                                   static_cast<int>(common_name.size()), -1, 0);
        X509_set_issuer_name(certificate, issuer ? X509_get_subject_name(issuer) : name);
        if (issuer == nullptr) {
            X509_EXTENSION *extension =
                X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
            X509_add_ext(certificate, extension, -1);
            X509_EXTENSION_free(extension);
        }
        X509_sign(certificate, issuer ? ca_key_ : key, EVP_sha256());
        return certificate;
    }
    static void write(const std::string &path, X509 *certificate, EVP_PKEY *key) {
        std::FILE *out = std::fopen(path.c_str(), "w");
        ::fchmod(::fileno(out), 0600);
        if (certificate) PEM_write_X509(out, certificate);
        if (key) PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
        std::fclose(out);
    }

    std::string folder_;
    EVP_PKEY *ca_key_ = nullptr;
    X509 *ca_ = nullptr;
    int serial_ = 0;
};

}  // namespace interlock::test
