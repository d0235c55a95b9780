#include "session/scatter_checks.h"

#include "base/log.h"

#include <algorithm>
#include <limits>

namespace interlock {

namespace {

unsigned long long number(std::uint64_t value) {
    return value;
}

Refusal over_rows(std::uint64_t rows, std::uint64_t most) {
    return make_refusal(Code::row_budget,
                        format("%llu rows would be fetched from each shard; at most %llu may be",
                               number(rows), number(most)),
                        "Ask for fewer rows at a time; the limit is the setting scatter.max_rows.");
}

std::string quoted(std::string_view name) {
    return "\"" + std::string(name) + "\"";
}

Refusal too_large(std::uint64_t size, std::uint64_t most, std::string_view keyset) {
    return make_refusal(Code::page_too_large,
                        format("a page of %llu rows is larger than the %llu that keyset %s allows",
                               number(size), number(most), quoted(keyset).c_str()),
                        "Ask for smaller pages.");
}

std::optional<Refusal> check_names(const sql::Facts &facts, std::span<const ShardFacts> shards,
                                   const std::vector<std::string> &search_path) {
    for (const ShardFacts &shard : shards) {
        if (shard.surroundings->quiet()) continue;
        auto conflict = shard.surroundings->conflict(facts, search_path);
        if (!conflict) continue;
        Refusal refusal =
            make_refusal(Code::R26,
                         format("a name in the statement could mean something else on shard %s",
                                std::string(shard.name).c_str()),
                         "Qualify the name with its schema.");
        refusal.detail = std::move(*conflict);
        return refusal;
    }
    return std::nullopt;
}

std::optional<Refusal> disagree(const KnownKeyset &keyset, std::string_view one,
                                std::string_view other) {
    Refusal refusal = make_refusal(
        Code::shards_disagree,
        format("keyset %s is not declared alike on all shards", quoted(keyset.name).c_str()),
        "Declare it on every shard with the same scope, order and collations.");
    refusal.detail = format("Its digest on shard %s is another one than on shard %s.",
                            std::string(other).c_str(), std::string(one).c_str());
    return refusal;
}

ScatterVerdict judge_page(const ScatterWish &wish, std::span<const ShardFacts> shards) {
    ScatterVerdict verdict;
    const KnownKeyset *first = nullptr;
    std::uint64_t max_page = 0;
    std::uint64_t default_page = 0;
    for (const ShardFacts &shard : shards) {
        const KnownKeyset *keyset = shard.surroundings->find_keyset(wish.keyset);
        if (keyset == nullptr) {
            verdict.stale = true;
            verdict.refusal = postgres_error(
                "42704", format("keyset %s does not exist", quoted(wish.keyset).c_str()),
                "Declare it on every shard with interlock.keyset_create().");
            verdict.refusal->detail =
                format("Shard %s has none of this name.", std::string(shard.name).c_str());
            return verdict;
        }
        if (first == nullptr) {
            first = keyset;
            max_page = keyset->max_page;
            default_page = keyset->default_page;
        }
        verdict.stale = true;
        if (keyset->digest != first->digest) {
            verdict.refusal = disagree(*first, shards[0].name, shard.name);
            return verdict;
        }
        if (!keyset->scatter) {
            verdict.refusal = make_refusal(
                Code::scatter_unsupported,
                format("keyset %s is not declared for pages across shards",
                       quoted(keyset->name).c_str()),
                "Declare it with scatter => true; texts then need COLLATE \"C\" or an ICU "
                "collation.");
            return verdict;
        }
        max_page = std::min<std::uint64_t>(max_page, keyset->max_page);
        default_page = std::min<std::uint64_t>(default_page, keyset->default_page);
    }
    const std::uint64_t size = wish.page_size.value_or(default_page);
    if (size > max_page) {
        verdict.refusal = too_large(size, max_page, wish.keyset);
        return verdict;
    }
    verdict.stale = false;
    if (size > wish.max_rows) verdict.refusal = over_rows(size, wish.max_rows);
    verdict.extent.fetch = size;
    verdict.extent.give = size;
    verdict.extent.default_page = default_page;
    return verdict;
}

ScatterVerdict judge_order(const sql::Scatter &scatter, const Table &table, const ScatterWish &wish,
                           std::span<const ShardFacts> shards) {
    ScatterVerdict verdict;
    const bool ordered = scatter.kind == sql::ScatterKind::ordered;
    for (const ShardFacts &shard : shards) {
        if (ordered && !shard.surroundings->unique_within(table, scatter.order_columns)) {
            verdict.stale = true;
            verdict.refusal = make_refusal(
                Code::not_total_order, "ORDER BY may leave rows with equal places",
                format("Let it end in the columns of a unique key of %s that are all NOT NULL.",
                       table.sql_name.c_str()));
            verdict.refusal->detail =
                format("On shard %s no unique index over NOT NULL columns, valid, immediate, "
                       "without WHERE and expressions, has all its columns in ORDER BY.",
                       std::string(shard.name).c_str());
            return verdict;
        }
        if (scatter.text_order &&
            (shard.surroundings->collations().empty() ||
             shard.surroundings->collations() != shards[0].surroundings->collations())) {
            verdict.stale = true;
            verdict.refusal = make_refusal(
                Code::shards_disagree, "the shards do not sort texts and enums alike",
                "Give all shards the same collations, ICU version included, and the same enums; or "
                "order by numbers or by COLLATE \"C\".");
            verdict.refusal->detail =
                format("The collations or enums of shard %s are others than those of shard %s.",
                       std::string(shard.name).c_str(), std::string(shards[0].name).c_str());
            return verdict;
        }
    }
    // Groups without a limit are counted where they are put together.
    verdict.extent.fetch = wish.window.rows().value_or(std::numeric_limits<std::uint64_t>::max());
    if (!ordered && !scatter.grouped) verdict.extent.fetch = 1;
    verdict.extent.skip = wish.window.offset;
    verdict.extent.give = wish.window.limit;
    return verdict;
}

}  // namespace

Result<ScatterWish, Refusal> scatter_wish(const sql::Scatter &scatter, const Values &values,
                                          std::uint64_t max_rows) {
    ScatterWish wish;
    wish.max_rows = max_rows;
    if (scatter.kind == sql::ScatterKind::keyset_page) {
        auto name = scatter_text(scatter.keyset, values, "keyset");
        if (!name) return std::move(name.error());
        if (!*name) return postgres_error("22004", "the keyset's name must not be NULL");
        wish.keyset = std::move(**name);
        auto size = scatter_integer(scatter.page_size, values, "page_size");
        if (!size) return std::move(size.error());
        if (*size && **size < 1) return postgres_error("22023", "page_size must be at least 1");
        if (*size) wish.page_size = static_cast<std::uint64_t>(**size);
        const auto backward = scatter_given(scatter.before, values);
        if (!backward) return backward.error();
        wish.backward = *backward;
        return wish;
    }
    auto window = scatter_window(scatter, values);
    if (!window) return std::move(window.error());
    wish.window = *window;
    const bool bounded = scatter.kind == sql::ScatterKind::ordered;
    if (bounded && wish.window.rows().value_or(0) > max_rows)
        return over_rows(*wish.window.rows(), max_rows);
    return wish;
}

ScatterVerdict judge_scatter(const sql::Facts &facts, const Table &table, const ScatterWish &wish,
                             std::span<const ShardFacts> shards,
                             const std::vector<std::string> &search_path) {
    if (auto refused = check_names(facts, shards, search_path)) {
        ScatterVerdict verdict;
        verdict.refusal = std::move(refused);
        return verdict;
    }
    const sql::Scatter &scatter = *facts.scatter;
    return scatter.kind == sql::ScatterKind::keyset_page
               ? judge_page(wish, shards)
               : judge_order(scatter, table, wish, shards);
}

Refusal equal_places(const std::string &one, const std::string &other) {
    Refusal refusal =
        make_refusal(Code::not_total_order, "two rows of the answer have equal places",
                     "Let the order end in columns that are unique over all shards: the sharded "
                     "key among them.");
    refusal.detail = format("A row of shard %s has the same sort key as one of shard %s.",
                            other.c_str(), one.c_str());
    return refusal;
}

Refusal bad_key(KeyFault fault, const std::string &shard) {
    switch (fault) {
    case KeyFault::digest:
        return make_refusal(
            Code::shards_disagree,
            format("the keyset of shard %s is another one than on the other shards", shard.c_str()),
            "Declare it on every shard with the same scope, order and collations.");
    case KeyFault::falls:
        return make_refusal(
            Code::shards_disagree,
            format("the rows of shard %s are not sorted by their sort keys", shard.c_str()),
            "An index of the shard may be damaged, or its collations changed since "
            "it was built: see REINDEX.");
    case KeyFault::repeats: return equal_places(shard, shard);
    default:
        return make_refusal(Code::shards_disagree,
                            format("a row of shard %s has no sort key", shard.c_str()));
    }
}

std::optional<Refusal> judge_defaults(const std::shared_ptr<const LoginDefaults> &judged,
                                      const std::shared_ptr<const LoginDefaults> &begun) {
    if (!judged || judged == begun || judged->search_path() == begun->search_path())
        return std::nullopt;
    return make_refusal(Code::R30, "the login's search_path has just changed",
                        "Nothing was done; it is safe to send the statement again.");
}

std::optional<Refusal> judge_names(const sql::Facts &facts, const ShardFacts &shard,
                                   const std::vector<std::string> &search_path) {
    return check_names(facts, {&shard, 1}, search_path);
}

ScatterVerdict judge_index_rows(const ScatterWish &wish, std::string_view digest,
                                const ShardFacts &shard, std::string_view database) {
    ScatterWish any = wish;
    any.page_size = 1;
    ScatterVerdict verdict = judge_page(any, {&shard, 1});
    if (verdict.refusal || digest.empty()) return verdict;
    const KnownKeyset &keyset = *shard.surroundings->find_keyset(wish.keyset);
    if (keyset.digest == digest) return verdict;
    verdict.stale = true;
    verdict.refusal = make_refusal(
        Code::shards_disagree,
        format("keyset %s is another one on shard %s than in its index",
               quoted(keyset.name).c_str(), std::string(shard.name).c_str()),
        "Let `interlock apply` declare both; columns, order, types and collations must be alike.");
    verdict.refusal->detail =
        format("Its digest there is another one than that of the index in database %s.",
               std::string(database).c_str());
    return verdict;
}

ScatterVerdict judge_index_page(const ScatterWish &wish, const GlobalIndex &index) {
    ScatterVerdict verdict;
    const std::uint64_t size = wish.page_size.value_or(index.default_page);
    if (size > index.max_page)
        verdict.refusal = too_large(size, index.max_page, wish.keyset);
    else if (size > wish.max_rows)
        verdict.refusal = over_rows(size, wish.max_rows);
    verdict.extent.fetch = size;
    verdict.extent.give = size;
    return verdict;
}

}  // namespace interlock
