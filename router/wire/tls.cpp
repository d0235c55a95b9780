#include "wire/tls.h"

#include "base/log.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

namespace interlock::wire {

namespace {

// Without anonymous and null ciphers, without MD5; OpenSSL's security level does the rest.
constexpr const char *ciphers = "HIGH:!aNULL:!eNULL:!MD5:!3DES";

/// What OpenSSL has to say about the last failure; takes it off its queue.
std::string openssl_error() {
    const unsigned long code = ERR_peek_last_error();
    std::string text = "unknown error";
    if (const char *reason = ERR_reason_error_string(code))
        text = reason;
    else if (ERR_SYSTEM_ERROR(code))
        text = std::strerror(ERR_GET_REASON(code));
    ERR_clear_error();
    return text;
}

// A key that others can read is no secret.
std::string check_key_file(const std::string &path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0)
        return format("could not access private key file \"%s\": %s", path.c_str(),
                      std::strerror(errno));
    if (!S_ISREG(status.st_mode))
        return format("private key file \"%s\" is not a regular file", path.c_str());
    const bool ours = status.st_uid == ::geteuid();
    if (!ours && status.st_uid != 0)
        return format("private key file \"%s\" must be owned by the router's user or root",
                      path.c_str());
    const mode_t forbidden = status.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
    if ((status.st_mode & forbidden) != 0)
        return format("private key file \"%s\" has group or world access; permissions should be "
                      "u=rw (0600) or less, or u=rw,g=r (0640) or less if it belongs to root",
                      path.c_str());
    return {};
}

// Nobody is there to be asked.
int no_passphrase(char *, int, int, void *) {
    return 0;
}

std::string end_point_hash(X509 *certificate) {
    int digest = NID_undef;
    if (X509_get_signature_info(certificate, &digest, nullptr, nullptr, nullptr) != 1) {
        ERR_clear_error();
        return {};
    }
    if (digest == NID_md5 || digest == NID_sha1) digest = NID_sha256;
    const EVP_MD *hash = EVP_get_digestbynid(digest);
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
    unsigned size = 0;
    if (hash == nullptr || X509_digest(certificate, hash, bytes.data(), &size) != 1) {
        ERR_clear_error();
        return {};
    }
    return {reinterpret_cast<const char *>(bytes.data()), size};
}

std::string load_authorities(SSL_CTX *context, const std::string &path) {
    if (SSL_CTX_load_verify_locations(context, path.c_str(), nullptr) != 1)
        return format("could not load certificate authorities \"%s\": %s", path.c_str(),
                      openssl_error().c_str());
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(path.c_str());
    if (names == nullptr)
        return format("could not load certificate authorities \"%s\": %s", path.c_str(),
                      openssl_error().c_str());
    SSL_CTX_set_client_CA_list(context, names);  // owns them now
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_CLIENT_ONCE, nullptr);
    return {};
}

}  // namespace

void TlsContext::Free::operator()(ssl_ctx_st *context) const {
    SSL_CTX_free(context);
}

Result<std::shared_ptr<const TlsContext>, std::string> TlsContext::load(const TlsFiles &files) {
    ERR_clear_error();
    std::shared_ptr<TlsContext> loaded(new TlsContext());
    loaded->context_.reset(SSL_CTX_new(TLS_server_method()));
    SSL_CTX *context = loaded->context_.get();
    if (context == nullptr)
        return format("could not create a TLS context: %s", openssl_error().c_str());

    SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    // A buffer may have grown or moved between two tries; an idle session gives its memory back.
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                                     SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1 || SSL_CTX_set_cipher_list(context, ciphers) != 1)
        return format("could not set up TLS: %s", openssl_error().c_str());

    if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
        return format("could not load server certificate file \"%s\": %s",
                      files.certificate.c_str(), openssl_error().c_str());
    if (std::string problem = check_key_file(files.key); !problem.empty()) return problem;
    // Fails as well when it is not the certificate's.
    if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
        return format("could not load private key file \"%s\": %s", files.key.c_str(),
                      openssl_error().c_str());
    if (!files.authorities.empty()) {
        std::string problem = load_authorities(context, files.authorities);
        if (!problem.empty()) return problem;
    }
    loaded->end_point_ = end_point_hash(SSL_CTX_get0_certificate(context));
    return std::shared_ptr<const TlsContext>(std::move(loaded));
}

void TlsSession::Free::operator()(ssl_st *ssl) const {
    SSL_free(ssl);
}

bool TlsSession::begin(std::shared_ptr<const TlsContext> context, int fd) {
    ERR_clear_error();
    state_ = std::make_unique<State>();
    state_->context = std::move(context);
    state_->ssl.reset(SSL_new(state_->context->get()));
    if (active() && SSL_set_fd(get(), fd) == 1) {
        SSL_set_accept_state(get());
        return true;
    }
    state_->error = openssl_error();
    state_->ssl.reset();
    return false;
}

StreamState TlsSession::handshake() {
    ERR_clear_error();
    const int result = SSL_do_handshake(get());
    if (result == 1) return StreamState::ok;
    switch (SSL_get_error(get(), result)) {
    case SSL_ERROR_WANT_READ: return StreamState::want_read;
    case SSL_ERROR_WANT_WRITE: return StreamState::want_write;
    case SSL_ERROR_SYSCALL:
        state_->error = errno != 0 ? std::strerror(errno) : "the client ended the connection";
        ERR_clear_error();
        return StreamState::broken;
    default:
        if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
            state_->error = "the client ended the connection";
        else
            state_->error = openssl_error();
        ERR_clear_error();
        return StreamState::broken;
    }
}

bool TlsSession::has_peer_certificate() const {
    return active() && SSL_get0_peer_certificate(get()) != nullptr &&
           SSL_get_verify_result(get()) == X509_V_OK;
}

std::optional<std::string> TlsSession::peer_common_name() const {
    if (!has_peer_certificate()) return std::nullopt;
    const X509_NAME *name = X509_get_subject_name(SSL_get0_peer_certificate(get()));
    const int at = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
    if (at < 0) return std::nullopt;
    unsigned char *text = nullptr;
    const int size =
        ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at)));
    if (size < 0) {
        ERR_clear_error();
        return std::nullopt;
    }
    std::string common_name(reinterpret_cast<const char *>(text), static_cast<std::size_t>(size));
    OPENSSL_free(text);
    // "alice\0.example.org" must not pass for alice.
    if (common_name.empty() || common_name.find('\0') != std::string::npos) return std::nullopt;
    return common_name;
}

void TlsSession::say_goodbye() {
    if (!active() || SSL_is_init_finished(get()) == 0) return;
    ERR_clear_error();
    (void)SSL_shutdown(get());
    ERR_clear_error();
}

}  // namespace interlock::wire
