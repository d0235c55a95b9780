#include "session/scatter.h"

#include "base/log.h"
#include "plan/scatter_values.h"
#include "session/scatter_aggregate.h"
#include "session/scatter_checks.h"
#include "session/scatter_fan.h"
#include "session/scatter_merge.h"
#include "session/scatter_page.h"
#include "session/scatter_request.h"
#include "session/scatter_row.h"

#include <algorithm>
#include <utility>

namespace interlock {

namespace {

using State = ShardStream::State;
using sql::ScatterKind;

}  // namespace

struct Scatter::Impl {
    Impl(Worker &the_worker, ScatterRequest &&the_request, Event *gave_up)
        : worker(the_worker), request(std::move(the_request)), scatter(*request.facts->scatter),
          fan(worker.loop(), request.budget.timeout, gave_up) {}
    ~Impl() { worker.buffered_bytes -= held_bytes; }

    Task<std::optional<Refusal>> open();
    Task<std::optional<Refusal>> lend();
    Task<std::optional<Refusal>> ask();
    bool any_ready();
    std::optional<Refusal> check_defaults();
    ScatterVerdict judge();
    std::optional<Refusal> describe();

    Task<bool> step(std::size_t &stream);
    bool take_head(std::size_t stream);
    bool alone(std::size_t stream);
    Task<Row> next_streamed(std::string_view &body);
    Task<bool> hold_page();
    Task<Row> next_held(std::string_view &body);
    Task<bool> aggregate_all();
    Task<bool> combine();
    Row give(std::string_view row, std::string_view &body);
    Row end();
    bool fail(Refusal why) {
        refusal = std::move(why);
        return false;
    }
    void failed(const Refusal &why);

    Worker &worker;
    const ScatterRequest request;
    const sql::Scatter &scatter;
    ShardFan fan;
    ScatterWish wish;
    ScatterExtent extent;
    std::shared_ptr<const ShardRequest> sent;  ///< null: nothing was

    std::string columns;
    std::uint16_t visible = 0;
    bool keyed = true;  ///< false: one row from each shard, in any order
    std::string digest;
    MergeOrder order{0};
    std::vector<KeyCheck> keys;
    std::size_t taken =
        MergeOrder::none;                 ///< the stream whose head was used, and is to be replaced
    std::size_t last = MergeOrder::none;  ///< the stream of the last row
    std::string last_key;
    std::string row;
    std::uint64_t merged = 0;
    std::uint64_t given = 0;
    bool ended = false;
    std::optional<Refusal> refusal;
    std::vector<std::string> missing;

    bool whole = false;  ///< the page is held until its last row has come
    std::optional<LastRows> held;
    std::size_t held_bytes = 0;
    std::size_t held_given = 0;
    std::optional<PageRewrite> rewrite;
    std::optional<AggregateMerge> aggregate;
};

// Up to the descriptions --------------------------------------------------------------------------

Task<std::optional<Refusal>> Scatter::Impl::open() {
    const RouteTable &table = *request.routes->table;
    if (worker.stopping() && request.prologue.empty())
        co_return make_refusal(Code::R30, "the router is shutting down",
                               "Nothing was done; connect to another router, or try again.");
    const auto shards = shards_of_keyspace(table, table.tables[scatter.table].keyspace);
    const ScatterBudget &budget = request.budget;
    if (budget.max_fan_out != 0 && shards.size() > budget.max_fan_out)
        co_return make_refusal(
            Code::fanout_exceeded,
            format("the statement would go to %zu shards; at most %u may be asked", shards.size(),
                   budget.max_fan_out),
            "The limits are the setting scatter.max_fan_out of the router and "
            "interlock.max_fan_out of the session.");
    auto wished = scatter_wish(scatter, Values{request.text, request.literals, request.parameters},
                               budget.max_rows);
    if (!wished) co_return std::move(wished.error());
    wish = std::move(*wished);

    std::vector<std::shared_ptr<ShardStream>> streams;
    for (const ShardIndex shard : shards)
        streams.push_back(
            std::make_shared<ShardStream>(worker, request.routes, request.login, shard));
    fan.begin(std::move(streams), request.budget.partial &&
                                      scatter.kind == ScatterKind::keyset_page &&
                                      !scatter.page.in_expressions);
    if (auto refused = co_await lend()) co_return refused;
    if (auto refused = co_await ask()) co_return refused;
    co_return describe();
}

// A backend of every shard, and nothing known against the statement. A page that may do without
// some waits half of its time for their backends: the others need time to answer, too.
Task<std::optional<Refusal>> Scatter::Impl::lend() {
    Millis part = fan.partial() ? fan.half() : 0;
    for (bool asked_again = false;;) {
        for (;;) {
            const ShardFan::Wait waited = co_await fan.wait(part);
            if (waited == ShardFan::Wait::over) co_return std::move(fan.refusal());
            if (waited == ShardFan::Wait::settled) break;
            if (part != 0) part = fan.half();
        }
        if (!any_ready()) {
            part = 0;  // nobody to go on with
            continue;
        }
        if (auto refused = check_defaults()) co_return refused;
        ScatterVerdict verdict = judge();
        if (!verdict.refusal) {
            extent = std::move(verdict.extent);
            co_return std::nullopt;
        }
        if (!verdict.stale || asked_again) co_return std::move(verdict.refusal);
        asked_again = true;
        for (std::size_t i = 0; i < fan.size(); ++i)
            if (fan[i].state() == State::ready) fan[i].learn();
    }
}

bool Scatter::Impl::any_ready() {
    for (std::size_t i = 0; i < fan.size(); ++i)
        if (fan[i].state() == State::ready) return true;
    return false;
}

std::optional<Refusal> Scatter::Impl::check_defaults() {
    for (std::size_t i = 0; i < fan.size(); ++i)
        if (fan[i].state() == State::ready)
            if (auto refused = judge_defaults(request.defaults, fan[i].backend().defaults()))
                return refused;
    return std::nullopt;
}

ScatterVerdict Scatter::Impl::judge() {
    std::vector<ShardFacts> shards;
    for (std::size_t i = 0; i < fan.size(); ++i) {
        const State state = fan[i].state();
        if (!fan.missing(i) && state != State::lending && state != State::failed)
            shards.push_back({fan[i].name(), &fan[i].backend().surroundings()});
    }
    return judge_scatter(*request.facts, request.routes->table->tables[scatter.table], wish, shards,
                         request.search_path);
}

// Sends to all, and waits until each has a row, or none. Backends that come late (of a page that
// may do without them) are judged like the others and asked, too.
Task<std::optional<Refusal>> Scatter::Impl::ask() {
    sent = shard_request(request, extent);
    if (sent->frames.size() > worker.settings().max_buffered_bytes / fan.size())
        co_return make_refusal(Code::R37,
                               "the statement and its parameters are too large for so many shards",
                               "The limit is the setting limits.max_buffered_bytes.");
    for (;;) {
        for (std::size_t i = 0; i < fan.size(); ++i) {
            if (fan.missing(i) || fan[i].state() != State::ready) continue;
            if (auto refused = check_defaults()) co_return refused;
            ScatterVerdict verdict = judge();
            if (verdict.refusal) co_return std::move(verdict.refusal);
            if (verdict.extent.fetch != extent.fetch)
                co_return make_refusal(Code::shards_disagree,
                                       "the shards have other default page sizes",
                                       "Give a page_size.");
            for (std::size_t j = i; j < fan.size(); ++j)
                if (!fan.missing(j) && fan[j].state() == State::ready) fan[j].ask(sent);
        }
        const ShardFan::Wait waited = co_await fan.wait();
        if (waited == ShardFan::Wait::over) co_return std::move(fan.refusal());
        if (waited == ShardFan::Wait::settled) co_return std::nullopt;
    }
}

std::optional<Refusal> Scatter::Impl::describe() {
    std::size_t first = MergeOrder::none;
    for (std::size_t i = 0; i < fan.size(); ++i) {
        if (fan.missing(i)) continue;
        if (first == MergeOrder::none) {
            first = i;
            continue;
        }
        const std::string difference =
            describe_difference(fan[first].description(), fan[i].description());
        if (difference.empty()) continue;
        Refusal refused =
            make_refusal(Code::shards_disagree, "the shards answer with other columns",
                         "Give the tables the same columns and types on every shard.");
        refused.detail = format("On shards %s and %s: %s.", fan[first].name().c_str(),
                                fan[i].name().c_str(), difference.c_str());
        return refused;
    }
    const std::string &description = fan[first].description();
    columns = visible_description(description, scatter.hidden);
    visible = wire::load16(columns.data());
    if (scatter.kind == ScatterKind::aggregate) {
        AggregateBounds bounds;
        bounds.max_groups = wish.max_rows;
        bounds.max_bytes = worker.settings().pg_max_packet;
        bounds.limit = extent.give;
        bounds.offset = extent.skip;
        aggregate.emplace(scatter, bounds);
        keyed = scatter.grouped;
        if (auto refused = aggregate->describe(description)) return refused;
    }
    if (fan.partial()) {
        rewrite = PageRewrite::find(scatter.page, columns);
        if (!rewrite && fan.any_missing()) return fan.first_loss();
        if (!rewrite) fan.forbid_partial();
    }
    whole = wish.backward || fan.partial();
    if (whole) held.emplace(extent.give.value_or(0));

    order = MergeOrder(fan.size());
    keys.resize(fan.size());
    for (std::size_t i = 0; i < fan.size(); ++i)
        if (!take_head(i)) return std::move(*refusal);
    return std::nullopt;
}

// The merge ---------------------------------------------------------------------------------------

// The stream's head is a new one, or none.
bool Scatter::Impl::take_head(std::size_t stream) {
    if (fan.missing(stream) || fan[stream].state() == State::end) {
        order.end(stream);
        return true;
    }
    if (!keyed) {
        order.head(stream, {});
        return true;
    }
    const std::string_view key = fan[stream].key();
    const bool page = scatter.kind == ScatterKind::keyset_page;
    if (page && digest.empty()) digest = key.substr(0, keyset_digest_digits);
    const KeyFault fault = page && key.size() < keyset_digest_digits
                               ? KeyFault::malformed
                               : keys[stream].take(key, digest);
    if (fault != KeyFault::none) return fail(bad_key(fault, fan[stream].name()));
    order.head(stream, key);
    return true;
}

// The stream that has the next row; none at the end. Its row is used up by the next call.
Task<bool> Scatter::Impl::step(std::size_t &stream) {
    if (taken != MergeOrder::none) {
        ShardStream &used = fan[taken];
        used.pop();
        if (used.state() == State::waiting || used.state() == State::failed) {
            if (!co_await fan.pull(taken)) co_return fail(std::move(fan.refusal()));
        }
        if (!take_head(taken)) co_return false;
        taken = MergeOrder::none;
    }
    stream = order.least();
    if (stream == MergeOrder::none) co_return true;
    // The rows of a group, of all shards, stand together; other rows are alone.
    if (scatter.kind != ScatterKind::aggregate) {
        if (last != MergeOrder::none && order.key(stream) == last_key)
            co_return fail(equal_places(fan[last].name(), fan[stream].name()));
        last_key.assign(order.key(stream));
        last = stream;
    }
    taken = stream;
    ++merged;
    co_return true;
}

// No other shard's head has the same key.
bool Scatter::Impl::alone(std::size_t stream) {
    const std::size_t rival = order.rival();
    return rival == MergeOrder::none || fail(equal_places(fan[stream].name(), fan[rival].name()));
}

Task<Scatter::Row> Scatter::Impl::next_streamed(std::string_view &body) {
    for (;;) {
        if (extent.give && given >= *extent.give) co_return end();
        std::size_t stream = MergeOrder::none;
        if (!co_await step(stream)) co_return Row::failed;
        if (stream == MergeOrder::none) co_return end();
        if (merged <= extent.skip) continue;
        // What is behind the cut is never looked at: an equal key there would go unnoticed.
        if (extent.give && given + 1 == *extent.give && !alone(stream)) co_return Row::failed;
        visible_row(fan[stream].row(), fan[stream].parts(), visible, row);
        co_return give(row, body);
    }
}

// The whole page, before its first row is given out: its beginning, or whether it is complete, is
// known only at its end.
Task<bool> Scatter::Impl::hold_page() {
    for (;;) {
        if (!wish.backward && merged >= *extent.give) co_return true;
        std::size_t stream = MergeOrder::none;
        if (!co_await step(stream)) co_return false;
        if (stream == MergeOrder::none) co_return true;
        if (!wish.backward && merged == *extent.give && !alone(stream)) co_return false;
        visible_row(fan[stream].row(), fan[stream].parts(), visible, row);
        held->add(row);
        worker.buffered_bytes += held->bytes();
        worker.buffered_bytes -= held_bytes;
        held_bytes = held->bytes();
        if (worker.buffered_bytes > worker.settings().max_buffered_bytes)
            co_return fail(make_refusal(Code::R37, "the page is larger than the router allows",
                                        "Ask for smaller pages; the limit is the setting "
                                        "limits.max_buffered_bytes."));
    }
}

Task<Scatter::Row> Scatter::Impl::next_held(std::string_view &body) {
    if (held_given == 0 && given == 0) {
        if (!co_await hold_page()) co_return Row::failed;
        missing = fan.missing_names();
        if (!missing.empty()) ++worker.scatters->partial;
        fan.abandon(true);
    }
    if (held_given == held->size()) co_return end();
    const std::string_view next = (*held)[held_given++];
    if (missing.empty()) co_return give(next, body);
    rewrite->rewrite(next, missing, row);
    co_return give(row, body);
}

Task<bool> Scatter::Impl::aggregate_all() {
    for (;;) {
        std::size_t stream = MergeOrder::none;
        if (!co_await step(stream)) co_return false;
        if (stream == MergeOrder::none) break;
        if (auto refused = aggregate->add(fan[stream].row())) co_return fail(std::move(*refused));
    }
    co_return co_await combine();
}

// What only PostgreSQL can add up, on the first shard.
Task<bool> Scatter::Impl::combine() {
    ShardStream &shard = fan[0];
    while (aggregate->request(shard.backend().out())) {
        shard.ask_more();
        for (;;) {
            if (!co_await fan.pull(0)) co_return fail(std::move(fan.refusal()));
            if (shard.state() != State::row) break;
            if (auto refused = aggregate->take(shard.row())) co_return fail(std::move(*refused));
            shard.pop();
        }
        if (auto refused = aggregate->answered()) co_return fail(std::move(*refused));
    }
    fan.abandon(true);
    co_return true;
}

Scatter::Row Scatter::Impl::give(std::string_view next, std::string_view &body) {
    ++given;
    ++worker.scatters->returned;
    body = next;
    return Row::row;
}

Scatter::Row Scatter::Impl::end() {
    ended = true;
    fan.abandon(true);
    return Row::end;
}

// A keyset may have been declared anew since the backends were told of it: another largest page,
// another order, or none at all.
void Scatter::Impl::failed(const Refusal &why) {
    ++worker.scatters->failed;
    const std::string_view state = why.state();
    const bool belied = state == code_entry(Code::page_too_large).sqlstate ||
                        state == code_entry(Code::shards_disagree).sqlstate || state == "42704";
    if (sent && belied && scatter.kind == ScatterKind::keyset_page)
        for (std::size_t i = 0; i < fan.size(); ++i)
            if (!fan.missing(i)) fan[i].forget_keysets();
    fan.abandon(false);
}

// Scatter -----------------------------------------------------------------------------------------

Scatter::Scatter(Worker &worker, ScatterRequest request, Event *gave_up)
    : impl_(std::make_unique<Impl>(worker, std::move(request), gave_up)) {}

Scatter::~Scatter() = default;

Task<std::optional<Refusal>> Scatter::open() {
    ++impl_->worker.scatters->started;
    auto refused = co_await impl_->open();
    if (refused) impl_->failed(*refused);
    co_return refused;
}

std::string_view Scatter::columns() const {
    return impl_->columns;
}

Task<Scatter::Row> Scatter::next(std::string_view &body) {
    Impl &impl = *impl_;
    if (impl.ended) co_return impl.refusal ? Row::failed : Row::end;
    Row result = Row::failed;
    if (impl.aggregate) {
        const bool first = impl.given == 0;
        if (!first || co_await impl.aggregate_all()) {
            std::string_view row;
            result = impl.aggregate->next(row) ? impl.give(row, body) : impl.end();
        }
    } else if (impl.whole) {
        result = co_await impl.next_held(body);
    } else {
        result = co_await impl.next_streamed(body);
    }
    if (result == Row::failed && !std::exchange(impl.ended, true)) impl.failed(*impl.refusal);
    co_return result;
}

Refusal Scatter::take_refusal() {
    return *impl_->refusal;
}

const std::vector<std::string> &Scatter::missing_shards() const {
    return impl_->missing;
}

std::uint64_t Scatter::rows() const {
    return impl_->given;
}

}  // namespace interlock
