#include "sql/scatter.h"

#include "sql/scatter_analysis.h"

#include <algorithm>

namespace interlock::sql {

std::string edited(std::string_view text, const std::vector<TextEdit> &edits) {
    std::string result;
    std::size_t at = 0;
    for (const TextEdit &edit : edits) {
        result.append(text.substr(at, edit.offset - at)).append(edit.text);
        at = std::size_t{edit.offset} + edit.length;
    }
    return result.append(text.substr(at));
}

/// As far as the statement and the catalog say: a hint, or all the tables that were seen.
bool Analyser::scatter_allowed() const {
    return hints_.scatter ||
           (!facts.tables.empty() &&
            std::all_of(facts.tables.begin(), facts.tables.end(),
                        [&](std::uint32_t table) { return names_.routes.tables[table].scatter; }));
}

// A query inside another statement: all shards answer SELECTs by themselves only.
bool Analyser::wrapped(const Node *inner, const char *what, const char *hint) {
    if (query(inner, nullptr, nullptr, {}, nullptr)) return true;
    if (inner->node_case != PG_QUERY__NODE__NODE_SELECT_STMT) return false;
    const bool page = ScatterAnalysis::page_of(*inner->select_stmt) != nullptr;
    if (!page && refusal.code != Code::R10) return false;
    Refusal scattered =
        make_refusal(Code::scatter_unsupported,
                     std::string(what) + " of a statement that all shards answer", hint);
    scattered.position = position(static_cast<int>(offset_));
    if (page || scatter_allowed())
        refusal = std::move(scattered);
    else
        refusal.as_scatter = std::make_shared<const Refusal>(std::move(scattered));
    return false;
}

// A SELECT: of one shard if that can be proven, else of all of them.
bool Analyser::read(const Node *node) {
    const PgQuery__SelectStmt &statement = *node->select_stmt;
    if (ScatterAnalysis::page_of(statement) != nullptr) return scatter(statement);
    if (query(node, nullptr, nullptr, {}, nullptr)) return true;
    if (refusal.code != Code::R10) return false;
    Refusal single = std::move(refusal);
    const bool allowed = scatter_allowed();
    if (scatter(statement)) {
        const Scatter &found = *facts.scatter;
        if (found.allowed_by_hint || found.allowed_by_table) return true;
        auto scattered = std::make_shared<Scatter>(found);
        single.hint += " Or let all shards answer: write /* interlock: scatter */ before the "
                       "statement, or SET interlock.scatter = on.";
        scattered->unless_allowed = std::make_shared<const Refusal>(std::move(single));
        facts.scatter = std::move(scattered);
        return true;
    }
    if (allowed) return false;
    single.as_scatter = std::make_shared<const Refusal>(std::move(refusal));
    refusal = std::move(single);
    return false;
}

// From a clean slate: what the attempt at one shard has noted does not count.
bool Analyser::scatter(const PgQuery__SelectStmt &statement) {
    facts = {};
    facts.returns_rows = true;
    refusal = {};
    relations_ = 0;
    emitted_.clear();
    parameters_.clear();
    ScatterAnalysis analysis(*this, statement);
    return ScatterAnalysis::page_of(statement) != nullptr ? analysis.page() : analysis.rows();
}

}  // namespace interlock::sql
