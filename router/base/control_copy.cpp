#include "base/control_copy.h"

#include <chrono>
#include <memory>

#include <poll.h>

namespace interlock {

namespace {

constexpr std::size_t batch_bytes = 64 * 1024;

std::int64_t now_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

/// The two ends of a copy: what needs the connections' insides.
class CopyStream {
  public:
    CopyStream(ControlConnection &from, ControlConnection &to, std::int64_t silence)
        : from_(from), to_(to), silence_(silence) {}

    void begin_output(const std::string &copy_out) { start(from_, copy_out, PGRES_COPY_OUT); }
    void begin_input(const std::string &copy_in) { start(to_, copy_in, PGRES_COPY_IN); }

    /// Takes rows until there are enough for a batch; false once there are no more.
    bool take(std::string &batch, std::int64_t &rows) {
        while (batch.size() < batch_bytes) {
            char *row = nullptr;
            const int length = PQgetCopyData(from_.connection_.get(), &row, 1);
            if (length > 0) {
                const std::unique_ptr<char, decltype(&PQfreemem)> owned(row, &PQfreemem);
                batch.append(row, static_cast<std::size_t>(length));
                ++rows;
            } else if (length == 0) {
                from_.wait(false, now_ms() + silence_);
                if (PQconsumeInput(from_.connection_.get()) == 0) from_.lost();
            } else {
                finish(from_);
                return false;
            }
        }
        return true;
    }

    void give(const std::string &batch) {
        PGconn *const connection = to_.connection_.get();
        for (;;) {
            const int queued =
                PQputCopyData(connection, batch.data(), static_cast<int>(batch.size()));
            if (queued < 0) to_.lost();
            if (queued > 0) break;
            to_.wait(true, now_ms() + silence_);
            if (PQconsumeInput(connection) == 0) to_.lost();
        }
        flush();
    }

    void end_input() {
        PGconn *const connection = to_.connection_.get();
        for (int queued = 0; queued == 0;) {
            queued = PQputCopyEnd(connection, nullptr);
            if (queued < 0) to_.lost();
            if (queued == 0) to_.wait(true, now_ms() + silence_);
        }
        // No look for an early answer: from here on there is to be one.
        finish(to_);
    }

  private:
    void start(ControlConnection &side, const std::string &sql, ExecStatusType expected) {
        PGconn *const connection = side.connection_.get();
        if (PQsendQuery(connection, sql.c_str()) == 0) side.lost();
        const auto result = next_result(side);
        if (PQresultStatus(result.get()) != expected) fail(side, result.get());
    }

    /// What the command ended with; then nothing more comes.
    void finish(ControlConnection &side) {
        const auto result = next_result(side);
        if (PQresultStatus(result.get()) != PGRES_COMMAND_OK) fail(side, result.get());
        while (next_result(side)) {
        }
    }

    [[noreturn]] void fail(ControlConnection &side, const PGresult *result) {
        if (!result) side.lost();
        const ControlError error = ControlConnection::error_of(result);
        while (PQtransactionStatus(side.connection_.get()) == PQTRANS_ACTIVE && next_result(side)) {
        }
        throw error;
    }

    std::unique_ptr<PGresult, decltype(&PQclear)> next_result(ControlConnection &side) {
        PGconn *const connection = side.connection_.get();
        for (int pending = PQflush(connection); pending != 0; pending = PQflush(connection)) {
            if (pending < 0) side.lost();
            side.wait(true, now_ms() + silence_);
            if (PQconsumeInput(connection) == 0) side.lost();
        }
        while (PQisBusy(connection)) {
            side.wait(false, now_ms() + silence_);
            if (PQconsumeInput(connection) == 0) side.lost();
        }
        return {PQgetResult(connection), &PQclear};
    }

    void flush() {
        PGconn *const connection = to_.connection_.get();
        for (int pending = PQflush(connection); pending != 0; pending = PQflush(connection)) {
            if (pending < 0) to_.lost();
            to_.wait(true, now_ms() + silence_);
            if (has_answered()) stop_early();
            // Or the server could not send what it has to say, and would take no more either.
            if (PQconsumeInput(connection) == 0) to_.lost();
        }
        if (has_answered()) stop_early();
    }

    /// The session sends no notices, so in the middle of COPY a server has nothing to say but why
    /// it failed. libpq would tell at the end only. Under TLS there may be other records.
    bool has_answered() const {
        PGconn *const connection = to_.connection_.get();
        pollfd fd{PQsocket(connection), POLLIN, 0};
        return PQsslInUse(connection) == 0 && poll(&fd, 1, 0) > 0;
    }

    void stop_early() {
        if (PQputCopyEnd(to_.connection_.get(), "no more rows are sent") < 0) to_.lost();
        finish(to_);
    }

    ControlConnection &from_;
    ControlConnection &to_;
    std::int64_t silence_;
};

std::int64_t copy_rows(ControlConnection &from, const std::string &copy_out, ControlConnection &to,
                       const std::string &copy_in, std::int64_t silence, std::int64_t commit_every,
                       const CopyProgress &progress) {
    // The server's own limit is for whole statements.
    from.query("SELECT pg_catalog.set_config('statement_timeout', '0', false)");
    to.query("SELECT pg_catalog.set_config('statement_timeout', '0', false), "
             "pg_catalog.set_config('client_min_messages', 'error', false)");
    from.server_timeout_ = to.server_timeout_ = -1;
    CopyStream stream(from, to, silence);
    // The input first: what is wrong there should not cost the output a snapshot's work.
    stream.begin_input(copy_in);
    stream.begin_output(copy_out);
    std::int64_t commit = now_ms() + commit_every;
    std::int64_t rows = 0, bytes = 0;
    std::string batch;
    for (bool more = true; more;) {
        batch.clear();
        more = stream.take(batch, rows);
        if (batch.empty()) continue;
        stream.give(batch);
        bytes += static_cast<std::int64_t>(batch.size());
        progress(rows, bytes);
        if (more && now_ms() >= commit) {
            stream.end_input();
            stream.begin_input(copy_in);
            commit = now_ms() + commit_every;
        }
    }
    stream.end_input();
    return rows;
}

}  // namespace interlock
