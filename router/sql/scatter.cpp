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

// A SELECT: of one shard if that can be proven, else of all of them.
bool Analyser::read(const Node *node) {
    const PgQuery__SelectStmt &statement = *node->select_stmt;
    if (ScatterAnalysis::page_of(statement) != nullptr) return scatter(statement);
    if (query(node, nullptr, nullptr, {}, nullptr)) return true;
    if (refusal.code != Code::R10) return false;
    Refusal single = std::move(refusal);
    const bool allowed_by_tables =
        !facts.tables.empty() &&
        std::all_of(facts.tables.begin(), facts.tables.end(),
                    [&](std::uint32_t table) { return names_.routes.tables[table].scatter; });
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
    if (hints_.scatter || allowed_by_tables) return false;
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
