// The analysis of a text: what may be asked of it, and the rules of the proof.
//
// A statement lives on one shard if each of its sharded tables can be replaced by the rows of that
// table whose shard key is one of some constants, without changing what the statement does, and the
// constants lead to one shard. Such a table is called pinned.
//
// 1. Facts. A conjunct of WHERE, or of the ON (USING, NATURAL) of a join, of the form
//       column = constant        column IN (constants)       column = ANY (array)
//       column = column          column IN (sub-select)      (columns) = (constants), IN
//    with the built-in "=", is strict: it does not hold where a column is NULL. A fact at qualifier
//    Q may pin relation r if r is below Q and not on a side of Q whose rows are kept whether Q
//    holds or not: WHERE and inner ON may pin all below, LEFT the right arm, RIGHT the left arm,
//    FULL none. (Design, decision 6, speaks of ON conditions of outer joins: what they cannot pin
//    is the preserved side. The other side they can: see 2.)
// 2. Why. Let x be a column of r, and Q say x = c, or x = y where y is NULL or one of K already.
//    A combination of rows that meets Q has x in K. Take the rows of r with x outside K away: no
//    combination that meets Q is lost. New combinations can only be ones in which an outer join
//    below Q finds no partner any more and puts NULLs in r's place; they fail Q, since Q is strict.
//    Since r is not on a preserved side of Q, only what meets Q leaves Q. So nothing changes above
//    Q, and the argument can be repeated with r replaced: facts may be used one after another, in
//    any order, from the constants on.
// 3. Equality is equality of values only within a family of types (integers; uuid; text and
//    varchar; bytea): there "=" compares without loss and is transitive. float, numeric, bpchar and
//    name columns are no links. text columns other than shard keys may have a nondeterministic
//    collation, so they are no links either.
//    The type of a parameter is the server's affair until it is bound, and follows from all the
//    places where it stands; so each of them must agree (parameters.cpp).
// 4. A sub-select in FROM, an arm of a set operation, a WITH query is judged by itself. Its output
//    columns that are pinned columns or constants hold one of the constants, or NULL, in each row;
//    so do the columns of VALUES lists. A sub-select in an expression, or a LATERAL one, is
//    judged for one row of the outer query, whose pinned columns are constants there.
// 5. Aggregates, windows, DISTINCT, LIMIT and the like work on rows that are already the right
//    ones.
// 6. Names mean to the router what they mean to the server: Facts::relation_names, function_names
//    and operator_names say which were looked up along the search path. Functions must be built in
//    and harmless or declared. "row.name" and "(expression).name" can be calls too.
// 7. Whatever is not known is refused.
//
// What this rests on: the columns of sharded tables are those the catalog has recorded, and a key
// column's collation is deterministic (`interlock apply` checks both).
#include "sql/analysis.h"

#include "sql/analyser.h"
#include "sql/deep_stack.h"
#include "sql/parse_limits.h"
#include "sql/parser.h"
#include "sql/raw_tokens.h"
#include "sql/strict_scanner.h"

#include <algorithm>

namespace interlock::sql {

namespace {

/// Beyond this depth the parser's stack is worth giving back.
constexpr std::uint32_t deep = 100;

/// Characters before a byte of the text, from 1.
int character_position(std::string_view text, std::size_t byte) {
    const std::string_view before = text.substr(0, std::min(byte, text.size()));
    return 1 + static_cast<int>(std::count_if(before.begin(), before.end(), [](char c) {
               return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
           }));
}

Refusal limit(std::string message, const char *sqlstate, std::string hint) {
    Refusal refusal = make_refusal(Code::R01, std::move(message), std::move(hint));
    refusal.sqlstate = sqlstate;
    return refusal;
}

/// Where the statement of "EXPLAIN ROUTE statement" begins; nothing for another text.
std::optional<std::size_t> explain_route(std::string_view text) {
    std::size_t at = 0;
    for (const std::string_view word : {"explain", "route"}) {
        const std::size_t start = skip_blanks(text, at);
        if (start == at && at > 0) return std::nullopt;
        if (!same_word(text.substr(start, word.size()), word)) return std::nullopt;
        at = start + word.size();
    }
    const std::size_t start = skip_blanks(text, at);
    if (start == at && at < text.size()) return std::nullopt;  // another word
    return start;
}

Refusal refuse_hint(std::string message, std::string hint, std::string_view text,
                    std::size_t offset) {
    Refusal refusal = make_refusal(Code::R01, std::move(message), std::move(hint));
    refusal.position = character_position(text, offset);
    return refusal;
}

/// What one hint comment says: words parted by commas. Nothing: refused.
std::optional<Hints> read_hint(const HintComment &comment, std::string_view text,
                               Refusal &refusal) {
    Hints hints;
    std::string_view rest = comment.text;
    for (bool more = true; more;) {
        const std::size_t comma = rest.find(',');
        more = comma != std::string_view::npos;
        std::string_view word = rest.substr(0, comma);
        rest.remove_prefix(more ? comma + 1 : rest.size());
        while (!word.empty() && is_blank(word.front()))
            word.remove_prefix(1);
        while (!word.empty() && is_blank(word.back()))
            word.remove_suffix(1);
        if (same_word(word, "primary")) continue;  // statements run there anyway
        if (same_word(word, "scatter")) {
            hints.scatter = true;
            continue;
        }
        if (same_word(word, "partial")) {
            hints.partial = true;
            continue;
        }
        std::string message = "hint \"" + std::string(word) + "\" is not known";
        std::string known = "Hints are scatter, partial and primary.";
        if (same_word(word, "replica")) {
            message = "the hint replica is not for this listener: it serves from primaries";
            known.clear();
        } else if (word.size() >= 5 && same_word(word.substr(0, 5), "shard")) {
            message = "the hint shard is not for this listener: its profile, single-shard, finds "
                      "the shard by the shard key";
            known.clear();
        }
        refusal = refuse_hint(std::move(message), std::move(known), text, comment.offset);
        return std::nullopt;
    }
    return hints;
}

struct Hinted {
    Hints hints;
    std::size_t offset = 0;
    bool used = false;  ///< stands in front of a statement
};

Result<std::vector<StatementFacts>, Refusal> analyse_tree(const std::string &text,
                                                          const Shape &shape,
                                                          const NameContext &names,
                                                          std::vector<Hinted> hinted) {
    auto tree = parse(text);
    if (!tree) return tree.error();
    std::vector<StatementFacts> statements;
    for (std::size_t i = 0; i < tree->result->n_stmts; ++i) {
        const PgQuery__RawStmt &raw = *tree->result->stmts[i];
        if (raw.stmt == nullptr) continue;
        const auto begin = static_cast<std::size_t>(raw.stmt_location);
        std::size_t end =
            raw.stmt_len == 0 ? text.size() : begin + static_cast<std::size_t>(raw.stmt_len);
        const std::size_t start = skip_blanks(text, begin);
        while (end > start && (is_blank(text[end - 1]) || text[end - 1] == ';'))
            --end;
        Hints hints;
        for (Hinted &each : hinted) {
            if (each.offset < begin || each.offset >= start) continue;
            each.used = true;
            hints.scatter = hints.scatter || each.hints.scatter;
            hints.partial = hints.partial || each.hints.partial;
        }
        Analyser analyser(text, shape, names, hints);
        if (!analyser.statement(raw.stmt, start, end - start)) return std::move(analyser.refusal);
        statements.push_back({std::move(analyser.facts), start, end - start});
    }
    for (const Hinted &each : hinted)
        if (!each.used && (each.hints.scatter || each.hints.partial))
            return refuse_hint("a hint does not stand in front of a statement",
                               "Put it before the statement's first word.", text, each.offset);
    if (statements.empty()) {
        StatementFacts empty;
        empty.facts.action = Action::empty;
        statements.push_back(std::move(empty));
    }
    return statements;
}

}  // namespace

int Analyser::position(int location) const {
    return location < 0 ? 0 : character_position(text_, static_cast<std::size_t>(location));
}

bool Analyser::refuse(Code code, int location, std::string message, std::string hint,
                      std::string detail) {
    refusal = make_refusal(code, std::move(message), std::move(hint));
    refusal.detail = std::move(detail);
    refusal.position = position(location);
    return false;
}

bool Analyser::statement(const Node *node, std::size_t offset, std::size_t length) {
    offset_ = offset;
    length_ = length;
    switch (node->node_case) {
    case PG_QUERY__NODE__NODE_SELECT_STMT: facts.returns_rows = true; return read(node) && finish();
    case PG_QUERY__NODE__NODE_INSERT_STMT:
        facts.returns_rows = node->insert_stmt->n_returning_list > 0;
        break;
    case PG_QUERY__NODE__NODE_UPDATE_STMT:
        facts.returns_rows = node->update_stmt->n_returning_list > 0;
        break;
    case PG_QUERY__NODE__NODE_DELETE_STMT:
        facts.returns_rows = node->delete_stmt->n_returning_list > 0;
        break;
    case PG_QUERY__NODE__NODE_MERGE_STMT: break;
    default: return utility(node) && finish();
    }
    return query(node, nullptr, nullptr, {}, nullptr) && finish();
}

bool Analyser::finish() {
    check_parameters();
    // With another schema before pg_catalog, "=" and every other name may mean something else.
    if (catalog_first() || (facts.operator_names.empty() && facts.function_names.empty()))
        return true;
    return refuse(Code::R26, static_cast<int>(offset_),
                  "search_path puts other schemas before pg_catalog, whose functions and operators "
                  "could stand for the built-in ones",
                  "Leave pg_catalog out of search_path, or put it first.");
}

Result<std::vector<StatementFacts>, Refusal> analyse(std::string_view text, const Shape &shape,
                                                     const NameContext &names) {
    if (text.find('\0') != std::string_view::npos)
        return limit("the text contains a NUL byte", "22021", "");
    if (shape.text.size() > default_max_statement)
        return limit("the statement is too long", "54000",
                     "Without its literals it may have 256 kB: send it in parts.");
    const PreScan scan = pre_scan(text);
    if (scan.nesting > max_nesting)
        return limit("the statement is nested too deeply", "54001",
                     "Split it, or use IN lists and AND or OR in place of long chains of "
                     "operators, joins or set operations.");
    std::vector<Hinted> hinted;
    for (const HintComment &comment : scan.hints) {
        Refusal refusal;
        const auto hints = read_hint(comment, text, refusal);
        if (!hints) return refusal;
        hinted.push_back({*hints, comment.offset});
    }
    if (const auto begin = explain_route(text)) {
        StatementFacts statement;
        statement.facts.action = Action::explain_route;
        statement.facts.returns_rows = true;
        statement.facts.cacheable = false;
        // Hints count for what they stand in front of.
        bool scatter = false;
        bool partial = false;
        for (const Hinted &each : hinted) {
            if (each.offset >= *begin) continue;
            scatter = scatter || each.hints.scatter;
            partial = partial || each.hints.partial;
        }
        if (scatter) statement.facts.text += "/* interlock: scatter */ ";
        if (partial) statement.facts.text += "/* interlock: partial */ ";
        statement.facts.text += text.substr(*begin);
        statement.offset = skip_blanks(text, 0);
        statement.length = text.size() - statement.offset;
        return std::vector<StatementFacts>{std::move(statement)};
    }
    const std::string terminated(text);
    std::optional<Result<std::vector<StatementFacts>, Refusal>> result;
    on_deep_stack(
        [&] { result.emplace(analyse_tree(terminated, shape, names, std::move(hinted))); },
        scan.nesting > deep);
    return std::move(*result);
}

std::optional<std::vector<std::string>> split_search_path(std::string_view value,
                                                          std::string_view login) {
    constexpr std::size_t longest_name = 63;
    std::vector<std::string> schemas;
    std::size_t at = 0;
    const auto skip = [&] {
        while (at < value.size() && is_blank(value[at]))
            ++at;
    };
    skip();
    if (at == value.size()) return schemas;
    while (true) {
        std::string name;
        if (at < value.size() && value[at] == '"') {
            while (true) {
                const std::size_t end = value.find('"', ++at);
                if (end == std::string_view::npos) return std::nullopt;
                name += value.substr(at, end - at);
                at = end + 1;
                if (at >= value.size() || value[at] != '"') break;
                name += '"';
            }
        } else {
            const std::size_t start = at;
            while (at < value.size() && value[at] != ',' && !is_blank(value[at]))
                ++at;
            if (at == start) return std::nullopt;
            name = value.substr(start, at - start);
            for (char &c : name)
                if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        }
        if (name.size() > longest_name) {
            std::size_t end = longest_name;
            while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80)
                --end;
            name.resize(end);
        }
        if (name == "$user") name = login;
        if (!name.empty()) schemas.push_back(std::move(name));
        skip();
        if (at == value.size()) return schemas;
        if (value[at] != ',') return std::nullopt;
        ++at;
        skip();
        if (at == value.size()) return std::nullopt;
    }
}

}  // namespace interlock::sql
