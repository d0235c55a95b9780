#include "session/index_page.h"

#include "base/log.h"
#include "plan/scatter_values.h"
#include "session/index_entries.h"
#include "session/index_request.h"
#include "session/scatter.h"
#include "session/scatter_checks.h"
#include "session/scatter_fan.h"
#include "session/scatter_merge.h"
#include "session/scatter_page.h"
#include "session/scatter_row.h"

#include <algorithm>
#include <utility>

namespace interlock {

namespace {

using State = ShardStream::State;
using Requests = std::vector<std::shared_ptr<const ShardRequest>>;

/// A shard of a round.
struct Asked {
    ShardEntries of;
    std::size_t at = 0;  ///< of its entries: the one the row at the stream's head is for
    KeyCheck keys;
};

/// A row of a round.
struct Found {
    std::size_t entry = 0;
    std::string row;  ///< hidden columns taken off
};

}  // namespace

struct IndexPage::Impl {
    Impl(Worker &the_worker, ScatterRequest &&the_request, const GlobalIndex &the_index,
         Event *gave_up)
        : worker(the_worker), request(std::move(the_request)), scatter(*request.facts->scatter),
          index(the_index), table(*request.routes->table),
          fan(worker.loop(), request.budget.timeout, gave_up), gives_up(gave_up) {}
    ~Impl() { worker.buffered_bytes -= held; }

    Task<std::optional<Refusal>> open();
    Task<std::optional<Refusal>> walk();
    Task<std::optional<Refusal>> read_entries(std::uint64_t size);
    Task<std::optional<Refusal>> read_rows();
    Task<std::optional<Refusal>> read_nothing();
    Task<std::optional<Refusal>> ask(Requests requests, bool of_index);
    Task<std::optional<Refusal>> merge(std::vector<Asked> &asked, std::vector<Found> &found);
    std::optional<Refusal> judge(ShardStream &stream, bool of_index, bool &stale) const;
    std::optional<Refusal> head(std::vector<Asked> &asked, std::size_t stream, MergeOrder &order);
    std::optional<Refusal> describe();
    std::optional<Refusal> hold();
    void take(std::vector<Found> found);
    [[nodiscard]] const std::string &database() const { return table.shards[index.database].name; }
    [[nodiscard]] bool full() const { return page.size() == wanted; }
    Refusal of_index(Refusal refusal) const {
        return told_of_index(std::move(refusal), index, database());
    }
    Refusal stale() const;
    void failed(const Refusal &why);

    Worker &worker;
    ScatterRequest request;
    const sql::Scatter &scatter;
    const GlobalIndex &index;
    const RouteTable &table;
    ShardFan fan;
    Event *gives_up;
    ScatterWish wish;
    std::uint64_t wanted = 0;

    // The walk.
    std::optional<EntryBatch> batch;
    std::vector<ShardIndex> shards;  ///< asked so far, ascending
    std::string digest;              ///< of the index's keyset; empty: no entry has come yet
    std::string edge_key;            ///< of the last entry walked past; empty: none
    std::string edge_cursor;
    bool edge_has_row = false;
    std::uint64_t walked = 0;

    // The page.
    std::vector<std::string> page;
    std::string description;  ///< of the first shard
    std::string described_by;
    std::string columns;
    std::uint16_t visible = 0;
    std::optional<PageRewrite> rewrite;
    std::vector<std::string> missing;
    std::size_t page_bytes = 0;
    std::size_t held = 0;  ///< charged to the worker's budget

    bool not_there = false;  ///< the index's database does not know it
    std::size_t given = 0;
    std::string row;
    std::optional<Refusal> refusal;
};

// The course ------------------------------------------------------------------------------------

Task<std::optional<Refusal>> IndexPage::Impl::open() {
    if (worker.stopping() && request.prologue.empty())
        co_return make_refusal(Code::R30, "the router is shutting down",
                               "Nothing was done; connect to another router, or try again.");
    auto wished = scatter_wish(scatter, Values{request.text, request.literals, request.parameters},
                               request.budget.max_rows);
    if (!wished) co_return std::move(wished.error());
    wish = std::move(*wished);
    ScatterVerdict verdict = judge_index_page(wish, index);
    if (verdict.refusal) co_return std::move(verdict.refusal);
    wanted = verdict.extent.fetch;
    auto refused = co_await walk();
    if (!refused || refused->code == Code::index_stale) {
        worker.index_pages.entries += walked;
        if (missing.empty()) worker.index_pages.filtered += walked - page.size();
    }
    if (!missing.empty()) ++worker.scatters->partial;
    if (refused) co_return refused;
    fan.abandon(true);
    batch.reset();
    co_return hold();
}

Task<std::optional<Refusal>> IndexPage::Impl::walk() {
    const std::size_t most =
        request.budget.max_fan_out == 0 ? table.shards.size() : request.budget.max_fan_out;
    bool more = true;    // entries that may be asked for
    bool ended = false;  // there are none behind those walked past
    std::uint64_t size = 0;
    for (unsigned round = 1; more && round <= index_rounds; ++round) {
        size =
            entries_to_ask(round, wanted - page.size(), size, walked, page.size(), wish.max_rows);
        ++worker.index_pages.rounds;
        if (auto refused = co_await read_entries(size)) co_return refused;
        std::vector<ShardIndex> owners;
        if (round == 1) batch->add_shards(owners);
        if (owners.size() > most)
            co_return make_refusal(
                Code::fanout_exceeded,
                format("the rows of the page are on %zu shards; at most %zu may be asked",
                       owners.size(), most),
                "Ask for smaller pages; the limits are the setting scatter.max_fan_out of the "
                "router and interlock.max_fan_out of the session.");
        const bool left_out = batch->cut(most, shards);
        ended = batch->exhausted() && !left_out;
        more = !ended && !left_out;
        if (batch->empty()) continue;
        if (auto refused = co_await read_rows()) co_return refused;
        if (full() || !missing.empty()) co_return std::nullopt;
    }
    if (!page.empty()) co_return std::nullopt;
    // A page without a row is the end of the walk, so it must be the index's, too.
    if (!ended) co_return stale();
    if (description.empty()) co_return co_await read_nothing();
    co_return std::nullopt;
}

Refusal IndexPage::Impl::stale() const {
    if (edge_cursor.empty())
        return make_refusal(Code::not_total_order,
                            "more entries of the index than a page can hold have equal places",
                            "Let the order end in columns that are unique over all shards.");
    Refusal refusal = make_refusal(
        Code::index_stale,
        format("none of the next %llu entries of index \"%s\" stands for a row any more",
               static_cast<unsigned long long>(walked), index.name.c_str()),
        "Ask again when the index has caught up, or go on from the cursor in the DETAIL; if it "
        "stays so, the index needs repair.");
    refusal.detail = format("The walk goes on %s cursor %s", wish.backward ? "before" : "after",
                            edge_cursor.c_str());
    return refusal;
}

// Asking ----------------------------------------------------------------------------------------

std::optional<Refusal> IndexPage::Impl::judge(ShardStream &stream, bool of_index,
                                              bool &stale) const {
    stale = false;
    if (auto refused = judge_defaults(request.defaults, stream.backend().defaults()))
        return refused;
    const ShardFacts facts{stream.name(), &stream.backend().surroundings()};
    if (auto refused = judge_names(*request.facts, facts, request.search_path)) return refused;
    if (of_index) return std::nullopt;
    ScatterVerdict verdict = judge_index_rows(wish, digest, facts, database());
    stale = verdict.stale;
    return std::move(verdict.refusal);
}

// Each stream of the fan gets its request as soon as it has a backend that nothing is known
// against; until each has a row, or none.
Task<std::optional<Refusal>> IndexPage::Impl::ask(Requests requests, bool of_index) {
    for (const auto &each : requests)
        if (each->frames.size() > worker.settings().max_buffered_bytes / fan.size())
            co_return make_refusal(
                Code::R37, "the statement and its parameters are too large for so many shards",
                "The limit is the setting limits.max_buffered_bytes.");
    std::vector<bool> learnt(fan.size(), false);
    for (;;) {
        for (std::size_t i = 0; i < fan.size(); ++i) {
            if (fan.missing(i) || fan[i].state() != State::ready || fan[i].busy()) continue;
            bool stale = false;
            if (auto refused = judge(fan[i], of_index, stale)) {
                if (!stale || learnt[i]) co_return refused;
                learnt[i] = true;
                fan[i].learn();
                continue;
            }
            fan[i].ask(requests[i]);
        }
        const ShardFan::Wait waited = co_await fan.wait();
        if (waited == ShardFan::Wait::over) co_return std::move(fan.refusal());
        if (waited == ShardFan::Wait::settled) co_return std::nullopt;
    }
}

// The entries ------------------------------------------------------------------------------------

Task<std::optional<Refusal>> IndexPage::Impl::read_entries(std::uint64_t size) {
    const Keyspace &keyspace = table.keyspaces[table.tables[scatter.table].keyspace];
    batch.emplace(keyspace, wish.backward);
    std::vector<std::shared_ptr<ShardStream>> streams{
        std::make_shared<ShardStream>(worker, request.routes, request.login, index.database)};
    fan.begin(std::move(streams), false);
    Requests requests;
    requests.push_back(entries_request(request, index, {size, edge_cursor, wish.backward}));
    if (auto refused = co_await ask(std::move(requests), true)) {
        not_there = edge_key.empty() && unknown_there(*refused);
        co_return of_index(std::move(*refused));
    }
    ShardStream &stream = fan[0];
    while (stream.state() != State::end) {
        if (stream.state() == State::row) {
            const std::string_view body = stream.row().substr(0, stream.parts().visible);
            if (auto refused = batch->add(body, stream.key())) co_return of_index(*refused);
            if (auto refused = hold()) co_return refused;
            stream.pop();
        } else if (!co_await fan.pull(0)) {
            co_return of_index(std::move(fan.refusal()));
        }
    }
    batch->close(size);
    if (!digest.empty() && !batch->digest().empty() && batch->digest() != digest)
        co_return bad_key(KeyFault::digest, database());
    if (digest.empty()) digest = batch->digest();
    if (!batch->empty() && !edge_key.empty()) {
        const std::string &nearest =
            (*batch)[wish.backward ? batch->end() - 1 : batch->first()].key;
        if (wish.backward ? nearest >= edge_key : nearest <= edge_key)
            co_return bad_key(KeyFault::falls, database());
    }
    co_return std::nullopt;
}

// The rows ---------------------------------------------------------------------------------------

Task<std::optional<Refusal>> IndexPage::Impl::read_rows() {
    std::vector<Asked> asked;
    std::vector<std::shared_ptr<ShardStream>> streams;
    Requests requests;
    for (ShardEntries &each : batch->by_shard()) {
        streams.push_back(
            std::make_shared<ShardStream>(worker, request.routes, request.login, each.shard));
        requests.push_back(rows_request(request, each.cursors));
        asked.push_back({.of = std::move(each), .at = 0, .keys = {}});
    }
    fan.begin(std::move(streams), request.budget.partial && !scatter.page.in_expressions);
    if (auto refused = co_await ask(std::move(requests), false)) co_return refused;
    if (auto refused = describe()) co_return refused;
    std::vector<Found> found;
    if (auto refused = co_await merge(asked, found)) co_return refused;
    missing = fan.missing_names();
    take(std::move(found));
    // Where no row tells of it, the page would look like the end.
    if (page.empty() && !missing.empty()) co_return fan.first_loss();
    co_return hold();
}

// An empty page has columns, too: one shard tells them.
Task<std::optional<Refusal>> IndexPage::Impl::read_nothing() {
    std::vector<ShardIndex> owners =
        shards_of_keyspace(table, table.tables[scatter.table].keyspace);
    const LoginPools &pools = request.routes->pools_for(request.login);
    const std::size_t turn = worker.index_pages.pages % owners.size();
    std::rotate(owners.begin(), owners.begin() + static_cast<std::ptrdiff_t>(turn), owners.end());
    const auto up = std::find_if(owners.begin(), owners.end(),
                                 [&](ShardIndex shard) { return !pools[shard].known_down(); });
    std::vector<std::shared_ptr<ShardStream>> streams{std::make_shared<ShardStream>(
        worker, request.routes, request.login, up == owners.end() ? owners[0] : *up)};
    fan.begin(std::move(streams), false);
    Requests requests;
    requests.push_back(rows_request(request, {}));
    if (auto refused = co_await ask(std::move(requests), false)) co_return refused;
    co_return describe();
}

std::optional<Refusal> IndexPage::Impl::describe() {
    for (std::size_t i = 0; i < fan.size(); ++i) {
        if (fan.missing(i)) continue;
        if (description.empty()) {
            description = fan[i].description();
            described_by = fan[i].name();
            columns = visible_description(description, scatter.hidden);
            visible = wire::load16(columns.data());
            rewrite = PageRewrite::find(scatter.page, columns);
            continue;
        }
        const std::string difference = describe_difference(description, fan[i].description());
        if (difference.empty()) continue;
        Refusal refused =
            make_refusal(Code::shards_disagree, "the shards answer with other columns",
                         "Give the tables the same columns and types on every shard.");
        refused.detail = format("On shards %s and %s: %s.", described_by.c_str(),
                                fan[i].name().c_str(), difference.c_str());
        return refused;
    }
    if (!fan.partial() || rewrite) return std::nullopt;
    if (fan.any_missing()) return fan.first_loss();
    fan.forbid_partial();
    return std::nullopt;
}

// The stream has a new head, or none. A shard gives rows of the entries it was asked for alone, in
// their order.
std::optional<Refusal> IndexPage::Impl::head(std::vector<Asked> &asked, std::size_t stream,
                                             MergeOrder &order) {
    if (fan.missing(stream) || fan[stream].state() == State::end) {
        order.end(stream);
        return std::nullopt;
    }
    Asked &of = asked[stream];
    const std::vector<std::size_t> &entries = of.of.entries;
    const std::string_view key = fan[stream].key();
    if (const KeyFault fault = of.keys.take(key, digest); fault != KeyFault::none)
        return bad_key(fault, fan[stream].name());
    while (of.at < entries.size() && (*batch)[entries[of.at]].key < key)
        ++of.at;
    if (of.at == entries.size() || (*batch)[entries[of.at]].key != key)
        return make_refusal(
            Code::shards_disagree,
            format("shard %s gives a row another sort key than the index has for it",
                   fan[stream].name().c_str()),
            "Collations may have changed since the index was filled: give all databases the same, "
            "and fill it again.");
    order.head(stream, key);
    return std::nullopt;
}

// Forwards, the first rows that are needed; before a cursor, all, since those needed are the last.
Task<std::optional<Refusal>> IndexPage::Impl::merge(std::vector<Asked> &asked,
                                                    std::vector<Found> &found) {
    const std::size_t need = wanted - page.size();
    MergeOrder order(fan.size());
    for (std::size_t i = 0; i < fan.size(); ++i)
        if (auto refused = head(asked, i, order)) co_return refused;
    std::string last_key;
    std::size_t last = MergeOrder::none;
    std::size_t bytes = 0;
    for (;;) {
        const std::size_t least = order.least();
        if (least == MergeOrder::none) break;
        if (last != MergeOrder::none && order.key(least) == last_key)
            co_return equal_places(fan[last].name(), fan[least].name());
        last_key.assign(order.key(least));
        last = least;
        ShardStream &stream = fan[least];
        Found &next = found.emplace_back();
        next.entry = asked[least].of.entries[asked[least].at];
        visible_row(stream.row(), stream.parts(), visible, next.row);
        bytes += next.row.size();
        if (bytes + worker.buffered_bytes > worker.settings().max_buffered_bytes)
            co_return make_refusal(Code::R37, "the page is larger than the router allows",
                                   "Ask for smaller pages; the limit is the setting "
                                   "limits.max_buffered_bytes.");
        if (!wish.backward && found.size() == need) {
            // What is behind the cut is not looked at: an equal key there would go unnoticed.
            const std::size_t rival = order.rival();
            if (rival != MergeOrder::none) co_return equal_places(stream.name(), fan[rival].name());
            break;
        }
        stream.pop();
        if (stream.state() == State::waiting || stream.state() == State::failed)
            if (!co_await fan.pull(least)) co_return std::move(fan.refusal());
        if (auto refused = head(asked, least, order)) co_return refused;
    }
    co_return std::nullopt;
}

// Puts the rows into the page, and goes past their entries: all that were judged, if the page is
// not full.
void IndexPage::Impl::take(std::vector<Found> found) {
    const std::size_t need = wanted - page.size();
    if (found.size() > need)
        found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(need));
    const bool fills = found.size() == need;
    std::size_t edge = wish.backward ? batch->first() : batch->end() - 1;
    std::size_t last_row = batch->end();
    if (!found.empty()) last_row = wish.backward ? found.front().entry : found.back().entry;
    if (fills) edge = last_row;
    edge_has_row = last_row != batch->end() && (*batch)[edge].key == (*batch)[last_row].key;
    walked += batch->walked(edge);
    edge_key = (*batch)[edge].key;
    edge_cursor = (*batch)[edge].cursor;
    const auto at = wish.backward ? page.begin() : page.end();
    std::vector<std::string> rows;
    for (Found &each : found) {
        page_bytes += each.row.size();
        rows.push_back(std::move(each.row));
    }
    page.insert(at, std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
}

// What is held counts in the worker's budget.
std::optional<Refusal> IndexPage::Impl::hold() {
    const std::size_t now = page_bytes + (batch ? batch->bytes() : 0);
    worker.buffered_bytes += now;
    worker.buffered_bytes -= held;
    held = now;
    if (worker.buffered_bytes <= worker.settings().max_buffered_bytes) return std::nullopt;
    return make_refusal(Code::R37, "the page is larger than the router allows",
                        "Ask for smaller pages; the limit is the setting "
                        "limits.max_buffered_bytes.");
}

// What the index or a shard was told of its keysets may be out of date.
void IndexPage::Impl::failed(const Refusal &why) {
    ++worker.index_pages.failed;
    const std::string_view state = why.state();
    if (state == code_entry(Code::page_too_large).sqlstate ||
        state == code_entry(Code::shards_disagree).sqlstate || state == "42704")
        for (std::size_t i = 0; i < fan.size(); ++i)
            if (!fan.missing(i)) fan[i].forget_keysets();
    fan.abandon(false);
}

// IndexPage --------------------------------------------------------------------------------------

IndexPage::IndexPage(Worker &worker, ScatterRequest request, const GlobalIndex &index,
                     Event *gave_up)
    : impl_(std::make_unique<Impl>(worker, std::move(request), index, gave_up)) {}

IndexPage::~IndexPage() = default;

Task<std::optional<Refusal>> IndexPage::open() {
    ++impl_->worker.index_pages.pages;
    Impl &impl = *impl_;
    auto refused = co_await impl.open();
    if (refused) impl.failed(*refused);
    if (refused && impl.not_there) {
        log_info("a page is asked of all shards: database %s does not know index %s (%s)",
                 impl.database().c_str(), impl.index.name.c_str(), refused->message.c_str());
        impl.request.budget.timeout = impl.fan.left();
        instead_ = std::make_unique<Scatter>(impl.worker, std::move(impl.request), impl.gives_up);
        co_return co_await instead_->open();
    }
    impl.refusal = refused;
    co_return refused;
}

std::string_view IndexPage::columns() const {
    return instead_ ? instead_->columns() : impl_->columns;
}

Task<MergedRows::Row> IndexPage::next(std::string_view &body) {
    if (instead_) co_return co_await instead_->next(body);
    Impl &impl = *impl_;
    if (impl.refusal) co_return Row::failed;
    if (impl.given == impl.page.size()) co_return Row::end;
    const std::size_t at = impl.given++;
    ++impl.worker.scatters->returned;
    body = impl.page[at];
    // Behind the last row, in the direction of the walk, stale entries were passed.
    const bool edge = at == (impl.wish.backward ? 0 : impl.page.size() - 1);
    if (!impl.missing.empty()) {
        impl.rewrite->rewrite(impl.page[at], impl.missing, impl.row);
        body = impl.row;
    } else if (edge && !impl.edge_has_row && impl.rewrite) {
        impl.rewrite->move_cursor(impl.page[at], impl.edge_cursor, impl.row);
        body = impl.row;
    }
    co_return Row::row;
}

Refusal IndexPage::take_refusal() {
    return instead_ ? instead_->take_refusal() : *impl_->refusal;
}

const std::vector<std::string> &IndexPage::missing_shards() const {
    return instead_ ? instead_->missing_shards() : impl_->missing;
}

std::uint64_t IndexPage::rows() const {
    return instead_ ? instead_->rows() : impl_->given;
}

}  // namespace interlock
