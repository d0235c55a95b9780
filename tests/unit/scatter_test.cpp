// Scatters over two shards that do what the test wants: merging, bounds, lying shards, deadlines,
// and what becomes of the connections.
#include "session/scatter.h"

#include "session_fixture.h"

namespace interlock {
namespace {

using test::Behaviour;

using Value = std::optional<std::string>;
using Row = std::vector<Value>;

std::string description(const std::vector<std::pair<std::string, std::uint32_t>> &columns) {
    Buffer out;
    {
        wire::FrameWriter frame(out, 'T');
        frame.int16(static_cast<std::uint16_t>(columns.size()));
        for (const auto &[name, type] : columns)
            frame.string(name).int32(0).int16(0).int32(type).int16(8).int32(0).int16(0);
    }
    return std::string(out.view());
}

std::string data(const Row &row) {
    Buffer out;
    {
        wire::FrameWriter frame(out, 'D');
        frame.int16(static_cast<std::uint16_t>(row.size()));
        for (const Value &value : row) {
            if (value)
                frame.int32(static_cast<std::uint32_t>(value->size())).bytes(*value);
            else
                frame.int32(0xFFFFFFFFU);
        }
    }
    return std::string(out.view());
}

const std::string digest = "00112233aabbccdd";

/// Rows of id, cursor, complete, missing_shards, and the hidden key.
std::string page(const std::vector<std::string> &ids, const std::string &of = digest) {
    std::string frames = description(
        {{"id", 25}, {"cursor", 25}, {"complete", 16}, {"missing_shards", 1009}, {"key", 25}});
    for (const std::string &id : ids)
        frames += data({id, "c" + id, "t", "{}", of + id});
    return frames + test::complete_frame("SELECT " + std::to_string(ids.size()));
}

struct Outcome {
    std::string refusal;  ///< code, or empty
    std::string state;
    std::string ids;   ///< first columns, joined
    std::string rest;  ///< the other columns of the last row
    std::vector<std::string> missing;
    std::string notice;
};

class ScatterTest : public test::SessionTest {
  protected:
    using Asked = std::optional<Behaviour>;

    ScatterTest() {
        scatter_.kind = sql::ScatterKind::keyset_page;
        scatter_.hidden = 1;
        scatter_.table = 0;
        scatter_.keyset = {.from = sql::ValueSource::From::parameter, .index = 0};
        scatter_.page_size = {.from = sql::ValueSource::From::parameter, .index = 1};
        scatter_.before = {.from = sql::ValueSource::From::parameter, .index = 2};
        scatter_.page.cursor = {1};
        scatter_.page.complete = {2};
        scatter_.page.missing_shards = {3};
        scatter_.page.known = 4;
        budget_.timeout = 5000;
        budget_.max_rows = 1000;
    }

    /// Shards that know keyset k, and answer "page" as told.
    void with_pages(const std::function<Task<void>()> &body) {
        with_shards([this, &body]() -> Task<void> {
            for (test::FakeShard *shard : {s0_.get(), s1_.get()}) {
                shard->surroundings = surroundings("100 3 true");
                shard->script = [this, shard](std::string_view sql) -> Asked {
                    const auto &answers = shard == s0_.get() ? first_ : second_;
                    if (!sql.starts_with("page")) return std::nullopt;
                    return answers;
                };
            }
            co_await body();
            co_await until([&] { return worker_->scatters->draining == 0; });
            EXPECT_EQ(worker_->buffered_bytes, 0U);
        });
    }

    static std::vector<std::vector<std::string>> surroundings(const std::string &limits,
                                                              const std::string &of = digest) {
        return {{"keyset", "", "k", of + " " + limits + " orders"},
                {"unique key", "public", "account", "account_id"},
                {"collations", "", "", "one"}};
    }

    ScatterRequest request(const std::string &size = "3", const Value &before = std::nullopt) {
        ScatterRequest request;
        auto facts = std::make_shared<sql::Facts>(facts_);
        facts->scatter = std::make_shared<const sql::Scatter>(scatter_);
        request.facts = facts;
        request.text = "page";
        const auto add = [&](const Value &value) {
            kept_.push_back(value ? *value : "");
            BoundParameter parameter;
            if (value) parameter.bytes = kept_.back();
            request.parameters.push_back(parameter);
        };
        add("k");
        add(size);
        add(before);
        request.routes = worker_->routes();
        request.budget = budget_;
        return request;
    }

    /// Up to the end of what is done in the background: a pool makes no connection meanwhile that
    /// nobody needs, and that would still be under way when the test ends.
    Task<Outcome> run(ScatterRequest request, Event *gave_up = nullptr) {
        Outcome outcome = co_await ask(std::move(request), gave_up);
        co_await until([&] { return worker_->scatters->draining == 0; });
        co_return outcome;
    }
    Task<Outcome> ask(ScatterRequest request, Event *gave_up) {
        Outcome outcome;
        const auto rows = merged_rows(*worker_, std::move(request), gave_up);
        MergedRows &scatter = *rows;
        auto refused = co_await scatter.open();
        while (!refused) {
            std::string_view body;
            const Scatter::Row row = co_await scatter.next(body);
            if (row == Scatter::Row::failed) refused = scatter.take_refusal();
            if (row != Scatter::Row::row) break;
            wire::FieldReader fields(body);
            outcome.rest.clear();
            const unsigned count = fields.int16();
            for (unsigned i = 0; i < count; ++i) {
                const std::uint32_t length = fields.int32();
                const std::string value(length == 0xFFFFFFFFU ? "-" : fields.bytes(length));
                (i == 0 ? outcome.ids : outcome.rest) += value + " ";
            }
            EXPECT_TRUE(fields.ok() && fields.at_end());
        }
        if (refused) {
            outcome.refusal = code_entry(refused->code).name;
            outcome.state = refused->state();
        }
        outcome.missing = scatter.missing_shards();
        if (auto notice = scatter.notice()) outcome.notice = notice->message + "|" + notice->detail;
        co_return outcome;
    }
    Task<std::string> brief(ScatterRequest request) {
        const Outcome outcome = co_await run(std::move(request));
        co_return outcome.ids + outcome.refusal;
    }
    static Behaviour answer(std::string frames) { return {.frames = std::move(frames)}; }
    std::size_t sent() const {
        std::size_t count = 0;
        for (const test::FakeShard *shard : {s0_.get(), s1_.get()})
            count += static_cast<std::size_t>(
                std::count(shard->statements.begin(), shard->statements.end(), "page"));
        return count;
    }
    /// Both pools have this many connections in all, none of them in use.
    Task<void> idle(std::size_t connections) {
        co_await until([&] { return worker_->scatters->draining == 0; });
        EXPECT_EQ(pool(0).idle + pool(1).idle, connections);
        EXPECT_EQ(pool(0).borrowed + pool(1).borrowed, 0U);
    }

    sql::Facts facts_;
    sql::Scatter scatter_;
    ScatterBudget budget_;
    Asked first_ = answer(page({"1", "4", "5"}));
    Asked second_ = answer(page({"2", "3", "6"}));
    std::list<std::string> kept_;
};

TEST_F(ScatterTest, ThePageIsTheFirstRowsOfTheMerge) {
    with_pages([&]() -> Task<void> {
        const Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 2 3 ");
        EXPECT_EQ(outcome.rest, "c3 t {} ");
        EXPECT_EQ(outcome.refusal, "");
        EXPECT_TRUE(outcome.missing.empty());
        co_await idle(2);
        EXPECT_EQ(co_await brief(request("2")), "1 2 ");
    });
}

TEST_F(ScatterTest, APageBeforeACursorIsTheEndOfTheMerge) {
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("3", "cursor")), "4 5 6 ");
        first_ = answer(page({}));
        EXPECT_EQ(co_await brief(request("3", "cursor")), "2 3 6 ");
        second_ = answer(page({}));
        EXPECT_EQ(co_await brief(request("3", "cursor")), "");
        EXPECT_EQ(co_await brief(request()), "");
        co_await idle(2);
    });
}

TEST_F(ScatterTest, TheSameConnectionsServeOn) {
    with_pages([&]() -> Task<void> {
        for (int i = 0; i < 5; ++i) {
            EXPECT_EQ(co_await brief(request()), "1 2 3 ");
            co_await idle(2);
        }
        EXPECT_EQ(pool(0).created + pool(1).created, 2U);
        EXPECT_EQ(worker_->scatters->statements, 10U);
        EXPECT_EQ(worker_->scatters->returned, 15U);
        EXPECT_EQ(worker_->scatters->cancelled, 0U);
    });
}

TEST_F(ScatterTest, AnswersMayComeByteByByte) {
    first_->bytewise = second_->bytewise = true;
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        co_await idle(2);
        EXPECT_EQ(co_await brief(request("3", "cursor")), "4 5 6 ");
        co_await idle(2);
    });
}

// Nothing is sent
// ----------------------------------------------------------------------------------

TEST_F(ScatterTest, WhatIsOverABoundIsRefusedUnsent) {
    with_pages([&]() -> Task<void> {
        budget_.max_fan_out = 1;
        EXPECT_EQ(co_await brief(request()), "FANOUT_EXCEEDED");
        EXPECT_EQ(s0_->greetings + s1_->greetings, 0);
        budget_.max_fan_out = 2;
        EXPECT_EQ(co_await brief(request("101")), "PAGE_TOO_LARGE");
        budget_.max_rows = 2;
        EXPECT_EQ(co_await brief(request("3")), "ROW_BUDGET");
        EXPECT_EQ((co_await run(request("0"))).state, "22023");
        EXPECT_EQ(co_await brief(request("x")), "R27");
        EXPECT_EQ(sent(), 0U);
        co_await until([&] { return worker_->scatters->draining == 0; });
        EXPECT_EQ(pool(0).borrowed + pool(1).borrowed, 0U);
    });
}

TEST_F(ScatterTest, AKeysetThatIsNotKnownIsAskedForOnceMore) {
    with_pages([&]() -> Task<void> {
        s0_->surroundings.clear();
        s1_->surroundings.clear();
        EXPECT_EQ((co_await run(request())).state, "42704");
        EXPECT_EQ(s0_->questions + s1_->questions, 2);
        EXPECT_EQ(sent(), 0U);
        s0_->surroundings = s1_->surroundings = surroundings("100 3 true");
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        EXPECT_EQ(s0_->questions + s1_->questions, 4);
        co_await idle(2);
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        EXPECT_EQ(s0_->questions + s1_->questions, 4);
        co_await idle(2);
    });
}

TEST_F(ScatterTest, WhatAShardBeliesIsAskedForAgain) {
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("50")), "1 2 3 4 5 6 ");
        co_await idle(2);
        // Declared anew since: smaller pages.
        s0_->surroundings = s1_->surroundings = surroundings("20 3 true");
        second_ = answer(test::error_frame("ERROR", "IL202", "at most 20"));
        EXPECT_EQ((co_await run(request("50"))).state, "IL202");
        EXPECT_EQ(sent(), 4U);
        EXPECT_EQ(s0_->questions + s1_->questions, 0);
        co_await idle(2);
        EXPECT_EQ(co_await brief(request("50")), "PAGE_TOO_LARGE");
        EXPECT_EQ(sent(), 4U);
        EXPECT_EQ(s0_->questions + s1_->questions, 2);
    });
}

TEST_F(ScatterTest, KeysetsThatAreNotAlikeAreRefused) {
    with_pages([&]() -> Task<void> {
        s1_->surroundings = surroundings("100 3 true", "ffff");
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        s1_->surroundings = surroundings("100 3 false");
        EXPECT_EQ(co_await brief(request()), "SCATTER_UNSUPPORTED");
        s1_->surroundings = surroundings("2 2 true");
        EXPECT_EQ(co_await brief(request()), "PAGE_TOO_LARGE");
        EXPECT_EQ(sent(), 0U);
    });
}

TEST_F(ScatterTest, ADefaultPageIsPutIntoTheText) {
    scatter_.page_size = {};
    scatter_.default_page = {
        .needed = true, .offset = 4, .length = 0, .before = ", page_size => ", .after = ""};
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        EXPECT_EQ(s0_->statements.back(), "page, page_size => 3");
    });
}

TEST_F(ScatterTest, AnOrderMustHoldAUniqueKeyOnEveryShard) {
    scatter_.kind = sql::ScatterKind::ordered;
    scatter_.limit = scatter_.page_size;
    scatter_.text_order = true;
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "NOT_TOTAL_ORDER");
        scatter_.order_columns = {"owner", "account_id"};
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        s1_->surroundings[2][3] = "other";
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");  // nothing has been asked again
        EXPECT_EQ(co_await brief(request("1001")), "ROW_BUDGET");
        EXPECT_EQ((co_await run(request("-1"))).state, "2201W");
    });
}

TEST_F(ScatterTest, OffsetAndLimitAreOfTheMerge) {
    scatter_.kind = sql::ScatterKind::ordered;
    scatter_.order_columns = {"account_id"};
    scatter_.limit = scatter_.page_size;
    scatter_.offset = {.from = sql::ValueSource::From::parameter, .index = 2};
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("2", "3")), "4 5 ");
        EXPECT_EQ(co_await brief(request("0", "3")), "");
        EXPECT_EQ(co_await brief(request("9", "4")), "5 6 ");
        EXPECT_EQ(co_await brief(request("9", "9")), "");
    });
}

// Shards that lie
// ----------------------------------------------------------------------------------

TEST_F(ScatterTest, AStreamThatIsNotSortedFailsThePage) {
    second_ = answer(page({"3", "2", "6"}));
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "1 3 SHARDS_DISAGREE");
        co_await idle(2);
    });
}

TEST_F(ScatterTest, EqualKeysAreNoOrder) {
    second_ = answer(page({"2", "4", "6"}));
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("9")), "1 2 4 NOT_TOTAL_ORDER");
        // Behind the cut, too.
        EXPECT_EQ(co_await brief(request("3")), "1 2 NOT_TOTAL_ORDER");
        EXPECT_EQ(co_await brief(request("3", "cursor")), "NOT_TOTAL_ORDER");
        second_ = answer(page({"2", "2", "6"}));
        EXPECT_EQ(co_await brief(request("9")), "1 2 NOT_TOTAL_ORDER");
    });
}

TEST_F(ScatterTest, KeysOfAnotherDeclarationFailThePage) {
    second_ = answer(page({"2", "3"}, "ffffffffffffffff"));
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        first_ = answer(page({"1", "4"}, "ffffffffffffffff"));
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");  // they agree: what was known is old
    });
}

TEST_F(ScatterTest, OtherColumnsFailThePage) {
    second_ = answer(description({{"id", 25}, {"key", 25}}) + data({"2", digest + "2"}) +
                     test::complete_frame("SELECT 1"));
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        co_await idle(2);
    });
}

TEST_F(ScatterTest, MoreRowsThanAskedForFailThePage) {
    first_ = answer(page({"1", "2", "3", "4"}));
    second_ = answer(page({"5"}));
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("3", "cursor")), "SHARDS_DISAGREE");
        co_await idle(2);
    });
}

TEST_F(ScatterTest, NonsenseFailsThePageAndEndsTheConnection) {
    with_pages([&]() -> Task<void> {
        const std::string head = page({}).substr(0, page({}).find('C', 80));
        for (const std::string &nonsense :
             {head + data({"1"}), head + test::framed('D', "x"), test::framed('G', ""),
              data({"1", "c", "t", "{}", digest}), test::framed('T', "xx"),
              std::string("\0\0\0\0\0", 5), head + data({"1", "c", "t", "{}", std::nullopt})}) {
            second_ = Behaviour{.frames = nonsense, .no_ready = true};
            const Outcome outcome = co_await run(request());
            EXPECT_NE(outcome.refusal, "");
            EXPECT_EQ(outcome.ids, "");
            co_await until([&] { return worker_->scatters->draining == 0; });
            EXPECT_EQ(pool(1).borrowed, 0U);
        }
    });
}

// Shards that fail
// ---------------------------------------------------------------------------------

TEST_F(ScatterTest, AShardsErrorIsPassedOnAndTheOthersAreCancelled) {
    first_ = Behaviour{.frames = test::error_frame("ERROR", "57014", "canceled"), .silent = true};
    second_ = answer(test::error_frame("ERROR", "22012", "division by zero"));
    with_pages([&]() -> Task<void> {
        const Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.refusal, "R31");
        EXPECT_EQ(outcome.state, "22012");
        co_await idle(2);
        EXPECT_EQ(s0_->cancels, 1);
        EXPECT_EQ(s1_->cancels, 0);
        EXPECT_EQ(pool(0).created, 1U);
        first_ = answer(page({"1"}));
        second_ = answer(page({"2"}));
        EXPECT_EQ(co_await brief(request()), "1 2 ");
        EXPECT_EQ(pool(0).created + pool(1).created, 2U);
    });
}

TEST_F(ScatterTest, WhatShardsCannotSortIsALimitOfScatters) {
    scatter_.kind = sql::ScatterKind::ordered;
    scatter_.order_columns = {"account_id"};
    scatter_.limit = scatter_.page_size;
    second_ = answer(test::error_frame("ERROR", "0A000", "type point has no sort key"));
    with_pages(
        [&]() -> Task<void> { EXPECT_EQ(co_await brief(request()), "SCATTER_UNSUPPORTED"); });
}

TEST_F(ScatterTest, DeathInMidAnswerFailsThePage) {
    const std::string frames = page({"2", "3", "6"});
    second_ = Behaviour{.frames = frames.substr(0, frames.size() - 30), .close = true};
    with_pages([&]() -> Task<void> {
        EXPECT_EQ((co_await run(request("9"))).refusal, "R30");
        co_await idle(1);
        // A goodbye is told in the server's words.
        second_ = Behaviour{.frames = frames.substr(0, 130) +
                                      test::error_frame("FATAL", "57P01", "shutting down"),
                            .close = true};
        co_await until([&] { return s1_->connections() == 0; });
    });
}

TEST_F(ScatterTest, ASlowShardIsCancelledAndItsConnectionServesOn) {
    second_ = Behaviour{.frames = test::error_frame("ERROR", "57014", "canceled"), .silent = true};
    budget_.timeout = 50;
    with_pages([&]() -> Task<void> {
        const Millis began = loop_.now();
        const Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.refusal, "SHARD_TIMEOUT");
        EXPECT_GE(loop_.now() - began, 50);
        EXPECT_LT(loop_.now() - began, 1000);
        co_await idle(2);
        EXPECT_EQ(s1_->cancels, 1);
        EXPECT_EQ(worker_->scatters->cancelled, 1U);
        second_ = answer(page({"2", "3", "6"}));
        budget_.timeout = 5000;
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        EXPECT_EQ(pool(1).created, 1U);
    });
}

TEST_F(ScatterTest, APageMayDoWithoutASlowShard) {
    second_ = Behaviour{.frames = test::error_frame("ERROR", "57014", "canceled"), .silent = true};
    budget_.timeout = 50;
    budget_.partial = true;
    with_pages([&]() -> Task<void> {
        Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 4 5 ");
        EXPECT_EQ(outcome.rest, "- f {s1} ");
        EXPECT_EQ(outcome.missing, std::vector<std::string>{"s1"});
        EXPECT_EQ(outcome.notice,
                  "page is incomplete: no answer from shard \"s1\"|missing_shards: s1");
        co_await idle(2);
        outcome = co_await run(request("3", "cursor"));
        EXPECT_EQ(outcome.ids, "1 4 5 ");
        EXPECT_EQ(outcome.rest, "- f {s1} ");
        co_await idle(2);
        second_ = answer(page({"2", "3", "6"}));
        budget_.timeout = 5000;
        outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 2 3 ");
        EXPECT_EQ(outcome.rest, "c3 t {} ");
        EXPECT_TRUE(outcome.missing.empty());
        EXPECT_EQ(pool(1).created, 1U);
    });
}

TEST_F(ScatterTest, APageMayDoWithoutAShardThatIsAwayButNotWithoutAll) {
    budget_.partial = true;
    with_pages([&]() -> Task<void> {
        s1_->hang_up(true);
        co_await until([&] { return s1_->gone(); });
        const Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 4 5 ");
        EXPECT_EQ(outcome.rest, "- f {s1} ");
        budget_.partial = false;
        EXPECT_EQ(co_await brief(request()), "R30");
        budget_.partial = true;
        s0_->hang_up(true);
        co_await until([&] { return s0_->gone(); });
        EXPECT_EQ(co_await brief(request()), "R30");
    });
}

TEST_F(ScatterTest, AnErrorIsNoReasonToDoWithoutAShard) {
    budget_.partial = true;
    second_ = answer(test::error_frame("ERROR", "IL201", "bad cursor"));
    with_pages([&]() -> Task<void> { EXPECT_EQ((co_await run(request())).state, "IL201"); });
}

TEST_F(ScatterTest, WithoutWaysToSaySoNoPageIsPartial) {
    budget_.partial = true;
    budget_.timeout = 50;
    scatter_.page.in_expressions = true;
    second_ = Behaviour{.frames = test::error_frame("ERROR", "57014", "canceled"), .silent = true};
    with_pages([&]() -> Task<void> { EXPECT_EQ(co_await brief(request()), "SHARD_TIMEOUT"); });
}

TEST_F(ScatterTest, WhoGivesUpIsNotKeptWaiting) {
    second_ = Behaviour{.frames = test::error_frame("ERROR", "57014", "canceled"), .silent = true};
    with_pages([&]() -> Task<void> {
        Event gave_up;
        std::string state;
        const auto wait = [&]() -> Task<void> {
            state = (co_await run(request(), &gave_up)).state;
        };
        spawn(wait());
        co_await until([&] { return sent() == 2; });
        EXPECT_EQ(state, "");
        gave_up.set();
        co_await until([&] { return !state.empty(); });
        EXPECT_EQ(state, "57014");
        co_await idle(2);
        EXPECT_EQ(s1_->cancels, 1);
    });
}

TEST_F(ScatterTest, NoConnectionInTimeIsATimeoutWithNothingSent) {
    settings_.pool_size = 1;
    budget_.timeout = 50;
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        co_await idle(2);
        auto lease = worker_->routes()->pools_for("")[1].try_acquire(1);
        EXPECT_TRUE(lease.has_value());
        EXPECT_EQ(co_await brief(request()), "SHARD_TIMEOUT");
        EXPECT_EQ(sent(), 2U);
        budget_.partial = true;
        EXPECT_EQ((co_await run(request())).missing, std::vector<std::string>{"s1"});
        lease->release();
        co_await idle(2);
    });
}

TEST_F(ScatterTest, ManyAtOnceDoNotWaitForEachOther) {
    settings_.pool_size = 1;
    with_pages([&]() -> Task<void> {
        std::vector<std::string> got;
        const auto one = [&]() -> Task<void> { got.push_back(co_await brief(request())); };
        for (int i = 0; i < 20; ++i)
            spawn(one());
        co_await until([&] { return got.size() == 20; });
        EXPECT_EQ(got, std::vector<std::string>(20, "1 2 3 "));
        co_await idle(2);
    });
}

// Sessions
// -----------------------------------------------------------------------------------------

TEST_F(ScatterTest, SettingsComeFirstAndThePrologueIsRolledBack) {
    with_pages([&]() -> Task<void> {
        ParameterSets sets;
        ScatterRequest with = request();
        with.parameters_in_force = sets.with(nullptr, find_tracked("work_mem"), "1MB");
        with.prologue = "BEGIN";
        EXPECT_EQ(co_await brief(std::move(with)), "1 2 3 ");
        co_await idle(2);
        EXPECT_EQ(s0_->statements, (std::vector<std::string>{
                                       "SELECT pg_catalog.set_config('work_mem', '1MB', false)",
                                       "BEGIN", "page", "ROLLBACK"}));
        s0_->statements.clear();
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        co_await idle(2);
        EXPECT_EQ(s0_->statements, (std::vector<std::string>{"RESET work_mem;", "page"}));
    });
}

TEST_F(ScatterTest, ASettingThatAShardDoesNotTakeFailsTheStatement) {
    with_pages([&]() -> Task<void> {
        ParameterSets sets;
        ScatterRequest with = request();
        with.parameters_in_force = sets.with(nullptr, find_tracked("work_mem"), "1MB");
        auto usual = s1_->script;
        s1_->script = [&](std::string_view sql) -> Asked {
            if (sql.starts_with("SELECT pg_catalog.set_config"))
                return answer(test::error_frame("ERROR", "22023", "no"));
            return usual(sql);
        };
        EXPECT_EQ((co_await run(std::move(with))).state, "22023");
        co_await idle(2);
        s1_->script = usual;
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
    });
}

TEST_F(ScatterTest, WhatRanCodeOfUsersIsCleanedFirst) {
    facts_.user_code = true;
    with_pages([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        co_await until([&] { return pool(0).idle + pool(1).idle == 2; });
        EXPECT_EQ(s0_->statements[1], "DISCARD ALL");
    });
}

TEST_F(ScatterTest, AStatementThatDoesNotStopCostsItsConnection) {
    with_pages([&]() -> Task<void> {
        // Its cancel does not help: it goes on sending rows, without end.
        second_ = Behaviour{.frames = page({"2"}).substr(0, 130), .no_ready = true};
        budget_.timeout = 50;
        EXPECT_EQ(co_await brief(request()), "SHARD_TIMEOUT");
        const Millis deadline = loop_.now() + 8000;
        while (worker_->scatters->draining != 0 && loop_.now() < deadline)
            co_await pause(50);
        EXPECT_EQ(pool(1).idle, 0U);
        EXPECT_EQ(pool(1).borrowed, 0U);
        EXPECT_GE(s1_->cancels, 5);
    });
}

// Moves of buckets
// ---------------------------------------------------------------------------------

TEST_F(ScatterTest, WhatOneShardRefusesForItsRoutesIsAskedOfAllAnew) {
    const Asked page_of_first = first_;
    first_ = answer(test::error_frame("ERROR", "IL102", "route version 1 is older than floor 2"));
    with_pages([&]() -> Task<void> {
        Outcome outcome;
        bool done = false;
        const auto ask_once = [&]() -> Task<void> {
            outcome = co_await run(request());
            done = true;
        };
        spawn(ask_once());
        co_await until([&] { return worker_->moves.waiting == 1; });
        EXPECT_EQ(sent(), 2U);
        first_ = page_of_first;
        second_ = answer(page({"7", "8", "9"}));
        worker_->use_table(table(2));
        co_await until([&] { return done; });
        EXPECT_EQ(outcome.refusal, "");
        EXPECT_EQ(outcome.ids, "1 4 5 ");  // nothing of the first answers is left
        EXPECT_EQ(sent(), 4U);
        EXPECT_EQ(worker_->moves.resent, 1U);
    });
}

TEST_F(ScatterTest, NewerRoutesAreWaitedForWithinBounds) {
    settings_.routes_wait = 60;
    first_ = answer(test::error_frame("ERROR", "IL102", "route version 1 is older than floor 2"));
    with_pages([&]() -> Task<void> {
        EXPECT_EQ((co_await run(request())).state, "40001");
        budget_.timeout = 20;
        EXPECT_EQ((co_await run(request())).refusal, "SHARD_TIMEOUT");
        EXPECT_EQ(worker_->moves.waiting, 0U);
        Event gave_up;
        gave_up.set();
        EXPECT_EQ((co_await run(request(), &gave_up)).state, "57014");
    });
}

TEST_F(ScatterTest, RoutesThatDeclareOtherThingsAreNotUsedForWhatWasAnalysedBefore) {
    first_ = answer(test::error_frame("ERROR", "IL102", "route version 1 is older than floor 2"));
    with_pages([&]() -> Task<void> {
        Outcome outcome;
        bool done = false;
        const auto ask_once = [&]() -> Task<void> {
            outcome = co_await run(request());
            done = true;
        };
        spawn(ask_once());
        co_await until([&] { return worker_->moves.waiting == 1; });
        auto other = std::make_shared<RouteTable>(*table(2));
        std::swap(other->tables[0], other->tables[1]);
        worker_->use_table(other);
        co_await until([&] { return done; });
        EXPECT_EQ(outcome.state, "40001");
        EXPECT_EQ(sent(), 2U);
    });
}

}  // namespace
}  // namespace interlock
