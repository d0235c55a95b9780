#include "sql/parse_limits.h"

#include "sql/raw_tokens.h"
#include "sql/strict_scanner.h"

#include <algorithm>
#include <array>

namespace interlock::sql {

namespace {

bool is_operator(char c) {
    return std::string_view("~!@#^&|`?+-*/%<>=:").find(c) != std::string_view::npos;
}

/// What a word does to the depth.
enum class Effect : std::uint8_t {
    none,
    operation,  ///< makes a node above what stands beside it
    between,    ///< the same, and the next AND belongs to it
    separator,  ///< parts siblings: AND, OR
    branch,     ///< WHEN, THEN, ELSE: parts siblings inside CASE
    chain,      ///< JOIN, UNION ...: the tree grows to the left over commas and conditions
    atomic,     ///< BEGIN ATOMIC: statements inside a statement
    opens_case,
    ends_case,
};

struct Word {
    std::string_view name;
    Effect effect;
};

constexpr std::array words = {
    Word{"and", Effect::separator},     Word{"or", Effect::separator},
    Word{"between", Effect::between},   Word{"case", Effect::opens_case},
    Word{"end", Effect::ends_case},     Word{"when", Effect::branch},
    Word{"then", Effect::branch},       Word{"else", Effect::branch},
    Word{"join", Effect::chain},        Word{"union", Effect::chain},
    Word{"intersect", Effect::chain},   Word{"except", Effect::chain},
    Word{"atomic", Effect::atomic},     Word{"not", Effect::operation},
    Word{"is", Effect::operation},      Word{"isnull", Effect::operation},
    Word{"notnull", Effect::operation}, Word{"like", Effect::operation},
    Word{"ilike", Effect::operation},   Word{"similar", Effect::operation},
    Word{"in", Effect::operation},      Word{"collate", Effect::operation},
    Word{"at", Effect::operation},      Word{"overlaps", Effect::operation},
    Word{"operator", Effect::operation}};

Effect effect_of(std::string_view word) {
    if (word.size() < 2 || word.size() > 9) return Effect::none;
    for (const Word &entry : words)
        if (entry.name.size() == word.size() && same_word(word, entry.name)) return entry.effect;
    return Effect::none;
}

/// Counts the depth of the tree the parser would build, from above.
///
/// A text is levels (parentheses, brackets, CASE ... END) of items (parted by commas, AND, OR). An
/// operator makes one node above its operands, so an item is at most as deep as it has operators
/// plus the deepest level inside it; AND and OR chains are flat lists in PostgreSQL's tree. JOIN
/// and set operations grow to the left across items, so they count for their whole level.
class Nesting {
  public:
    Nesting() { levels_.emplace_back(); }

    void open(char closer) {
        if (levels_.size() <= max_nesting)
            levels_.push_back({.closer = closer});
        else
            too_deep_ = true;
    }
    void close(char closer) {
        // A CASE opened by a word that was no CASE (a label) ends here.
        while (levels_.size() > 1 && levels_.back().closer != closer)
            pop();
        if (levels_.size() > 1) pop();
    }
    void end_case() {
        if (levels_.back().closer == case_closer) pop();
    }
    void separate() { levels_.back().finish_item(); }
    void separate_branch() {
        if (levels_.back().closer == case_closer) separate();
    }
    void operation(std::uint32_t count = 1) { levels_.back().operators += count; }
    void between() {
        operation();
        ++levels_.back().betweens;
    }
    void separator_word() {
        Level &level = levels_.back();
        if (level.betweens > 0)
            --level.betweens;
        else
            level.finish_item();
    }
    void chain() { ++levels_.back().chained; }
    void atomic() {
        chain();
        atomic_ = true;
    }
    void statement() {
        separate();
        if (levels_.size() == 1 && !atomic_) {
            total_ = std::max(total_, levels_.back().depth());
            levels_.back() = {};
        }
    }
    [[nodiscard]] std::uint32_t total() {
        while (levels_.size() > 1)
            pop();
        separate();
        total_ = std::max(total_, levels_.back().depth());
        return too_deep_ ? std::max(total_, max_nesting + 1) : total_;
    }
    static constexpr char case_closer = 'C';

  private:
    struct Level {
        char closer = 0;
        std::uint32_t operators = 0;  ///< of the current item
        std::uint32_t nested = 0;     ///< the deepest level inside the current item
        std::uint32_t items = 0;      ///< depth of the deepest item that has ended
        std::uint32_t chained = 0;
        std::uint32_t betweens = 0;  ///< whose AND is still to come

        void finish_item() {
            items = std::max(items, operators + nested);
            operators = nested = betweens = 0;
        }
        [[nodiscard]] std::uint32_t depth() const { return chained + items + 1; }
    };
    void pop() {
        levels_.back().finish_item();
        const std::uint32_t depth = levels_.back().depth();
        levels_.pop_back();
        levels_.back().nested = std::max(levels_.back().nested, depth);
    }
    std::vector<Level> levels_;
    std::uint32_t total_ = 0;
    bool atomic_ = false;
    bool too_deep_ = false;
};

void note_hint(std::string_view comment, std::size_t offset, PreScan &out) {
    if (!is_hint(comment)) return;
    comment.remove_prefix(comment.find(':') + 1);
    if (comment.ends_with("*/")) comment.remove_suffix(2);
    const auto trim = [](std::string_view s) {
        while (!s.empty() && is_blank(s.front()))
            s.remove_prefix(1);
        while (!s.empty() && is_blank(s.back()))
            s.remove_suffix(1);
        return s;
    };
    out.hints.push_back({trim(comment), offset});
}

void apply(Effect effect, Nesting &nesting) {
    switch (effect) {
    case Effect::none: break;
    case Effect::operation: nesting.operation(); break;
    case Effect::between: nesting.between(); break;
    case Effect::separator: nesting.separator_word(); break;
    case Effect::branch: nesting.separate_branch(); break;
    case Effect::chain: nesting.chain(); break;
    case Effect::atomic: nesting.atomic(); break;
    case Effect::opens_case: nesting.open(Nesting::case_closer); break;
    case Effect::ends_case: nesting.end_case(); break;
    }
}

}  // namespace

PreScan pre_scan(std::string_view text) {
    PreScan out;
    Nesting nesting;
    RawTokens tokens(text);
    for (RawToken token = tokens.next(); token.kind != RawToken::Kind::end; token = tokens.next()) {
        switch (token.kind) {
        case RawToken::Kind::comment: note_hint(token.text, token.offset, out); break;
        case RawToken::Kind::word:
            if (!token.behind_dot) apply(effect_of(token.text), nesting);
            break;
        case RawToken::Kind::symbol: {
            const char c = token.text[0];
            if (c == '(' || c == '[')
                nesting.open(c == '(' ? ')' : ']');
            else if (c == ')' || c == ']')
                nesting.close(c);
            else if (c == ',')
                nesting.separate();
            else if (c == ';')
                nesting.statement();
            else if (is_operator(c))
                nesting.operation();
            break;
        }
        default: break;
        }
    }
    out.nesting = nesting.total();
    return out;
}

}  // namespace interlock::sql
