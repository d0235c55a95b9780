// Load generator for the line protocol: a number of clients in one thread, each with one request
// under way at a time. Prints one JSON object.
//
//   line_load HOST PORT CLIENTS SECONDS KEYS SQL FIELD...
//
// FIELDs are the parameters; "{}" stands for a key from 1 to KEYS, another one at each request.
// Latencies are measured from the send of a request to the end of its answer line.
#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <random>
#include <string>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string &what) {
    std::fprintf(stderr, "line_load: %s\n", what.c_str());
    std::exit(1);
}

std::string url_encoded(const std::string &text) {
    std::string out;
    for (const unsigned char c : text) {
        if (std::isalnum(c) != 0 || std::strchr("-_.~*", c) != nullptr) {
            out += static_cast<char>(c);
        } else {
            char escape[4];
            std::snprintf(escape, sizeof escape, "%%%02X", c);
            out += escape;
        }
    }
    return out;
}

struct Client {
    int fd = -1;
    std::string answer;
    Clock::time_point sent;
};

class Load {
  public:
    Load(char **arguments, int count) {
        host_ = arguments[0];
        port_ = std::atoi(arguments[1]);
        clients_.resize(static_cast<std::size_t>(std::atoi(arguments[2])));
        seconds_ = std::atof(arguments[3]);
        keys_ = std::atoll(arguments[4]);
        parts_.push_back("Q\t" + url_encoded(arguments[5]));
        for (int i = 6; i < count; ++i) {
            parts_.back() += '\t';
            if (std::strcmp(arguments[i], "{}") == 0)
                parts_.emplace_back();
            else
                parts_.back() += url_encoded(arguments[i]);
        }
        parts_.back() += '\n';
    }

    void run() {
        epoll_ = ::epoll_create1(0);
        for (Client &client : clients_)
            connect(client);
        const auto began = Clock::now();
        const auto end = began + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(seconds_));
        for (Client &client : clients_)
            send(client);
        std::size_t open = clients_.size();
        while (open > 0) {
            epoll_event events[64];
            const int ready = ::epoll_wait(epoll_, events, 64, 10000);
            if (ready == 0) fail("no answer within 10 s");
            for (int i = 0; i < ready; ++i) {
                Client &client = *static_cast<Client *>(events[i].data.ptr);
                if (!receive(client)) continue;
                if (Clock::now() < end)
                    send(client);
                else
                    --open;
            }
        }
        report(std::chrono::duration<double>(Clock::now() - began).count());
    }

  private:
    void connect(Client &client) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<std::uint16_t>(port_));
        client.fd = ::socket(AF_INET, SOCK_STREAM, 0);
        if (::inet_pton(AF_INET, host_.c_str(), &address.sin_addr) != 1 ||
            ::connect(client.fd, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
            fail(std::string("could not connect: ") + std::strerror(errno));
        const int on = 1;
        ::setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = &client;
        ::epoll_ctl(epoll_, EPOLL_CTL_ADD, client.fd, &event);
    }

    void send(Client &client) {
        request_.clear();
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            if (i > 0)
                request_ += std::to_string(
                    1 + static_cast<long long>(random_() % static_cast<unsigned long>(keys_)));
            request_ += parts_[i];
        }
        client.sent = Clock::now();
        if (::send(client.fd, request_.data(), request_.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(request_.size()))
            fail("could not send a request at once");
    }

    /// True when the answer is complete.
    bool receive(Client &client) {
        char bytes[65536];
        const ssize_t got = ::recv(client.fd, bytes, sizeof bytes, 0);
        if (got <= 0) fail("the router closed a connection");
        client.answer.append(bytes, static_cast<std::size_t>(got));
        if (client.answer.back() != '\n') return false;
        microseconds_.push_back(static_cast<float>(
            std::chrono::duration<double, std::micro>(Clock::now() - client.sent).count()));
        if (!client.answer.starts_with("OK ")) {
            if (errors_++ == 0) std::fprintf(stderr, "%s", client.answer.c_str());
        } else if (client.answer.find(" count=1") == std::string::npos) {
            ++misses_;
        }
        client.answer.clear();
        return true;
    }

    void report(double seconds) {
        std::sort(microseconds_.begin(), microseconds_.end());
        const auto percentile = [&](double share) {
            return microseconds_[static_cast<std::size_t>(
                share * static_cast<double>(microseconds_.size() - 1))];
        };
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        std::printf("{\"requests\": %zu, \"seconds\": %.3f, \"per_second\": %.1f, \"errors\": %zu, "
                    "\"misses\": %zu, \"p50_us\": %.0f, \"p95_us\": %.0f, \"p99_us\": %.0f, "
                    "\"client_cpu_seconds\": %.3f}\n",
                    microseconds_.size(), seconds,
                    static_cast<double>(microseconds_.size()) / seconds, errors_, misses_,
                    percentile(0.5), percentile(0.95), percentile(0.99),
                    static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                        static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
        if (errors_ > 0) std::exit(1);
    }

    std::string host_;
    int port_ = 0;
    double seconds_ = 0;
    long long keys_ = 1;
    std::vector<std::string> parts_;  ///< of a request, a key between each two
    std::vector<Client> clients_;
    int epoll_ = -1;
    std::mt19937_64 random_{1};
    std::string request_;
    std::vector<float> microseconds_;
    std::size_t errors_ = 0;
    std::size_t misses_ = 0;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc < 7) fail("usage: line_load HOST PORT CLIENTS SECONDS KEYS SQL FIELD...");
    Load(argv + 1, argc - 1).run();
    return 0;
}
