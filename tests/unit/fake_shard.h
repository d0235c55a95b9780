// A shard without PostgreSQL: speaks just enough of the protocol, on the test's own loop, and does
// at each statement exactly what the test wants (answer, error, silence, half an answer, hang up).
#pragma once

#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/task.h"
#include "server/login.h"
#include "wire/frame.h"
#include "wire/stream.h"

#include <algorithm>
#include <arpa/inet.h>
#include <functional>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

namespace interlock::test {

/// What a fake shard does with one statement.
struct Behaviour {
    std::string frames;     ///< sent as they are; empty: the usual answer
    bool close = false;     ///< then hangs up
    bool silent = false;    ///< says nothing until a cancel request comes; then `frames`
    bool bytewise = false;  ///< sends one byte at a time
    bool no_ready = false;  ///< no ReadyForQuery after `frames`
};

inline std::string framed(char type, std::string_view body) {
    Buffer buffer;
    wire::FrameWriter(buffer, type).bytes(body);
    return std::string(buffer.view());
}
inline std::string complete_frame(const std::string &tag) {
    return framed('C', tag + '\0');
}
inline std::string error_frame(const std::string &severity, const std::string &sqlstate,
                               const std::string &message) {
    std::string body;
    for (const std::string &field : {"S" + severity, "V" + severity, "C" + sqlstate, "M" + message})
        body += field + '\0';
    return framed('E', body + '\0');
}
inline std::string row_frames(const std::vector<std::string> &values) {
    Buffer buffer;
    {
        wire::FrameWriter description(buffer, 'T');
        description.int16(static_cast<std::uint16_t>(values.size()));
        for (std::size_t i = 0; i < values.size(); ++i)
            description.string("c").int32(0).int16(0).int32(25).int16(0xFFFF).int32(0).int16(0);
    }
    {
        wire::FrameWriter row(buffer, 'D');
        row.int16(static_cast<std::uint16_t>(values.size()));
        for (const std::string &value : values)
            row.int32(static_cast<std::uint32_t>(value.size())).bytes(value);
    }
    return std::string(buffer.view());
}

class FakeShard {
  public:
    FakeShard(Loop &loop, std::string cluster_id, std::string shard)
        : identity{{"cluster_id", std::move(cluster_id)},
                   {"shard", std::move(shard)},
                   {"floor", "0"},
                   {"restored", "false"},
                   {"catalog_first", "true"},
                   {"pg_catalog.pg_is_in_recovery()", "false"},
                   {"system_identifier", "7001"},
                   {"timeline", "1"}},
          loop_(loop) {
        listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        if (::bind(listener_.get(), reinterpret_cast<sockaddr *>(&address), size) != 0 ||
            ::listen(listener_.get(), 64) != 0 ||
            ::getsockname(listener_.get(), reinterpret_cast<sockaddr *>(&address), &size) != 0)
            throw std::runtime_error("a fake shard could not listen");
        port_ = ntohs(address.sin_port);
        spawn(accept_all());
    }

    std::string conninfo() const {
        return format("host=127.0.0.1 port=%d user=app dbname=app sslmode=disable", port_);
    }

    /// Every connection is cut; with `for_good` no new one is taken either. Wait for gone().
    void hang_up(bool for_good) {
        if (for_good) closed_.set();
        for (Connection *connection : connections_)
            connection->wake.set();
    }
    /// The same by a reset, as when the machine died: the other side cannot even write any more.
    void reset() {
        const linger at_once{1, 0};
        for (Connection *connection : connections_)
            ::setsockopt(connection->fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        hang_up(false);
    }
    bool gone() const { return connections_.empty() && !accepting_; }
    std::size_t connections() const { return connections_.size(); }

    /// What the greeting is answered by: values of the columns it asks for.
    std::map<std::string, std::string, std::less<>> identity;
    /// Settings a session begins with, of those that are asked for; others are empty.
    std::map<std::string, std::string, std::less<>> settings;
    /// Rows of the greeting's last part: kind, schema, name, detail. Asked for again later, those
    /// of keysets, keys and collations.
    std::vector<std::vector<std::string>> surroundings;
    /// What to do with a statement; nothing for the usual answer.
    std::function<std::optional<Behaviour>(std::string_view sql)> script;
    /// All statements that arrived, greetings left out.
    std::vector<std::string> statements;
    int greetings = 0;
    int questions = 0;  ///< for keysets and keys, after the greeting
    int floor_questions = 0;
    int cancels = 0;
    bool deaf = false;  ///< statements are not read from the socket any more

  private:
    struct Connection {
        Connection(Loop &loop, UniqueFd socket)
            : fd(std::move(socket)), watch(loop, fd.get()), stream(fd.get(), nullptr) {}
        UniqueFd fd;
        Watch watch;
        wire::Stream stream;
        Buffer in;
        Buffer out;
        Event wake;
        Event cancel;
        std::string statement;  ///< of the last Parse
        char transaction = 'I';
        bool skipping = false;  ///< to the next Sync, after an error
        bool closing = false;
    };

    Task<void> accept_all() {
        co_await accept_until_closed();
        listener_ = UniqueFd();
        accepting_ = false;
        changed.set();
    }
    Task<void> accept_until_closed() {
        Watch watch(loop_, listener_.get());
        while (!closed_.is_set()) {
            const Fired fired = co_await Wait(loop_, never).read(watch).event(closed_);
            if (!fired.has(0)) continue;
            UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
            if (!client.valid()) continue;
            const int on = 1;
            ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            spawn(serve(std::move(client)));
        }
    }

    Task<void> serve(UniqueFd socket) {
        Connection self(loop_, std::move(socket));
        connections_.insert(&self);
        if (co_await start(self)) {
            while (!self.closing && !self.wake.is_set()) {
                wire::Frame frame;
                if (!deaf && wire::peek_frame(self.in, 1 << 30, frame) == wire::FrameState::ready) {
                    const char type = frame.type;
                    const std::string body(frame.body);
                    self.in.consume(frame.size);
                    if (type == 'X') break;
                    co_await take(self, type, body);
                } else if (!co_await more(self)) {
                    break;
                }
            }
        }
        connections_.erase(&self);
        self.cancel.set();
        changed.set();
    }

    /// The start packet: a cancel request, or a session to let in.
    Task<bool> start(Connection &self) {
        while (self.in.size() < 8 || self.in.size() < wire::load32(self.in.data()))
            if (!co_await more(self)) co_return false;
        const std::uint32_t code = wire::load32(self.in.data() + 4);
        if (code == 80877102) {
            ++cancels;
            for (Event *silent : silent_)
                silent->set();
            co_return false;
        }
        self.in.consume(wire::load32(self.in.data()));
        self.out.append(framed('R', std::string(4, '\0')));
        self.out.append(framed('S', std::string("client_encoding\0UTF8\0", 21)));
        self.out.append(framed('S', std::string("standard_conforming_strings\0on\0", 31)));
        self.out.append(framed('S', std::string("server_version\0"
                                                "15.0\0",
                                                20)));
        {
            wire::FrameWriter key(self.out, 'K');
            key.int32(static_cast<std::uint32_t>(++pids_)).int32(42);
        }
        self.out.append(framed('Z', "I"));
        co_return co_await flush(self);
    }

    Task<bool> more(Connection &self) {
        const Fired fired =
            co_await Wait(loop_, never).read(deaf ? nullptr : &self.watch).event(self.wake);
        if (fired.has(1)) co_return false;
        const wire::StreamState state = self.stream.read(self.in, 1 << 16);
        co_return state == wire::StreamState::ok || state == wire::StreamState::want_read;
    }

    Task<bool> flush(Connection &self) {
        while (!self.out.empty()) {
            const wire::StreamState state = self.stream.write(self.out);
            if (state == wire::StreamState::ok) continue;
            if (state != wire::StreamState::want_write) co_return false;
            co_await Wait(loop_, never).write(self.watch).event(self.wake);
            if (self.wake.is_set()) co_return false;
        }
        co_return true;
    }

    Task<void> take(Connection &self, char type, const std::string &body) {
        wire::FieldReader fields(body);
        bool ready = false;
        switch (type) {
        case 'Q':
            ready = co_await run(self, std::string(fields.string()));
            self.skipping = false;
            break;
        case 'P':
            fields.string();
            self.statement = fields.string();
            break;
        case 'E':
            if (!self.skipping) co_await run(self, self.statement);
            break;
        case 'S':
            self.skipping = false;
            ready = !self.closing;
            break;
        default: break;
        }
        if (ready && !suppress_ready_)
            self.out.append(framed('Z', std::string(1, self.transaction)));
        if (ready) suppress_ready_ = false;
        (void)co_await flush(self);
    }

    /// True if ReadyForQuery may follow.
    Task<bool> run(Connection &self, std::string sql) {
        if (sql.starts_with("SELECT cluster_id")) {
            ++greetings;
            self.out.append(row_frames(greeting(sql)) + complete_frame("SELECT 1"));
            self.out.append(begun_settings());
            self.out.append(complete_frame("SET"));
            self.out.append(
                row_frames({"", "", "", ""}).substr(0, row_frames({"", "", "", ""}).find('D')));
            for (const auto &row : surroundings) {
                const std::string frames = row_frames(row);
                self.out.append(frames.substr(frames.find('D')));
            }
            self.out.append(complete_frame("SELECT"));
            co_return true;
        }
        if (sql.starts_with("SELECT floor")) {
            ++floor_questions;
            self.out.append(row_frames(greeting(sql)) + complete_frame("SELECT 1"));
            co_return true;
        }
        if (sql.starts_with("WITH declared")) {
            ++questions;
            self.out.append(
                row_frames({"", "", "", ""}).substr(0, row_frames({"", "", "", ""}).find('D')));
            for (const auto &row : surroundings) {
                if (row[0] != "keyset" && row[0] != "unique key" && row[0] != "collations")
                    continue;
                const std::string frames = row_frames(row);
                self.out.append(frames.substr(frames.find('D')));
            }
            self.out.append(complete_frame("SELECT"));
            co_return true;
        }
        statements.push_back(sql);
        auto behaviour = script ? script(sql) : std::nullopt;
        if (!behaviour) {
            self.out.append(usual_answer(self, sql));
            co_return true;
        }
        if (behaviour->silent) {
            silent_.insert(&self.cancel);
            co_await Wait(loop_, never).event(self.cancel).event(self.wake);
            silent_.erase(&self.cancel);
            self.cancel.reset();
        }
        suppress_ready_ = behaviour->no_ready;
        if (behaviour->frames.empty() && !behaviour->close)
            self.out.append(usual_answer(self, sql));
        self.out.append(behaviour->frames);
        if (behaviour->frames.starts_with("E")) {
            self.skipping = true;
            if (self.transaction == 'T') self.transaction = sql == "COMMIT" ? 'I' : 'E';
        }
        if (behaviour->bytewise) {
            Buffer all = std::move(self.out);
            while (!all.empty()) {
                self.out.append(all.data()[0]);
                all.consume(1);
                co_await flush(self);
                Event next;  // the other side reads before the next byte is sent
                loop_.post([&next] { next.set(); });
                co_await Wait(loop_, never).event(next);
            }
        }
        if (behaviour->close) {
            co_await flush(self);
            self.closing = true;
        }
        co_return !behaviour->close;
    }

    /// The values of what stands between SELECT and FROM.
    std::vector<std::string> greeting(std::string_view sql) const {
        std::vector<std::string> values;
        sql = sql.substr(7, sql.find(" FROM ") - 7);
        while (!sql.empty()) {
            std::string_view column = sql.substr(0, sql.find(", "));
            sql.remove_prefix(std::min(sql.size(), column.size() + 2));
            column = column.substr(0, column.find("::"));
            const auto known = identity.find(column);
            if (known == identity.end())
                throw std::runtime_error("the fake shard has no " + std::string(column));
            values.push_back(known->second);
        }
        return values;
    }

    /// The answer to the greeting's second part: one row a setting.
    std::string begun_settings() const {
        std::string rows;
        for (const std::string &name : compared_settings()) {
            const auto known = settings.find(name);
            const std::string row =
                row_frames({known == settings.end() ? std::string() : known->second});
            rows += rows.empty() ? row : row.substr(row.find('D'));
        }
        return rows + complete_frame("SELECT");
    }

    static std::string usual_answer(Connection &self, const std::string &sql) {
        if (sql == "BEGIN") self.transaction = 'T';
        if (sql == "COMMIT" || sql == "ROLLBACK") self.transaction = 'I';
        if (sql.starts_with("select")) return row_frames({"value"}) + complete_frame("SELECT 1");
        if (sql.starts_with("insert")) return complete_frame("INSERT 0 1");
        std::string tag = sql.substr(0, sql.find(' '));
        std::transform(tag.begin(), tag.end(), tag.begin(),
                       [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
        return complete_frame(tag == "UPDATE" || tag == "DELETE" ? tag + " 1" : tag);
    }

    Loop &loop_;
    UniqueFd listener_;
    int port_ = 0;
    int pids_ = 1000;
    Event closed_;
    bool accepting_ = true;
    bool suppress_ready_ = false;
    std::set<Connection *> connections_;
    std::set<Event *> silent_;

  public:
    Event changed;  ///< set when a connection ends
};

}  // namespace interlock::test
