#include "session/line_client.h"

#include "base/log.h"
#include "session/route_wait.h"

#include <cstring>
#include <sys/socket.h>

namespace interlock {

namespace {

// Answers to pipelined requests are collected up to here before they are written.
constexpr std::size_t flush_at = 64 * 1024;
constexpr std::size_t read_step = 16 * 1024;
// Lines up to here are taken even when the budget for buffers is used up.
constexpr std::size_t always_room_for = 64 * 1024;
// After the last answer: how long, and for how much more input, the client's end is waited for.
constexpr Millis goodbye_time = 1000;
constexpr std::size_t goodbye_bytes = 1 << 20;

Task<void> serve_client(Worker &worker, UniqueFd socket) {
    LineClient client(worker, std::move(socket));
    ++worker.line_clients;
    worker.add_client(&client);
    co_await client.serve();
    --worker.line_clients;
    worker.remove_client(&client);
}

// An extra client is told why instead of being left to hang.
Task<void> turn_away(Worker &worker, UniqueFd socket) {
    Watch watch(worker.loop(), socket.get());
    wire::Stream stream(socket.get(), nullptr);
    Buffer out;
    out.append(format("ERR code=R34 tx=I rv=%d sqlstate=53300 msg=too many clients; DETAIL: The "
                      "limit is %zu.; HINT: Try again later.\n",
                      worker.routes() ? worker.routes()->table->version : 0,
                      worker.settings().max_clients));
    // A fresh socket takes this much at once; one that does not is simply closed.
    if (stream.write(out) != wire::StreamState::ok) log_debug("a client was turned away unheard");
    co_return;
}

}  // namespace

void accept_line_client(Worker &worker, UniqueFd socket) {
    if (worker.line_clients >= worker.settings().max_clients)
        spawn(turn_away(worker, std::move(socket)));
    else
        spawn(serve_client(worker, std::move(socket)));
}

LineClient::LineClient(Worker &worker, UniqueFd socket)
    : worker_(worker), socket_(std::move(socket)), watch_(worker.loop(), socket_.get()),
      stream_(socket_.get(), nullptr), end_(watch_), session_(worker, &end_) {}

Task<void> LineClient::serve() {
    for (;;) {
        const Next next = co_await serve_one_line();
        if (next == Next::closed) break;
        if (next == Next::served && out_.size() < flush_at) continue;
        if (!out_.empty() && !co_await flush()) break;
        if (next == Next::served) continue;
        // Nothing complete is waiting: the moment to leave if the router is stopping.
        if (worker_.stopping() && session_.transaction() == Transaction::none) {
            co_await refuse(Code::R30, "the router is shutting down");
            co_await say_goodbye();
            break;
        }
        if (!co_await read_more()) break;
    }
    co_await session_.end();
    worker_.buffered_bytes -= charged_;
    charged_ = 0;
}

Task<LineClient::Next> LineClient::serve_one_line() {
    const char *begin = in_.data();
    const std::size_t size = in_.size();
    const void *found =
        size > searched_ ? std::memchr(begin + searched_, '\n', size - searched_) : nullptr;
    if (found == nullptr) {
        if (discarding_) in_.clear();
        searched_ = in_.size();
        charge_buffers();
        const Settings &settings = worker_.settings();
        const bool too_long = searched_ > settings.max_line;
        const bool no_room =
            searched_ > always_room_for && worker_.buffered_bytes > settings.max_buffered_bytes;
        if (too_long || no_room) {
            discarding_ = true;
            in_.clear();
            searched_ = 0;
            if (too_long)
                co_await refuse(Code::R02,
                                format("the line is longer than %zu bytes", settings.max_line));
            else
                co_await refuse(Code::R34, "the router has no room for so long a line at present");
        }
        co_return Next::need_more;
    }
    const std::size_t length = static_cast<std::size_t>(static_cast<const char *>(found) - begin);
    searched_ = 0;
    if (discarding_) {
        discarding_ = false;
    } else if (length > worker_.settings().max_line) {
        co_await refuse(Code::R02,
                        format("the line is longer than %zu bytes", worker_.settings().max_line));
    } else {
        std::string_view line(begin, length);
        if (line.ends_with('\r')) line.remove_suffix(1);
        co_await answer(line);
    }
    in_.consume(length + 1);
    line_began_ = worker_.loop().now();
    co_return Next::served;
}

Task<void> LineClient::answer(std::string_view line) {
    if (end_.gone()) {
        // It may have shut its writing side only, and still listen.
        const Reply reply = co_await session_.refuse(client_left());
        append_reply(out_, reply, JsonRows(0, worker_.buffered_bytes, 0));
        charge_buffers();
        co_return;
    }
    std::string error;
    if (!parse_line(line, worker_.settings().max_parameters, request_, error)) {
        co_await refuse(Code::R02, std::move(error));
        co_return;
    }
    if (request_.verb == Verb::status) {
        append_status();
        co_return;
    }
    JsonRows rows(worker_.settings().max_result_bytes, worker_.buffered_bytes,
                  worker_.settings().max_buffered_bytes);
    charge_buffers();
    const Reply reply = co_await session_.run(request_.sql, request_.parameters, rows);
    append_reply(out_, reply, rows);
    // A long request's memory is given back: most clients send one, and then short ones for ever.
    if (request_.memory() > always_room_for) request_ = LineRequest();
    charge_buffers();
}

Task<void> LineClient::refuse(Code code, std::string message) {
    const Reply reply = co_await session_.refuse(make_refusal(code, std::move(message)));
    const JsonRows no_rows(0, worker_.buffered_bytes, 0);
    append_reply(out_, reply, no_rows);
    charge_buffers();
}

void LineClient::charge_buffers() {
    const std::size_t held = out_.size() + in_.size() + request_.memory();
    worker_.buffered_bytes += held;
    worker_.buffered_bytes -= charged_;
    charged_ = held;
}

Task<bool> LineClient::read_more() {
    for (;;) {
        const Settings &settings = worker_.settings();
        const Millis now = worker_.loop().now();
        Millis deadline = never;
        const bool mid_line = !in_.empty() || discarding_;
        if (mid_line) deadline = deadline_after(line_began_, settings.line_timeout);
        if (session_.transaction() != Transaction::none)
            deadline = std::min(deadline, deadline_after(now, settings.idle_transaction_timeout));
        const Fired fired = co_await Wait(worker_.loop(), deadline)
                                .read(watch_)
                                .read(session_.pinned_watch())
                                .event(wake_);
        if (fired.none()) {
            if (mid_line)
                co_await refuse(Code::R02, "the line was not finished in time");
            else
                co_await refuse(Code::R36, "the transaction was idle too long; it is rolled back "
                                           "and the connection closed");
            co_await say_goodbye();
            co_return false;
        }
        if (fired.has(1)) session_.backend_stirred();
        if (fired.has(2)) wake_.reset();
        if (fired.has(0)) {
            if (!mid_line) line_began_ = worker_.loop().now();
            switch (stream_.read(in_, read_step)) {
            case wire::StreamState::ok: co_return true;
            case wire::StreamState::want_read:
            case wire::StreamState::want_write: break;
            case wire::StreamState::closed:
            case wire::StreamState::broken: co_return false;
            }
        }
        if (fired.has(2)) co_return true;  // let serve() see that the router is stopping
    }
}

// Writes what is left and ends our side of the stream, then waits a moment for the client to end
// its own: closed at once, a socket with unread input would reset the connection and lose the
// answer.
Task<void> LineClient::say_goodbye() {
    if (!co_await flush()) co_return;
    ::shutdown(socket_.get(), SHUT_WR);
    const Millis deadline = worker_.loop().now() + goodbye_time;
    for (std::size_t taken = 0; taken < goodbye_bytes; taken += read_step) {
        const Fired fired = co_await Wait(worker_.loop(), deadline).read(watch_);
        if (fired.none()) co_return;
        in_.clear();
        const wire::StreamState state = stream_.read(in_, read_step);
        if (state == wire::StreamState::closed || state == wire::StreamState::broken) co_return;
    }
}

Task<bool> LineClient::flush() {
    const Millis deadline = deadline_after(worker_.loop().now(), worker_.settings().write_timeout);
    while (!out_.empty()) {
        switch (stream_.write(out_)) {
        case wire::StreamState::ok: break;
        case wire::StreamState::want_read:
        case wire::StreamState::want_write: {
            const Fired fired = co_await Wait(worker_.loop(), deadline).write(watch_);
            if (fired.none()) {
                log_warning("a client did not take its answer in time; its connection is closed");
                co_return false;
            }
            break;
        }
        case wire::StreamState::closed:
        case wire::StreamState::broken: co_return false;
        }
        charge_buffers();
    }
    charge_buffers();
    co_return true;
}

void LineClient::append_status() {
    const auto &routes = worker_.routes();
    const CatalogState &catalog = worker_.catalog;
    out_.append(format("OK rv=%d rejected_rv=", routes ? routes->table->version : 0));
    out_.append(catalog.rejected_version < 0 ? std::string("none")
                                             : std::to_string(catalog.rejected_version));
    out_.append(" rejected_why=" + (catalog.rejected_why.empty()
                                        ? std::string("none")
                                        : percent_encoded(catalog.rejected_why)));
    out_.append(catalog.reachable ? " catalog=up" : " catalog=down");
    out_.append(" catalog_error=" +
                (catalog.error.empty() ? std::string("none") : percent_encoded(catalog.error)));
    out_.append(
        format(" clients=%zu buffered=%zu", worker_.client_count(), worker_.buffered_bytes));
    const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
    const ScatterCounters &scatters = *worker_.scatters;
    out_.append(format(" scatters=started:%llu,failed:%llu,partial:%llu,statements:%llu,"
                       "fetched:%llu,returned:%llu,cancelled:%llu,draining:%zu",
                       number(scatters.started), number(scatters.failed), number(scatters.partial),
                       number(scatters.statements), number(scatters.fetched),
                       number(scatters.returned), number(scatters.cancelled), scatters.draining));
    const IndexPageCounters &pages = worker_.index_pages;
    out_.append(format(" index_pages=%llu index_failed=%llu index_rounds=%llu index_entries=%llu "
                       "index_filtered=%llu",
                       number(pages.pages), number(pages.failed), number(pages.rounds),
                       number(pages.entries), number(pages.filtered)));
    const RouteCounters &moves = worker_.moves;
    out_.append(format(" moves=announced:%d,held:%llu,resent:%llu,failed:%llu,waiting:%zu",
                       routes && routes->table->announced ? routes->table->announced->version : 0,
                       number(moves.held), number(moves.resent), number(moves.failed),
                       moves.waiting));
    if (routes) {
        for (const Shard &shard : routes->table->shards) {
            const PoolCounters counters = worker_.pools().counters(shard.name);
            out_.append(
                format(" shard.%s=idle:%zu,borrowed:%zu,waiting:%zu,created:%llu,destroyed:%llu",
                       shard.name.c_str(), counters.idle, counters.borrowed, counters.waiting,
                       number(counters.created), number(counters.destroyed)));
        }
    }
    out_.append('\n');
    charge_buffers();
}

}  // namespace interlock
