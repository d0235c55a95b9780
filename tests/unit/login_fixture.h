// A connection to the PostgreSQL listener as open_connection() sees it: the loop on one side of a
// socket pair, a client that blocks, on a thread of its own, on the other.
#pragma once

#include "certificates.h"
#include "scram_client.h"

#include "base/log.h"
#include "session/client_auth.h"
#include "session/pg_login.h"
#include "wire/frame.h"
#include "wire/startup.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <functional>
#include <openssl/ssl.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace interlock::test {

inline std::string int32(std::uint32_t value) {
    std::string bytes;
    for (unsigned shift = 32; shift > 0; shift -= 8)
        bytes += static_cast<char>(value >> (shift - 8));
    return bytes;
}

inline std::string packet(const std::string &body) {
    return int32(static_cast<std::uint32_t>(body.size() + 4)) + body;
}

inline const std::string ssl_request = packet(int32(1234U << 16U | 5679U));
inline const std::string gss_request = packet(int32(1234U << 16U | 5680U));

inline std::string startup_packet(const std::string &user, const std::string &database = "shop",
                                  std::uint32_t version = wire::protocol_version) {
    std::string body = int32(version);
    for (const std::string &word : {std::string("user"), user, std::string("database"), database})
        body += word + '\0';
    return packet(body + '\0');
}

/// The client's end. Every wait is bounded.
class Caller {
  public:
    explicit Caller(int fd) : fd_(fd) {
        const timeval limit{10, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    ~Caller() {
        if (ssl_) SSL_free(ssl_);
        if (context_) SSL_CTX_free(context_);
    }
    Caller(const Caller &) = delete;
    Caller &operator=(const Caller &) = delete;

    void send(const std::string &bytes) {
        if (ssl_)
            (void)SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()));
        else
            (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    void send_message(char type, const std::string &body) { send(type + packet(body)); }

    /// Exactly `count` bytes, or fewer at the end of the stream.
    std::string read(std::size_t count) {
        std::string bytes(count, '\0');
        std::size_t have = 0;
        while (have < count) {
            const ssize_t got =
                ssl_ ? SSL_read(ssl_, bytes.data() + have, static_cast<int>(count - have))
                     : ::recv(fd_, bytes.data() + have, count - have, 0);
            if (got <= 0) break;
            have += static_cast<std::size_t>(got);
        }
        bytes.resize(have);
        return bytes;
    }
    std::string read_all() { return read(1 << 20); }

    /// The next message's type and body; type 0 at the end of the stream.
    std::pair<char, std::string> message() {
        const std::string header = read(5);
        if (header.size() < 5) return {'\0', ""};
        return {header[0], read(wire::load32(header.data() + 1) - 4)};
    }
    /// SQLSTATE and message of the FATAL error that is the last thing to come.
    std::string fatal() {
        const auto [type, body] = message();
        if (type == '\0') return "closed";
        wire::ErrorFields error;
        if (type != 'E' || !wire::parse_error(body, error)) return std::string("message ") + type;
        std::string text = std::string(error.sqlstate) + " " + std::string(error.message);
        if (!error.fatal()) text += " (not FATAL)";
        if (!read(1).empty()) text += " (and more)";
        return text;
    }

    /// The handshake, with or without a certificate of the client's own.
    bool start_tls(const std::string &certificate = {}, const std::string &key = {},
                   int version = 0) {
        context_ = SSL_CTX_new(TLS_client_method());
        if (!certificate.empty()) {
            SSL_CTX_use_certificate_file(context_, certificate.c_str(), SSL_FILETYPE_PEM);
            SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM);
        }
        if (version != 0) {
            SSL_CTX_set_security_level(context_, 0);
            SSL_CTX_set_max_proto_version(context_, version);
        }
        SSL *ssl = SSL_new(context_);
        SSL_set_fd(ssl, fd_);
        if (SSL_connect(ssl) != 1) {
            SSL_free(ssl);
            return false;
        }
        ssl_ = ssl;
        return true;
    }
    [[nodiscard]] std::string protocol() const { return SSL_get_version(ssl_); }
    /// tls-server-end-point of the server's certificate (signed with SHA-256).
    [[nodiscard]] std::string end_point() const {
        unsigned char hash[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        X509_digest(SSL_get0_peer_certificate(ssl_), EVP_sha256(), hash, &size);
        return {reinterpret_cast<char *>(hash), size};
    }

    /// The whole password exchange; what comes after it is still to be read.
    void scram(const std::string &password, const std::string &mechanism = "SCRAM-SHA-256",
               const std::string &header = "n,,", const std::string &binding = {}) {
        const auto [type, offer] = message();
        if (type != 'R' || wire::load32(offer.data()) != 10) {
            ADD_FAILURE() << "no password was asked for, but: " << type << offer;
            return;
        }
        offered = offer.substr(4);
        const ScramClient client{password, header, binding};
        const std::string first = client.first();
        send_message('p',
                     mechanism + '\0' + int32(static_cast<std::uint32_t>(first.size())) + first);
        const auto [answer, server_first] = message();
        if (answer != 'R' || wire::load32(server_first.data()) != 11) {
            ADD_FAILURE() << answer << server_first;
            return;
        }
        expected_signature = client.expected(server_first.substr(4));
        send_message('p', client.final(server_first.substr(4)));
    }
    /// AuthenticationSASLFinal with the right signature, AuthenticationOk, nothing more.
    bool is_in() {
        const auto [type, body] = message();
        if (type != 'R' || wire::load32(body.data()) != 12 || body.substr(4) != expected_signature)
            return false;
        return read(9) == "R" + packet(int32(0));
    }

    std::string offered;             ///< mechanisms
    std::string expected_signature;  ///< of the server

  private:
    int fd_;
    SSL_CTX *context_ = nullptr;
    SSL *ssl_ = nullptr;
};

class LoginTest : public testing::Test {
  protected:
    LoginTest() {
        std::signal(SIGPIPE, SIG_IGN);
        set_log_level(LogLevel::error);
        settings_.pg_auth = "trust";
        settings_.catalog_conninfo = "host=/nonexistent";
        settings_.catalog_timeout = 1000;
    }
    ~LoginTest() override { set_log_level(LogLevel::info); }

    /// Lets `client` speak with open_connection() and returns what that came to.
    Opening open(const std::function<void(Caller &)> &client) {
        Loop loop;
        Worker worker(loop, settings_);
        worker.pg_clients = clients_before_;
        worker.pg_starting = starting_before_;
        auto client_auth = ClientAuth::create(loop, settings_);
        if (!client_auth) {
            ADD_FAILURE() << client_auth.error();
            return {};
        }
        worker.client_auth = std::move(*client_auth);
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
        UniqueFd ours(ends[0]);
        ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
        std::thread thread([&client, fd = ends[1]] {
            {
                Caller caller(fd);
                client(caller);
            }
            ::close(fd);
        });
        Opening opening;
        spawn(serve(worker, std::move(ours), opening));
        loop.run();
        thread.join();
        EXPECT_EQ(worker.pg_clients, clients_before_);
        EXPECT_EQ(worker.pg_starting, starting_before_);
        return opening;
    }
    /// What a client hears who sends these bytes and waits.
    std::string told(const std::string &bytes, const std::string &first = "") {
        std::string heard;
        const Opening opening = open([&](Caller &caller) {
            caller.send(bytes);
            EXPECT_EQ(caller.read(first.size()), first);
            heard = caller.fatal();
        });
        EXPECT_EQ(opening.kind, Opening::Kind::closed);
        return heard;
    }

    Settings settings_;
    std::size_t clients_before_ = 0;
    std::size_t starting_before_ = 0;
    std::string left_;                ///< input that came after the exchange
    std::size_t clients_during_ = 0;  ///< pg_clients when the client was in

  private:
    Task<void> serve(Worker &worker, UniqueFd socket, Opening &opening) {
        {
            Transport transport(worker.loop(), std::move(socket));
            Buffer in;
            opening = co_await open_connection(worker, transport, in);
            left_ = in.view();
            clients_during_ = worker.pg_clients;
        }
        worker.loop().stop();
    }
};

}  // namespace interlock::test
