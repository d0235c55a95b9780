// Pages from a global index: a fake index database and two fake shards that do what the test wants.
#include "session/index_page.h"

#include "session/index_entries.h"
#include "session/scatter.h"
#include "session_fixture.h"
#include "sql/analysis.h"

#include <set>

namespace interlock {
namespace {

using test::Behaviour;

using Value = std::optional<std::string>;
using Asked = std::optional<Behaviour>;

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

std::string data(const std::vector<Value> &row) {
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

std::string two_digits(int place) {
    return format("%02d", place);
}

/// An entry: its place in the order, and the shard that its key's bucket is on.
struct Entry {
    int place = 0;
    int shard = 0;
};

struct Outcome {
    std::string refusal;  ///< code, or empty
    std::string state;
    std::string detail;
    std::string ids;                   ///< first columns, joined
    std::vector<std::string> cursors;  ///< "-" for NULL
    std::string rest;                  ///< complete and missing_shards of the last row
    std::vector<std::string> missing;
    std::size_t columns = 0;
    bool index = false;  ///< it is no scatter
};

class IndexPageTest : public test::SessionTest {
  protected:
    IndexPageTest() {
        budget_.timeout = 5000;
        budget_.max_rows = 1000;
    }

    /// The reference table, with index k of table account in database ix.
    std::shared_ptr<const RouteTable> indexed(std::int32_t version, bool ready = true) {
        CatalogRows rows = test::reference_rows();
        rows.version = version;
        rows.shards[0].conninfo = s0_->conninfo();
        rows.shards[1].conninfo = s1_->conninfo();
        rows.shards.push_back({3, "ix", ix_->conninfo(), true});
        rows.indexes.push_back({1, "k", 1, {"owner"}, "balance, account_id", 3, ready});
        rows.indexes.push_back({2, "events", 6, {"account_id"}, "account_id", 3, ready});
        for (auto &index : rows.indexes) {
            index.max_page = 100;
            index.default_page = 3;
        }
        return test::build(rows);
    }

    void with_index(const std::function<Task<void>()> &body) {
        with_shards([this, &body]() -> Task<void> {
            ix_ = std::make_unique<test::FakeShard>(loop_, test::cluster_id, "ix");
            worker_->use_table(indexed(2));
            for (test::FakeShard *shard : {s0_.get(), s1_.get()}) {
                shard->surroundings = surroundings();
                const int number = shard == s0_.get() ? 0 : 1;
                shard->script = [this, number](std::string_view sql) -> Asked {
                    if (sql.find("keyset_rows(") == std::string_view::npos) return std::nullopt;
                    ++asked_[number];
                    if (answer_[number]) return answer_[number](sql);
                    return Behaviour{.frames = rows(sql, number)};
                };
            }
            ix_->script = [this](std::string_view sql) -> Asked {
                if (!sql.starts_with("SELECT interlock.hash_key")) return std::nullopt;
                return of_index_ ? of_index_(sql) : Behaviour{.frames = entries(sql)};
            };
            co_await body();
            co_await until([&] { return worker_->scatters->draining == 0; });
            EXPECT_EQ(worker_->buffered_bytes, 0U);
            for (std::size_t i = 0; i < 3; ++i)
                EXPECT_EQ(pool(i).borrowed, 0U);
            worker_.reset();
            ix_->hang_up(true);
            while (!ix_->gone()) {
                ix_->changed.reset();
                co_await Wait(loop_, loop_.now() + 100).event(ix_->changed);
            }
        });
    }

    static std::vector<std::vector<std::string>> surroundings(const std::string &of = digest) {
        return {{"keyset", "", "k", of + " 100 3 true orders"}, {"collations", "", "", "one"}};
    }

    /// The number behind "page_size => ".
    static std::size_t size_of(std::string_view sql) {
        const std::string_view mark = "page_size => ";
        return std::stoul(std::string(sql.substr(sql.rfind(mark) + mark.size())));
    }
    /// The place in the cursor behind `mark`; the client's own if that is a parameter.
    int place_of(std::string_view sql, std::string_view mark) const {
        const std::size_t at = sql.find(mark);
        if (at == std::string_view::npos) return -1;
        const std::string_view rest = sql.substr(at + mark.size());
        if (rest.starts_with("'c")) return std::stoi(std::string(rest.substr(2, 2)));
        return from_;
    }

    /// What the index says.
    std::string entries(std::string_view sql) {
        const std::size_t size = size_of(sql);
        sizes_.push_back(size);
        const int after = place_of(sql, "after => ");
        const int before = place_of(sql, "before => ");
        std::vector<Entry> found;
        for (const Entry &entry : entries_)
            if ((after < 0 || entry.place > after) && (before < 0 || entry.place < before))
                found.push_back(entry);
        if (found.size() > size)
            before < 0 ? found.resize(size)
                       : void(found.erase(found.begin(), found.end() - static_cast<long>(size)));
        std::string frames = description({{"hash", 25}, {"cursor", 25}, {"key", 25}});
        for (const Entry &entry : found)
            frames += data({std::to_string(entry.shard), "c" + two_digits(entry.place),
                            digest_ + two_digits(entry.place)});
        return frames + test::complete_frame("SELECT");
    }

    static std::string head() {
        return description({{"account_id", 25},
                            {"cursor", 25},
                            {"complete", 16},
                            {"missing_shards", 1009},
                            {"key", 25}});
    }
    static std::string row(int place, const std::string &of = digest) {
        return data(
            {std::to_string(place), "c" + two_digits(place), "t", "{}", of + two_digits(place)});
    }
    /// What a shard says: those of the cursors whose rows are alive there.
    std::string rows(std::string_view sql, int shard) {
        const std::string_view mark = "cursors => '{";
        std::string_view list = sql.substr(sql.find(mark) + mark.size());
        list = list.substr(0, list.find('}'));
        std::string frames = head();
        while (!list.empty()) {
            const int place = std::stoi(std::string(list.substr(1, 2)));
            list.remove_prefix(std::min<std::size_t>(list.size(), 4));
            if (!stale_.contains({place, shard})) frames += row(place);
        }
        return frames + test::complete_frame("SELECT");
    }

    /// Places 1 to n, in turns on s0 and s1.
    void fill(int n) {
        for (int place = 1; place <= n; ++place)
            entries_.push_back({place, (place - 1) % 2});
    }
    void make_stale(int first, int last) {
        for (int place = first; place <= last; ++place)
            for (const int shard : {0, 1})
                stale_.insert({place, shard});
    }

    ScatterRequest request(const Value &size = "3", int after = -1, int before = -1,
                           const std::string &columns = "(item).account_id, cursor, complete, "
                                                        "missing_shards",
                           const std::string &hint = "") {
        from_ = after >= 0 ? after : before;
        ScatterRequest request;
        request.routes = worker_->routes();
        request.text = hint + "select " + columns +
                       " from interlock.keyset_page($1, null::account, '{\"owner\": 1}'" +
                       (after >= 0 ? ", after => $2" : "") + (before >= 0 ? ", before => $2" : "") +
                       ", page_size => $3)";
        static const std::vector<std::string> path{"public"};
        sql::Shape shape;
        sql::make_shape(request.text, shape);
        auto analysed = sql::analyse(request.text, shape, {*request.routes->table, path});
        if (!analysed) throw std::runtime_error(analysed.error().message);
        request.facts = std::make_shared<sql::Facts>(std::move(analysed->front().facts));
        request.literals = shape.literals;
        request.parameters = {{"k", false, 0}, {"cursor", false, 0}, {std::nullopt, false, 0}};
        if (size) {
            kept_.push_back(*size);
            request.parameters[2].bytes = kept_.back();
        }
        request.search_path = path;
        request.budget = budget_;
        return request;
    }

    Task<Outcome> run(ScatterRequest request, Event *gave_up = nullptr) {
        Outcome outcome = co_await ask(std::move(request), gave_up);
        co_await until([&] { return worker_->scatters->draining == 0; });
        co_return outcome;
    }
    Task<Outcome> ask(ScatterRequest request, Event *gave_up) {
        Outcome outcome;
        const auto pages = worker_->index_pages.pages;
        const auto rows = merged_rows(*worker_, std::move(request), gave_up);
        auto refused = co_await rows->open();
        outcome.index = worker_->index_pages.pages != pages;
        if (!refused) outcome.columns = wire::load16(rows->columns().data());
        while (!refused) {
            std::string_view body;
            const MergedRows::Row next = co_await rows->next(body);
            if (next == MergedRows::Row::failed) refused = rows->take_refusal();
            if (next != MergedRows::Row::row) break;
            wire::FieldReader fields(body);
            std::vector<std::string> values(fields.int16());
            for (std::string &value : values) {
                const std::uint32_t length = fields.int32();
                value = length == 0xFFFFFFFFU ? "-" : fields.bytes(length);
            }
            EXPECT_TRUE(fields.ok() && fields.at_end());
            outcome.ids += values[0] + " ";
            outcome.cursors.push_back(values[1]);
            outcome.rest = values[2] + " " + values[3];
        }
        if (refused) {
            outcome.refusal = code_entry(refused->code).name;
            outcome.state = refused->state();
            outcome.detail = refused->detail;
        }
        outcome.missing = rows->missing_shards();
        co_return outcome;
    }
    Task<std::string> brief(ScatterRequest request) {
        const Outcome outcome = co_await run(std::move(request));
        co_return outcome.ids + outcome.refusal;
    }
    std::size_t sent_to_shards() const { return asked_[0] + asked_[1]; }

    std::unique_ptr<test::FakeShard> ix_;
    std::vector<Entry> entries_;
    std::set<std::pair<int, int>> stale_;
    std::string digest_ = digest;
    int from_ = -1;
    std::size_t asked_[2] = {0, 0};
    std::vector<std::size_t> sizes_;
    std::function<Asked(std::string_view)> of_index_;
    std::function<Asked(std::string_view)> answer_[2];
    ScatterBudget budget_;
    std::list<std::string> kept_;
};

const Behaviour slow{.frames = test::error_frame("ERROR", "57014", "canceled"), .silent = true};

// Pages -----------------------------------------------------------------------------------------

TEST_F(IndexPageTest, ThePageIsTheRowsOfTheFirstEntries) {
    fill(8);
    with_index([&]() -> Task<void> {
        const Outcome outcome = co_await run(request());
        EXPECT_TRUE(outcome.index);
        EXPECT_EQ(outcome.ids, "1 2 3 ");
        EXPECT_EQ(outcome.refusal, "");
        EXPECT_EQ(outcome.cursors, (std::vector<std::string>{"c01", "c02", "c03"}));
        EXPECT_EQ(outcome.rest, "t {}");
        EXPECT_EQ(outcome.columns, 4U);
        EXPECT_EQ(sizes_, std::vector<std::size_t>{4});
        EXPECT_EQ(sent_to_shards(), 2U);
        EXPECT_EQ(s0_->statements.back(),
                  "select (item).account_id, cursor, complete, missing_shards, "
                  "pg_catalog.encode(\"keyset_page\".\"sort_key\", 'hex') AS \"interlock:0\" from "
                  "interlock.keyset_rows($1, null::account, '{\"owner\": 1}', page_size => $3, "
                  "cursors => '{c01,c03}') AS keyset_page");
        EXPECT_EQ(ix_->statements.back(),
                  "SELECT interlock.hash_key((p.item).account_id)::pg_catalog.text, p.cursor, "
                  "pg_catalog.encode(p.sort_key, 'hex') FROM "
                  "interlock.keyset_page('interlock_index.k', NULL::interlock_index.\"k\", scope "
                  "=> ('{\"owner\": 1}'), page_size => 4) AS p");
        EXPECT_EQ(worker_->index_pages.pages, 1U);
        EXPECT_EQ(worker_->index_pages.entries, 3U);
        EXPECT_EQ(worker_->index_pages.filtered, 0U);
        EXPECT_EQ(worker_->index_pages.rounds, 1U);
        EXPECT_EQ(worker_->scatters->statements, 3U);
        EXPECT_EQ(co_await brief(request("3", 3)), "4 5 6 ");
        EXPECT_EQ(co_await brief(request("3", 6)), "7 8 ");
        EXPECT_EQ(co_await brief(request("3", 8)), "");
        EXPECT_EQ(pool(0).created + pool(1).created + pool(2).created, 3U);
    });
}

TEST_F(IndexPageTest, OnlyTheShardsOfItsEntriesAreAsked) {
    entries_ = {{1, 1}, {2, 1}, {3, 1}, {4, 0}};
    with_index([&]() -> Task<void> {
        budget_.max_fan_out = 1;
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        EXPECT_EQ(asked_[0], 0U);
        EXPECT_EQ(s0_->greetings, 0);
        EXPECT_EQ(asked_[1], 1U);
    });
}

TEST_F(IndexPageTest, APageBeforeACursorIsTheOneNextToIt) {
    fill(9);
    with_index([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("3", -1, 8)), "5 6 7 ");
        EXPECT_EQ(co_await brief(request("3", -1, 3)), "1 2 ");
        EXPECT_EQ(co_await brief(request("3", -1, 1)), "");
        // Past stale ones: the page is full, and begins at its own first row.
        make_stale(5, 6);
        Outcome outcome = co_await run(request("3", -1, 8));
        EXPECT_EQ(outcome.ids, "3 4 7 ");
        EXPECT_EQ(outcome.cursors, (std::vector<std::string>{"c03", "c04", "c07"}));
        // Short: the first row's cursor is past all that was looked at.
        make_stale(1, 6);
        outcome = co_await run(request("3", -1, 9));
        EXPECT_EQ(outcome.ids, "7 8 ");
        EXPECT_EQ(outcome.cursors, (std::vector<std::string>{"c01", "c08"}));
    });
}

TEST_F(IndexPageTest, AnEmptyPageHasColumnsAndIsTheEnd) {
    with_index([&]() -> Task<void> {
        Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids + outcome.refusal, "");
        EXPECT_EQ(outcome.columns, 4U);
        EXPECT_EQ(sent_to_shards(), 1U);
        fill(2);
        make_stale(1, 2);
        outcome = co_await run(request());
        EXPECT_EQ(outcome.ids + outcome.refusal, "");
        EXPECT_EQ(worker_->index_pages.filtered, 2U);
    });
}

TEST_F(IndexPageTest, AMissingPageSizeIsTheIndexs) {
    fill(9);
    with_index([&]() -> Task<void> { EXPECT_EQ(co_await brief(request(std::nullopt)), "1 2 3 "); });
}

// Stale entries ----------------------------------------------------------------------------------

TEST_F(IndexPageTest, StaleEntriesAreDroppedAndTheNextOnesRead) {
    fill(20);
    make_stale(2, 2);
    with_index([&]() -> Task<void> {
        const Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 3 4 ");
        EXPECT_EQ(outcome.cursors, (std::vector<std::string>{"c01", "c03", "c04"}));
        EXPECT_EQ(sizes_, (std::vector<std::size_t>{4, 5}));
        EXPECT_EQ(worker_->index_pages.entries, 4U);
        EXPECT_EQ(worker_->index_pages.filtered, 1U);
        EXPECT_EQ(worker_->index_pages.rounds, 2U);
        EXPECT_EQ(ix_->statements.back().find("after => 'c03'") != std::string::npos, true);
    });
}

TEST_F(IndexPageTest, AShortPagesCursorIsPastTheEntriesThatWereDropped) {
    fill(6);
    make_stale(3, 6);
    with_index([&]() -> Task<void> {
        Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 2 ");
        EXPECT_EQ(outcome.cursors, (std::vector<std::string>{"c01", "c06"}));
        EXPECT_EQ(worker_->index_pages.entries, 6U);
        EXPECT_EQ(worker_->index_pages.filtered, 4U);
        // Where the cursor is part of an expression, it is the row's own.
        outcome = co_await run(request("3", -1, -1,
                                       "(item).account_id, cursor || '', complete, "
                                       "missing_shards"));
        EXPECT_EQ(outcome.cursors, (std::vector<std::string>{"c01", "c02"}));
    });
}

TEST_F(IndexPageTest, AWalkOverStaleEntriesReturnsEachRowOnce) {
    fill(60);
    std::string expected;
    for (int place = 1; place <= 60; ++place) {
        if ((place * 7919) % 11 < 6)
            make_stale(place, place);
        else
            expected += std::to_string(place) + " ";
    }
    with_index([&]() -> Task<void> {
        for (const char *size : {"1", "2", "3", "7"}) {
            for (const bool forwards : {true, false}) {
                const auto before = worker_->index_pages;
                std::string read;
                int from = forwards ? 0 : 99;
                for (int pages = 0; pages < 100; ++pages) {
                    const Outcome outcome =
                        co_await run(forwards ? request(size, from) : request(size, -1, from));
                    EXPECT_EQ(outcome.refusal, "");
                    if (outcome.ids.empty()) break;
                    read = forwards ? read + outcome.ids : outcome.ids + read;
                    from = std::stoi(
                        (forwards ? outcome.cursors.back() : outcome.cursors.front()).substr(1));
                }
                EXPECT_EQ(read, expected) << size << forwards;
                EXPECT_EQ(worker_->index_pages.entries - before.entries, 60U);
                EXPECT_EQ(worker_->index_pages.filtered - before.filtered, stale_.size() / 2);
            }
        }
    });
}

TEST_F(IndexPageTest, ThereAreFourRoundsAtMost) {
    for (int place = 1; place <= 90; ++place)
        entries_.push_back({place, 0});
    make_stale(2, 90);
    budget_.max_rows = 5;
    with_index([&]() -> Task<void> {
        const Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 ");
        EXPECT_EQ(sizes_, (std::vector<std::size_t>{4, 6, 6, 6}));
        EXPECT_EQ(outcome.cursors, std::vector<std::string>{"c18"});
        EXPECT_EQ(co_await brief(request("3", 85)), "");  // exhausted: the end
    });
}

TEST_F(IndexPageTest, APageOfStaleEntriesIsNoEnd) {
    for (int place = 1; place <= 90; ++place)
        entries_.push_back({place, 0});
    make_stale(1, 40);
    budget_.max_rows = 5;
    with_index([&]() -> Task<void> {
        Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.refusal, "INDEX_STALE");
        EXPECT_EQ(outcome.state, "IL210");
        EXPECT_EQ(outcome.detail, "The walk goes on after cursor c18");
        EXPECT_EQ(worker_->index_pages.filtered, 18U);
        EXPECT_EQ(worker_->index_pages.failed, 1U);
        EXPECT_EQ(co_await brief(request("3", 36)), "41 42 43 ");
        make_stale(41, 90);
        outcome = co_await run(request("3", -1, 90));
        EXPECT_EQ(outcome.detail, "The walk goes on before cursor c72");
    });
}

TEST_F(IndexPageTest, APageOfOneRowGetsOverManyStaleEntries) {
    fill(90);
    make_stale(1, 89);
    with_index([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("1")), "90 ");
        EXPECT_EQ(sizes_, (std::vector<std::size_t>{2, 101}));
    });
}

TEST(IndexEntries, AskedFor) {
    EXPECT_EQ(entries_to_ask(1, 50, 0, 0, 0, 1000), 51U);
    EXPECT_EQ(entries_to_ask(1, 50, 0, 0, 0, 50), 51U);
    EXPECT_EQ(entries_to_ask(2, 1, 51, 50, 49, 1000), 5U);
    EXPECT_EQ(entries_to_ask(2, 25, 51, 50, 25, 1000), 101U);
    EXPECT_EQ(entries_to_ask(2, 50, 51, 50, 0, 1000), 205U);
    EXPECT_EQ(entries_to_ask(3, 50, 205, 254, 0, 1000), 821U);
    EXPECT_EQ(entries_to_ask(4, 50, 821, 1074, 0, 1000), 1001U);
    EXPECT_EQ(entries_to_ask(3, 1, 5, 54, 49, 1000), 21U);
}

// Budgets ----------------------------------------------------------------------------------------

TEST_F(IndexPageTest, WhatIsOverABoundIsRefusedUnsent) {
    fill(9);
    with_index([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("101")), "PAGE_TOO_LARGE");
        EXPECT_EQ((co_await run(request("0"))).state, "22023");
        EXPECT_EQ(co_await brief(request("x")), "R27");
        budget_.max_rows = 2;
        EXPECT_EQ(co_await brief(request()), "ROW_BUDGET");
        EXPECT_EQ(ix_->greetings + s0_->greetings + s1_->greetings, 0);
    });
}

TEST_F(IndexPageTest, TooManyShardsAreRefusedBeforeAnyIsAsked) {
    fill(9);
    with_index([&]() -> Task<void> {
        budget_.max_fan_out = 1;
        EXPECT_EQ(co_await brief(request()), "FANOUT_EXCEEDED");
        EXPECT_EQ(s0_->greetings + s1_->greetings, 0);
        EXPECT_EQ(co_await brief(request("1")), "1 ");  // the extra entry is not one of the page
    });
}

TEST_F(IndexPageTest, LaterRoundsEndThePageBeforeTheyTakeTooManyShards) {
    entries_ = {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 1}, {6, 0}};
    stale_ = {{2, 0}};
    with_index([&]() -> Task<void> {
        budget_.max_fan_out = 1;
        const Outcome outcome = co_await run(request("4"));
        EXPECT_EQ(outcome.ids, "1 3 4 ");
        EXPECT_EQ(outcome.cursors.back(), "c04");
        EXPECT_EQ(asked_[1], 0U);
        // Without a row it is no end, either.
        stale_ = {{1, 0}, {2, 0}, {3, 0}, {4, 0}};
        EXPECT_EQ((co_await run(request("3"))).detail, "The walk goes on after cursor c04");
        EXPECT_EQ(co_await brief(request("1", 4)), "5 ");
    });
}

// What does not fit together ----------------------------------------------------------------------

TEST_F(IndexPageTest, KeysetsThatAreNotAlikeAreRefused) {
    fill(9);
    with_index([&]() -> Task<void> {
        s1_->surroundings = surroundings("ffffffffffffffff");
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        EXPECT_EQ(asked_[1], 0U);
        EXPECT_EQ(s1_->questions, 1);
        s1_->surroundings.clear();
        EXPECT_EQ((co_await run(request())).state, "42704");
        s1_->surroundings = surroundings();
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        // The row's own.
        answer_[1] = [](std::string_view) {
            return Behaviour{.frames = head() + row(2, "ffffffffffffffff") +
                                       test::complete_frame("SELECT")};
        };
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        // A row that nobody asked for.
        answer_[1] = [](std::string_view) {
            return Behaviour{.frames = head() + row(4) + test::complete_frame("SELECT")};
        };
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        answer_[1] = [](std::string_view) {
            return Behaviour{.frames = head() + row(2) + row(4) + test::complete_frame("SELECT")};
        };
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        answer_[1] = [](std::string_view) {
            return Behaviour{.frames = description({{"x", 25}, {"key", 25}}) +
                                       data({"2", digest + "02"}) + test::complete_frame("SELECT")};
        };
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
    });
}

TEST_F(IndexPageTest, AnIndexThatLiesFailsThePage) {
    fill(9);
    with_index([&]() -> Task<void> {
        const std::string shape = description({{"hash", 25}, {"cursor", 25}, {"key", 25}});
        const std::vector<std::string> lies = {
            data({"0", "c02", digest + "02"}) + data({"0", "c01", digest + "01"}),
            data({"0", "c02", digest + "02"}) + data({"0", "c03", "ffffffffffffffff03"}),
            data({"x", "c01", digest + "01"}),
            data({std::nullopt, "c01", digest + "01"}),
            data({"0", std::nullopt, digest + "01"}),
            data({"0", "c01", std::nullopt}),
            data({"0", "c01", "short"}),
        };
        for (const std::string &lie : lies) {
            of_index_ = [&](std::string_view) {
                return Behaviour{.frames = shape + lie + test::complete_frame("SELECT")};
            };
            EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
        }
        EXPECT_EQ(sent_to_shards(), 0U);
        // The same entries again, where the next ones were asked for.
        make_stale(1, 9);
        of_index_ = [&](std::string_view) {
            return Behaviour{
                .frames = shape + data({"0", "c01", digest + "01"}) +
                          data({"0", "c02", digest + "02"}) + data({"0", "c03", digest + "03"}) +
                          data({"0", "c04", digest + "04"}) + test::complete_frame("SELECT")};
        };
        EXPECT_EQ(co_await brief(request()), "SHARDS_DISAGREE");
    });
}

TEST_F(IndexPageTest, OfEntriesAtOnePlaceOneMayBeAlive) {
    entries_ = {{1, 0}, {2, 0}, {2, 1}, {3, 0}, {3, 0}, {4, 1}, {4, 0}, {5, 1}};
    stale_ = {{2, 0}, {4, 1}};
    with_index([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request("9")), "1 2 3 4 5 ");
        EXPECT_EQ(worker_->index_pages.filtered, 3U);
        // Cut between them: they are judged together.
        EXPECT_EQ(co_await brief(request("1", 1)), "2 ");
        EXPECT_EQ(co_await brief(request("2")), "1 2 ");
        EXPECT_EQ(co_await brief(request("1", -1, 5)), "4 ");
        EXPECT_EQ(co_await brief(request("2", -1, 5)), "3 4 ");
        stale_ = {};
        EXPECT_EQ(co_await brief(request("9")), "NOT_TOTAL_ORDER");
        EXPECT_EQ(co_await brief(request("2")), "NOT_TOTAL_ORDER");
        EXPECT_EQ(co_await brief(request("1")), "1 ");
        entries_.clear();
        for (int i = 0; i < 20; ++i)
            entries_.push_back({1, i % 2});
        budget_.max_rows = 3;
        EXPECT_EQ(co_await brief(request()), "NOT_TOTAL_ORDER");
    });
}

// Members that fail
// --------------------------------------------------------------------------------

TEST_F(IndexPageTest, AnIndexDatabaseThatIsAwayIsNamed) {
    fill(9);
    with_index([&]() -> Task<void> {
        ix_->hang_up(true);
        co_await until([&] { return ix_->gone(); });
        for (const bool partial : {false, true}) {
            budget_.partial = partial;
            const Outcome outcome = co_await run(request());
            EXPECT_EQ(outcome.refusal, "R30");
            EXPECT_NE(outcome.detail.find("holds index \"k\""), std::string::npos)
                << outcome.detail;
        }
        EXPECT_EQ(sent_to_shards(), 0U);
    });
}

TEST_F(IndexPageTest, ASlowIndexDatabaseIsCancelledAndServesOn) {
    fill(9);
    with_index([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");  // connected: the time is for the answer
        budget_.timeout = 300;
        of_index_ = [&](std::string_view) { return slow; };
        const Millis began = loop_.now();
        EXPECT_EQ(co_await brief(request()), "SHARD_TIMEOUT");
        EXPECT_LT(loop_.now() - began, 3000);
        EXPECT_EQ(ix_->cancels, 1);
        of_index_ = nullptr;
        budget_.timeout = 5000;
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        EXPECT_EQ(pool(2).created, 1U);
    });
}

TEST_F(IndexPageTest, AnErrorOfTheIndexDatabaseIsPassedOn) {
    fill(9);
    with_index([&]() -> Task<void> {
        of_index_ = [&](std::string_view) {
            return Behaviour{.frames = test::error_frame("ERROR", "IL201", "bad cursor")};
        };
        const Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.state, "IL201");
        EXPECT_NE(outcome.detail.find("ix"), std::string::npos);
        EXPECT_EQ(sent_to_shards(), 0U);
        of_index_ = [&](std::string_view sql) {
            const std::string frames = entries(sql);
            return Behaviour{.frames = frames.substr(0, frames.size() - 30), .close = true};
        };
        EXPECT_EQ(co_await brief(request()), "R30");
    });
}

TEST_F(IndexPageTest, AnIndexThatIsNotThereIsNoReasonToFail) {
    fill(9);
    with_index([&]() -> Task<void> {
        for (test::FakeShard *shard : {s0_.get(), s1_.get()})
            shard->script = [shard, this](std::string_view sql) -> Asked {
                if (sql.find("keyset_page(") == std::string_view::npos) return std::nullopt;
                return Behaviour{.frames = head() + row(shard == s0_.get() ? 1 : 2) +
                                           test::complete_frame("SELECT")};
            };
        for (const char *state : {"42P01", "42704", "3F000", "42501"}) {
            of_index_ = [&](std::string_view) {
                return Behaviour{.frames = test::error_frame("ERROR", state, "no such thing")};
            };
            const Outcome outcome = co_await run(request());
            if (std::string_view(state) == "42501") {
                EXPECT_EQ(outcome.state, state);
                continue;
            }
            EXPECT_EQ(outcome.ids + outcome.refusal, "1 2 ");
            EXPECT_EQ(outcome.columns, 4U);
        }
        EXPECT_EQ(worker_->index_pages.failed, 4U);
        // What fails there fails in the words of the shards.
        of_index_ = [&](std::string_view) {
            return Behaviour{.frames = test::error_frame("ERROR", "42P01", "no such thing")};
        };
        s1_->script = [](std::string_view) {
            return Behaviour{.frames = test::error_frame("ERROR", "42P01", "no table either")};
        };
        EXPECT_EQ((co_await run(request())).state, "42P01");
    });
}

TEST_F(IndexPageTest, OneDeadlineHoldsForAllRounds) {
    fill(40);
    make_stale(1, 30);
    with_index([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "31 32 33 ");
        budget_.timeout = 500;
        unsigned rounds = 0;
        of_index_ = [&](std::string_view sql) -> Asked {
            return ++rounds == 1 ? Behaviour{.frames = entries(sql)} : slow;
        };
        const Millis began = loop_.now();
        EXPECT_EQ(co_await brief(request()), "SHARD_TIMEOUT");
        EXPECT_GE(loop_.now() - began, 495);
        EXPECT_LT(loop_.now() - began, 3000);
        EXPECT_EQ(rounds, 2U);
    });
}

TEST_F(IndexPageTest, ASlowShardFailsThePageOrIsNamed) {
    fill(9);
    with_index([&]() -> Task<void> {
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        budget_.timeout = 300;
        answer_[1] = [&](std::string_view) { return slow; };
        EXPECT_EQ(co_await brief(request()), "SHARD_TIMEOUT");
        budget_.partial = true;
        Outcome outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 3 ");
        EXPECT_EQ(outcome.cursors, (std::vector<std::string>{"-", "-"}));
        EXPECT_EQ(outcome.rest, "f {s1}");
        EXPECT_EQ(outcome.missing, std::vector<std::string>{"s1"});
        EXPECT_EQ(worker_->scatters->partial, 1U);
        // No row could say that it is incomplete.
        stale_ = {{1, 0}, {3, 0}};
        EXPECT_EQ(co_await brief(request()), "SHARD_TIMEOUT");
        EXPECT_EQ(pool(1).created, 1U);
        answer_[1] = nullptr;
        stale_.clear();
        budget_.timeout = 5000;
        outcome = co_await run(request());
        EXPECT_EQ(outcome.ids, "1 2 3 ");
        EXPECT_EQ(outcome.rest, "t {}");
    });
}

TEST_F(IndexPageTest, AShardThatIsAwayFailsThePageOrIsNamed) {
    fill(9);
    with_index([&]() -> Task<void> {
        s1_->hang_up(true);
        co_await until([&] { return s1_->gone(); });
        EXPECT_EQ(co_await brief(request()), "R30");
        budget_.partial = true;
        EXPECT_EQ((co_await run(request())).rest, "f {s1}");
        EXPECT_EQ(co_await brief(request("3", 9)), "");  // its columns come from one that is up
    });
}

TEST_F(IndexPageTest, WhoGivesUpIsNotKeptWaiting) {
    fill(9);
    with_index([&]() -> Task<void> {
        for (const bool index : {true, false}) {
            of_index_ = answer_[0] = nullptr;
            (index ? of_index_ : answer_[0]) = [&](std::string_view) { return slow; };
            const std::size_t before = ix_->statements.size() + s0_->statements.size();
            Event gave_up;
            std::string state;
            const auto wait = [&]() -> Task<void> {
                state = (co_await run(request(), &gave_up)).state;
            };
            spawn(wait());
            co_await until([&] {
                return ix_->statements.size() + s0_->statements.size() >= before + (index ? 1 : 2);
            });
            EXPECT_EQ(state, "");
            gave_up.set();
            co_await until([&] { return !state.empty(); });
            EXPECT_EQ(state, "57014");
        }
        of_index_ = answer_[0] = nullptr;
        EXPECT_EQ(co_await brief(request()), "1 2 3 ");
        EXPECT_EQ(pool(0).created + pool(1).created + pool(2).created, 3U);
    });
}

TEST_F(IndexPageTest, ManyAtOnceDoNotWaitForEachOther) {
    fill(30);
    make_stale(2, 3);
    settings_.pool_size = 1;
    with_index([&]() -> Task<void> {
        std::vector<std::string> got;
        const auto one = [&]() -> Task<void> { got.push_back(co_await brief(request())); };
        for (int i = 0; i < 20; ++i)
            spawn(one());
        co_await until([&] { return got.size() == 20; });
        EXPECT_EQ(got, std::vector<std::string>(20, "1 4 5 "));
    });
}

TEST_F(IndexPageTest, EachRoundIsATransactionOfItsOwnThatIsRolledBack) {
    fill(9);
    with_index([&]() -> Task<void> {
        ScatterRequest with = request();
        ParameterSets sets;
        with.parameters_in_force = sets.with(nullptr, find_tracked("work_mem"), "1MB");
        with.prologue = "BEGIN";
        EXPECT_EQ(co_await brief(std::move(with)), "1 2 3 ");
        for (const test::FakeShard *member : {ix_.get(), s0_.get(), s1_.get()}) {
            EXPECT_EQ(member->statements.size(), 4U);
            EXPECT_EQ(member->statements[0],
                      "SELECT pg_catalog.set_config('work_mem', '1MB', false)");
            EXPECT_EQ(member->statements[1], "BEGIN");
            EXPECT_EQ(member->statements[3], "ROLLBACK");
        }
    });
}

// Which way a page is answered
// ----------------------------------------------------------------------

TEST_F(IndexPageTest, OnlyAReadyIndexOfTheTableWithoutAHintIsUsed) {
    fill(9);
    const auto scattered = [](std::string_view) {
        return Behaviour{.frames = head() + row(1) + test::complete_frame("SELECT")};
    };
    with_index([&]() -> Task<void> {
        s0_->script = scattered;
        s1_->script = [](std::string_view) {
            return Behaviour{.frames = head() + test::complete_frame("SELECT")};
        };
        Outcome outcome = co_await run(request("3", -1, -1,
                                               "(item).account_id, cursor, complete, "
                                               "missing_shards",
                                               "/* interlock: scatter */ "));
        EXPECT_FALSE(outcome.index);
        EXPECT_EQ(outcome.ids, "1 ");
        worker_->use_table(indexed(3, false));
        outcome = co_await run(request());
        EXPECT_FALSE(outcome.index);
        EXPECT_EQ(outcome.ids, "1 ");
        EXPECT_EQ(ix_->greetings, 0);
    });
}

}  // namespace
}  // namespace interlock
