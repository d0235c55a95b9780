// Pages of a keyset on the line listener: the one statement of the `strict` profile that goes
// to all shards, or to a global index and the shards of its entries.
#include "base/log.h"
#include "route/key.h"
#include "session/merged_rows.h"
#include "session/scatter_budget.h"
#include "session/session.h"

#include <array>

namespace interlock {

namespace {

constexpr std::uint32_t jsonb = 3802;
// keyset, scope, after, before, page_size: the row type between the first two is no parameter.
constexpr std::array<std::uint32_t, 5> types{oid::text, jsonb, oid::text, oid::text, oid::int4};
constexpr std::size_t page_size = 4;

// The extension's own codes, raised on a shard, read as the router's.
void name_code(Refusal &refusal) {
    if (refusal.code != Code::R31) return;
    for (const Code code : {Code::bad_cursor, Code::page_too_large, Code::not_total_order})
        if (refusal.sqlstate == code_entry(code).sqlstate) refusal.code = code;
}

}  // namespace

std::optional<Refusal> Session::judge_page(const sql::Statement &statement,
                                           std::span<const Parameter> parameters) const {
    if (parameters.size() != statement.parameters.size())
        return make_refusal(Code::R27,
                            format("parameters sent: %zu, placeholders in the statement: %zu",
                                   parameters.size(), statement.parameters.size()));
    if (!parameters[0]) return make_refusal(Code::R27, "the keyset's name is NULL");
    if (parameters.size() > page_size && parameters[page_size] &&
        !parse_integer(*parameters[page_size], INT32_MIN, INT32_MAX))
        return make_refusal(Code::R27, "the page size is not an integer");
    return std::nullopt;
}

Task<Reply> Session::run_page(std::shared_ptr<const sql::Statement> statement,
                              std::span<const Parameter> parameters, RowSink &sink) {
    const std::shared_ptr<const Routes> routes = routes_in_use();
    Reply answer = reply();
    if (auto wrong = judge_page(*statement, parameters)) co_return co_await refuse(*wrong);
    if (transaction_ == Transaction::failed)
        co_return refuse_failed(std::move(answer),
                                "the transaction has failed; its statements are ignored");
    if (pinned_)
        co_return co_await refuse(make_refusal(
            Code::scatter_unsupported,
            format("the transaction is on shard %s, a page comes from all shards",
                   routes->table->shards[pinned_shard_].name.c_str()),
            "Ask for it before the transaction's first data statement, or outside of it."));
    if (transaction_ == Transaction::none && worker_.stopping())
        co_return co_await refuse(
            make_refusal(Code::R30, "the router is shutting down",
                         "Nothing was done; connect to another router, or try again."));

    ScatterRequest request;
    request.facts = statement->facts;
    request.text = statement->text;
    request.types.assign(types.begin(),
                         types.begin() + static_cast<std::ptrdiff_t>(statement->parameters.size()));
    for (std::size_t i = 0; i < parameters.size(); ++i)
        request.parameters.push_back({parameters[i], false, types[i]});
    request.routes = routes;
    const auto nothing_set = [](std::string_view) -> const std::string * { return nullptr; };
    request.budget =
        session_budget(*statement->facts->scatter, worker_.settings(), nothing_set).budget;

    const std::unique_ptr<MergedRows> page =
        merged_rows(worker_, std::move(request), nullptr, client_);
    auto refused = co_await page->open();
    if (!refused) {
        sink.describe(page->columns());
        std::string_view row;
        MergedRows::Row next = MergedRows::Row::row;
        while (!refused && (next = co_await page->next(row)) == MergedRows::Row::row)
            if (!sink.row(row))
                refused = make_refusal(
                    Code::R37, "the answer is larger than the router allows",
                    "Ask for fewer rows; the limits are the settings limits.max_result_bytes and "
                    "limits.max_buffered_bytes.");
        if (next == MergedRows::Row::failed) refused = page->take_refusal();
    }
    if (refused) {
        name_code(*refused);
        co_return co_await refuse(std::move(*refused));
    }
    answer.shard = "*";
    answer.tag = "SELECT";
    answer.count = page->rows();
    co_return answer;
}

}  // namespace interlock
