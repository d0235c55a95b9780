#include "session/listener.h"

#include "base/log.h"

#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace interlock {

namespace {

// With no descriptors left, accepting is tried again after this long.
constexpr Millis accept_pause = 100;
constexpr int accept_batch = 64;

struct FreeAddresses {
    void operator()(addrinfo *list) const { ::freeaddrinfo(list); }
};

bool split_address(const std::string &address, std::string &host, std::string &port) {
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon + 1 == address.size()) return false;
    host = address.substr(0, colon);
    port = address.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
        host = host.substr(1, host.size() - 2);
    return !host.empty();
}

}  // namespace

Result<std::unique_ptr<Listener>, std::string>
Listener::open(Loop &loop, const std::string &address, Accept accept) {
    std::string host;
    std::string port;
    if (!split_address(address, host, port))
        return format("\"%s\" is not an address of the form HOST:PORT", address.c_str());
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo *found = nullptr;
    const int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (failure != 0)
        return format("could not resolve \"%s\": %s", address.c_str(), ::gai_strerror(failure));
    const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);

    UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (!socket.valid() ||
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
        ::listen(socket.get(), 1024) != 0)
        return format("could not listen on %s: %s", address.c_str(), std::strerror(errno));
    // new: the constructor is private.
    return std::unique_ptr<Listener>(
        new Listener(loop, std::move(socket), address, std::move(accept)));
}

Task<void> Listener::run() {
    bool complained = false;
    while (!closed_.is_set()) {
        co_await Wait(loop_, never).read(*watch_).event(closed_);
        for (int i = 0; i < accept_batch && !closed_.is_set(); ++i) {
            UniqueFd client(
                ::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (client.valid()) {
                const int on = 1;
                ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                ::setsockopt(client.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
                complained = false;
                accept_(std::move(client));
                continue;
            }
            if (errno == ECONNABORTED || errno == EINTR) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK) break;
            if (!complained)
                log_error("could not accept a connection on %s: %s", address_.c_str(),
                          std::strerror(errno));
            complained = true;
            co_await Wait(loop_, loop_.now() + accept_pause).event(closed_);
            break;
        }
    }
    // No client is left in the kernel's queue to wait for nobody.
    watch_.reset();
    socket_.reset();
}

void Listener::close() {
    closed_.set();
}

}  // namespace interlock
