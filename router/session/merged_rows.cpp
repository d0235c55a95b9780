#include "session/merged_rows.h"

#include "base/log.h"
#include "plan/index_choice.h"
#include "session/client_end.h"
#include "session/index_page.h"
#include "session/route_patience.h"
#include "session/scatter.h"

#include <algorithm>

namespace interlock {

namespace {

bool same(const Table &a, const Table &b) {
    return a.schema == b.schema && a.name == b.name && a.sql_name == b.sql_name &&
           a.keyspace == b.keyspace && a.key_column == b.key_column && a.key_type == b.key_type &&
           a.version_column == b.version_column && a.scatter == b.scatter &&
           std::ranges::equal(a.columns, b.columns, [](const Column &x, const Column &y) {
               return x.name == y.name && x.sql_name == y.sql_name && x.type_oid == y.type_oid;
           });
}

// Whether what was found out about a statement under one of them holds under the other: the same
// things at the same positions. Only buckets may be elsewhere.
bool declare_the_same(const RouteTable &a, const RouteTable &b) {
    const auto same_shard = [](const Shard &x, const Shard &y) {
        return x.name == y.name && x.index_only == y.index_only;
    };
    const auto same_keyspace = [](const Keyspace &x, const Keyspace &y) {
        return x.name == y.name && x.family == y.family && x.buckets == y.buckets;
    };
    return a.cluster_id == b.cluster_id && a.functions == b.functions &&
           std::ranges::equal(a.shards, b.shards, same_shard) &&
           std::ranges::equal(a.keyspaces, b.keyspaces, same_keyspace) &&
           std::ranges::equal(a.tables, b.tables, same);
}

std::unique_ptr<MergedRows> make_rows(Worker &worker, ScatterRequest request, Event *gave_up) {
    const sql::Scatter &scatter = *request.facts->scatter;
    const Values values{request.text, request.literals, request.parameters};
    if (const GlobalIndex *index = choose_index(scatter, values, *request.routes->table).index)
        return std::make_unique<IndexPage>(worker, std::move(request), *index, gave_up);
    return std::make_unique<Scatter>(worker, std::move(request), gave_up);
}

/// Rows under whatever routes hold. The shards have no common snapshot, so an answer is exact only
/// if all of it was read under one route version; a part that was refused makes all of it void.
class RoutedRows final : public MergedRows {
  public:
    RoutedRows(Worker &worker, ScatterRequest request, Event *gave_up, ClientEnd *client)
        : worker_(worker), request_(std::move(request)), gave_up_(gave_up), client_(client) {}

    Task<std::optional<Refusal>> open() override {
        const Millis began = worker_.loop().now();
        const Millis time = request_.budget.timeout;
        for (;;) {
            const Millis spent = worker_.loop().now() - began;
            if (time > 0) request_.budget.timeout = std::max<Millis>(1, time - spent);
            rows_ = make_rows(worker_, request_, gave_up_);
            auto refused = co_await rows_->open();
            if (!refused) co_return refused;
            const RouteRefusal kind = route_refusal_of(refused->state());
            if (kind == RouteRefusal::none) co_return refused;
            rows_.reset();
            if (patience_.begin(worker_) && time > 0 && began + time < patience_.until) {
                patience_.until = began + time;
                bounded_by_budget_ = true;
            }
            if (auto over = co_await wait(kind, *refused)) co_return over;
            ++worker_.moves.resent;
        }
    }
    std::string_view columns() const override { return rows_->columns(); }
    Task<Row> next(std::string_view &body) override { return rows_->next(body); }
    Refusal take_refusal() override {
        Refusal refusal = rows_->take_refusal();
        const RouteRefusal kind = route_refusal_of(refusal.state());
        return kind == RouteRefusal::none ? refusal : told(kind, refusal);
    }
    const std::vector<std::string> &missing_shards() const override {
        return rows_ ? rows_->missing_shards() : none_;
    }
    std::uint64_t rows() const override { return rows_ ? rows_->rows() : 0; }

  private:
    Refusal told(RouteRefusal kind, const Refusal &refusal) {
        ++worker_.moves.failed;
        return told_route_refusal(
            kind, {refusal.sqlstate, refusal.message, refusal.detail, refusal.hint, false});
    }

    /// Until there is reason to ask again. Else what to tell.
    Task<std::optional<Refusal>> wait(RouteRefusal kind, const Refusal &refused) {
        const std::shared_ptr<const Routes> seen = request_.routes;
        const bool stop = request_.prologue.empty();
        const BackendError error{refused.sqlstate, refused.message, refused.detail, refused.hint,
                                 false};
        const ClientEnd::Listening client(gave_up_ == nullptr ? client_ : nullptr);
        Event *const gave_up = gave_up_ != nullptr ? gave_up_ : client.gone();
        const bool again =
            co_await patience_.await(worker_, seen.get(), kind, error, false, stop, gave_up);
        if (gave_up != nullptr && gave_up->is_set())
            co_return gave_up == gave_up_
                ? postgres_error("57014", "canceling statement due to user request")
                : client_left();
        if (again) {
            // What is known of the statement speaks of positions in the table it was found under.
            if (!declare_the_same(*worker_.routes()->table, *seen->table))
                co_return told(kind, refused);
            request_.routes = worker_.routes();
            co_return std::nullopt;
        }
        if (stop && worker_.stopping())
            co_return make_refusal(Code::R30, "the router is shutting down",
                                   "Nothing was done; connect to another router, or try again.");
        if (bounded_by_budget_) {
            Refusal late = make_refusal(
                Code::shard_timeout, "the statement's time was up before newer routes came",
                "Nothing was changed; it is safe to try again, with more time if need be.");
            late.detail = refused.message;
            co_return late;
        }
        co_return told(kind, refused);
    }

    Worker &worker_;
    ScatterRequest request_;
    Event *gave_up_;
    ClientEnd *client_;
    RoutePatience patience_;
    bool bounded_by_budget_ = false;
    std::unique_ptr<MergedRows> rows_;  ///< null when open() has failed while it waited
    const std::vector<std::string> none_;
};

}  // namespace

std::unique_ptr<MergedRows> merged_rows(Worker &worker, ScatterRequest request, Event *gave_up,
                                        ClientEnd *client) {
    return std::make_unique<RoutedRows>(worker, std::move(request), gave_up, client);
}

std::optional<Refusal> MergedRows::notice() const {
    const std::vector<std::string> &missing = missing_shards();
    if (missing.empty()) return std::nullopt;
    std::string quoted;
    std::string plain;
    for (const std::string &name : missing) {
        quoted += (quoted.empty() ? "\"" : ", \"") + name + "\"";
        plain += (plain.empty() ? "" : ", ") + name;
    }
    Refusal notice =
        make_refusal(Code::shard_timeout, format("page is incomplete: no answer from shard%s %s",
                                                 missing.size() == 1 ? "" : "s", quoted.c_str()));
    notice.detail = "missing_shards: " + plain;
    return notice;
}

}  // namespace interlock
