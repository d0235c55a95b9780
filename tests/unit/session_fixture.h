// A worker between two fake shards, and sessions on it: what the session tests are made of.
#pragma once

#include "fake_shard.h"
#include "fixtures.h"

#include "session/line_format.h"
#include "session/session.h"
#include "session/worker.h"

#include <gtest/gtest.h>

namespace interlock::test {

inline const std::string cluster_id = "6ae3c2f0-0000-4000-8000-000000000001";

/// A session's answer: the reply, and its rows as JSON.
struct Said {
    Reply reply;
    std::string rows;

    [[nodiscard]] std::string code() const {
        return reply.refusal ? std::string(code_entry(reply.refusal->code).name) : "OK";
    }
    [[nodiscard]] std::string state() const {
        return reply.refusal ? std::string(reply.refusal->state()) : "";
    }
    [[nodiscard]] char tx() const { return static_cast<char>(reply.transaction); }
    /// "R31 E", "OK T": most tests ask for no more.
    [[nodiscard]] std::string brief() const { return code() + " " + tx(); }
};

class SessionTest : public testing::Test {
  protected:
    SessionTest() {
        settings_.connect_timeout = 5000;
        settings_.acquire_timeout = 5000;
        settings_.statement_timeout = 10000;
        settings_.idle_check = 0;
        set_log_level(LogLevel::error);
    }
    ~SessionTest() override { set_log_level(LogLevel::info); }

    static std::string key_on(const std::string &shard, int skip = 0) {
        for (std::int64_t key = 1;; ++key)
            if (shard_of("select * from account where account_id = ?", {std::to_string(key)}) ==
                    shard &&
                skip-- == 0)
                return std::to_string(key);
    }

    /// A table of this version over the fake shards; `swapped` puts each bucket on the other one.
    std::shared_ptr<const RouteTable> table(std::int32_t version, bool swapped = false) {
        CatalogRows rows = reference_rows();
        rows.version = version;
        rows.shards[0].conninfo = s0_->conninfo();
        rows.shards[1].conninfo = s1_->conninfo();
        if (swapped)
            for (auto &route : rows.routes)
                route.shard_id = 3 - route.shard_id;
        return build(rows);
    }

    static Task<Said> say(Session &session, std::string sql,
                          std::vector<std::optional<std::string>> values = {}) {
        std::vector<Parameter> parameters;
        for (const auto &value : values)
            parameters.push_back(value ? Parameter(*value) : std::nullopt);
        std::size_t budget = 0;
        JsonRows rows(1 << 20, budget, 1 << 20);
        Said said;
        said.reply = co_await session.run(sql, parameters, rows);
        said.rows = rows.text();
        co_return said;
    }

    /// Runs `body` on the loop with a worker and the two shards, then takes everything down again,
    /// so that nothing is left waiting.
    /// Once in a test: a loop that has been stopped does not run again.
    void with_shards(const std::function<Task<void>()> &body) {
        ASSERT_FALSE(std::exchange(used_, true));
        spawn(run_body(body));
        loop_.run();
    }

    Task<void> pause(Millis milliseconds) { co_await Wait(loop_, loop_.now() + milliseconds); }
    Task<void> until(std::function<bool()> condition) {
        const Millis deadline = loop_.now() + 10000;
        while (!condition() && loop_.now() < deadline)
            co_await pause(1);
        EXPECT_TRUE(condition());
    }

    PoolCounters pool(std::size_t shard) const {
        return worker_->routes()->pools_for("")[static_cast<ShardIndex>(shard)].counters();
    }

    Loop loop_;
    Settings settings_;
    std::unique_ptr<FakeShard> s0_;
    std::unique_ptr<FakeShard> s1_;
    std::unique_ptr<Worker> worker_;

    static inline const std::string select_one = "select * from account where account_id = ?";
    static inline const std::string update_one =
        "update account set balance = balance - ? where account_id = ?";

  private:
    bool used_ = false;

    // A coroutine of its own, so that the body's captures outlive it.
    Task<void> run_body(const std::function<Task<void>()> &body) {
        s0_ = std::make_unique<FakeShard>(loop_, cluster_id, "s0");
        s1_ = std::make_unique<FakeShard>(loop_, cluster_id, "s1");
        worker_ = std::make_unique<Worker>(loop_, settings_);
        worker_->use_table(table(1));
        co_await body();
        worker_.reset();
        for (FakeShard *shard : {s0_.get(), s1_.get()}) {
            shard->hang_up(true);
            while (!shard->gone()) {
                shard->changed.reset();
                co_await Wait(loop_, loop_.now() + 100).event(shard->changed);
            }
        }
        co_await pause(1);  // what the pools still had to hear
        loop_.stop();
    }
};

}  // namespace interlock::test
