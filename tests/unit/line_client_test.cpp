// The line listener's face over a socket pair: lines in, lines out, limits, leaving.
#include "session_fixture.h"

#include "session/line_client.h"

#include <sys/socket.h>

namespace interlock {
namespace {

class LineClients : public test::SessionTest {
  protected:
    /// The test's end of a connection whose other end the router serves.
    class Peer {
      public:
        Peer(Worker &worker, bool small_buffers = false) {
            int ends[2];
            if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
            if (small_buffers) {
                const int size = 4096;
                ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
            }
            fd_ = UniqueFd(ends[1]);
            watch_ = std::make_unique<Watch>(worker.loop(), fd_.get());
            loop_ = &worker.loop();
            accept_line_client(worker, UniqueFd(ends[0]));
        }
        Task<void> send(std::string bytes) {
            Buffer out;
            out.append(bytes);
            wire::Stream stream(fd_.get(), nullptr);
            while (!out.empty() && stream.write(out) != wire::StreamState::closed)
                if (!out.empty()) co_await Wait(*loop_, loop_->now() + 100).write(*watch_);
        }
        /// The next line without its end; "closed" when there is none any more.
        Task<std::string> line() {
            wire::Stream stream(fd_.get(), nullptr);
            for (;;) {
                const std::size_t end = in_.view().find('\n');
                if (end != std::string_view::npos) {
                    std::string line(in_.view().substr(0, end));
                    in_.consume(end + 1);
                    co_return line;
                }
                const wire::StreamState state = stream.read(in_, 65536);
                if (state == wire::StreamState::ok) continue;
                if (state != wire::StreamState::want_read) co_return "closed";
                if ((co_await Wait(*loop_, loop_->now() + 10000).read(*watch_)).none())
                    co_return "silence";
            }
        }
        Task<std::string> ask(std::string request) {
            co_await send(request + "\n");
            co_return co_await line();
        }
        void hang_up() {
            watch_.reset();
            fd_.reset();
        }

      private:
        UniqueFd fd_;
        Loop *loop_;
        std::unique_ptr<Watch> watch_;
        Buffer in_;
    };

    Task<void> all_gone() {
        co_await until([&] { return worker_->client_count() == 0; });
        EXPECT_EQ(worker_->buffered_bytes, 0U);
    }
    static std::string start(const std::string &line, std::size_t words) {
        std::size_t end = 0;
        while (words-- > 0 && end != std::string::npos)
            end = line.find(' ', end + 1);
        return line.substr(0, end);
    }
    std::string read_request() const { return "Q\t" + select_one + "\t" + here_; }
    std::string write_request() const { return "Q\t" + update_one + "\t1\t" + here_; }

    const std::string here_ = key_on("s0");
};

TEST_F(LineClients, AskAndAreAnswered) {
    with_shards([&]() -> Task<void> {
        Peer peer(*worker_);
        EXPECT_EQ(start(co_await peer.ask(read_request()), 5), "OK tag=SELECT shard=s0 rv=1 tx=I");
        EXPECT_EQ(start(co_await peer.ask("Q\tbegin\r"), 5), "OK tag=BEGIN shard=none rv=1 tx=T");
        EXPECT_EQ(start(co_await peer.ask(write_request()), 5), "OK tag=UPDATE shard=s0 rv=1 tx=T");
        EXPECT_EQ(start(co_await peer.ask("Q\tcommit"), 5), "OK tag=COMMIT shard=s0 rv=1 tx=I");
        EXPECT_EQ(start(co_await peer.ask("STATUS"), 2), "OK rv=1");
        peer.hang_up();
        co_await all_gone();
    });
}

TEST_F(LineClients, RequestsMayComeInOneGoOrByteByByte) {
    with_shards([&]() -> Task<void> {
        Peer peer(*worker_);
        std::string many;
        for (int i = 0; i < 50; ++i)
            many += read_request() + "\nSTATUS\r\n";
        co_await peer.send(many);
        for (int i = 0; i < 50; ++i) {
            EXPECT_EQ(start(co_await peer.line(), 2), "OK tag=SELECT");
            EXPECT_EQ(start(co_await peer.line(), 2), "OK rv=1");
        }
        for (const char byte : read_request() + "\n") {
            co_await peer.send(std::string(1, byte));
            co_await pause(1);
        }
        EXPECT_EQ(start(co_await peer.line(), 2), "OK tag=SELECT");
        peer.hang_up();
        co_await all_gone();
    });
}

TEST_F(LineClients, MalformedLinesAreR02AndFailATransaction) {
    with_shards([&]() -> Task<void> {
        Peer peer(*worker_);
        for (const char *bad : {"", "HELLO", "Q\t%", "Q\tx\t%FF"})
            EXPECT_EQ(start(co_await peer.ask(bad), 3), "ERR code=R02 tx=I") << bad;
        co_await peer.ask("Q\tbegin");
        co_await peer.ask(write_request());
        EXPECT_EQ(start(co_await peer.ask("HELLO"), 3), "ERR code=R02 tx=E");
        EXPECT_EQ(s0_->statements.back(), "ROLLBACK");
        EXPECT_EQ(start(co_await peer.ask("Q\tcommit"), 3), "ERR code=R13 tx=E");
        peer.hang_up();
        co_await all_gone();
    });
}

TEST_F(LineClients, AnOverlongLineIsR02OnceAndItsRestThrownAway) {
    settings_.max_line = 1000;
    with_shards([&]() -> Task<void> {
        Peer peer(*worker_);
        for (const std::size_t size : {1001U, 20000U, 500000U}) {
            co_await peer.send("Q\t" + std::string(size, 'a') + "\n" + read_request() + "\n");
            EXPECT_EQ(start(co_await peer.line(), 3), "ERR code=R02 tx=I") << size;
            EXPECT_EQ(start(co_await peer.line(), 2), "OK tag=SELECT") << size;
            EXPECT_LT(worker_->buffered_bytes, 100000U);
        }
        peer.hang_up();
        co_await all_gone();
    });
}

TEST_F(LineClients, ALineThatNeverEndsIsGivenUp) {
    settings_.line_timeout = 50;
    with_shards([&]() -> Task<void> {
        Peer peer(*worker_);
        co_await peer.send("Q\tsel");
        EXPECT_EQ(start(co_await peer.line(), 3), "ERR code=R02 tx=I");
        EXPECT_EQ(co_await peer.line(), "closed");
        peer.hang_up();
        Peer idle(*worker_);  // between two lines there is no such limit
        co_await pause(100);
        EXPECT_EQ(start(co_await idle.ask("STATUS"), 1), "OK");
        idle.hang_up();
        co_await all_gone();
    });
}

TEST_F(LineClients, AnIdleTransactionIsRolledBackAndItsClientClosed) {
    settings_.idle_transaction_timeout = 50;
    with_shards([&]() -> Task<void> {
        Peer peer(*worker_);
        co_await peer.ask("Q\tbegin");
        co_await peer.ask(write_request());
        EXPECT_EQ(start(co_await peer.line(), 3), "ERR code=R36 tx=E");
        EXPECT_EQ(co_await peer.line(), "closed");
        peer.hang_up();
        EXPECT_EQ(s0_->statements.back(), "ROLLBACK");
        co_await all_gone();
    });
}

TEST_F(LineClients, OneThatVanishesInATransactionIsRolledBackAtOnce) {
    with_shards([&]() -> Task<void> {
        Peer peer(*worker_);
        co_await peer.ask("Q\tbegin");
        co_await peer.ask(write_request());
        peer.hang_up();
        co_await all_gone();
        EXPECT_EQ(s0_->statements.back(), "ROLLBACK");
        EXPECT_EQ(pool(0).idle, 1U);
        EXPECT_EQ(pool(0).destroyed, 0U);
    });
}

TEST_F(LineClients, OneThatNeverReadsIsHeldBackAndClosed) {
    settings_.write_timeout = 100;
    with_shards([&]() -> Task<void> {
        s0_->script = [](std::string_view) -> std::optional<test::Behaviour> {
            return test::Behaviour{.frames = test::row_frames({std::string(100000, 'x')}) +
                                             test::complete_frame("SELECT 1")};
        };
        Peer deaf(*worker_, true);
        std::string many;
        for (int i = 0; i < 500; ++i)
            many += read_request() + "\n";
        std::size_t peak = 0;
        bool watched = false;
        const auto watch = [&]() -> Task<void> {
            while (worker_->client_count() > 0) {
                peak = std::max(peak, worker_->buffered_bytes);
                co_await pause(1);
            }
            watched = true;
        };
        spawn(watch());
        co_await deaf.send(many);
        co_await until([&] { return watched; });
        EXPECT_GT(peak, 0U);
        EXPECT_LT(peak, 1U << 20);
        EXPECT_LT(s0_->statements.size(), 50U);  // the rest was never run
        EXPECT_EQ(worker_->buffered_bytes, 0U);
    });
}

TEST_F(LineClients, OneTooManyIsToldWhy) {
    settings_.max_clients = 1;
    with_shards([&]() -> Task<void> {
        Peer first(*worker_);
        Peer second(*worker_);
        EXPECT_EQ(start(co_await second.line(), 2), "ERR code=R34");
        EXPECT_EQ(co_await second.line(), "closed");
        EXPECT_EQ(start(co_await first.ask("STATUS"), 1), "OK");
        first.hang_up();
        co_await all_gone();
    });
}

TEST_F(LineClients, AStoppingRouterLetsTransactionsEnd) {
    with_shards([&]() -> Task<void> {
        Peer idle(*worker_);
        Peer busy(*worker_);
        co_await idle.ask(read_request());
        co_await busy.ask("Q\tbegin");
        co_await busy.ask(write_request());
        bool finished = false;
        worker_->stop_soon([&] { finished = true; });
        EXPECT_EQ(start(co_await idle.line(), 3), "ERR code=R30 tx=I");
        EXPECT_EQ(co_await idle.line(), "closed");
        EXPECT_FALSE(finished);
        EXPECT_EQ(start(co_await busy.ask("Q\tcommit"), 2), "OK tag=COMMIT");
        EXPECT_EQ(start(co_await busy.line(), 3), "ERR code=R30 tx=I");
        EXPECT_EQ(co_await busy.line(), "closed");
        idle.hang_up();
        busy.hang_up();
        co_await all_gone();
        EXPECT_TRUE(finished);
    });
}

}  // namespace
}  // namespace interlock
