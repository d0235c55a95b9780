#include "sql/parse_limits.h"

#include "sql/strict_scanner.h"

#include <algorithm>
#include <array>

namespace interlock::sql {

namespace {

bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

bool starts_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           static_cast<unsigned char>(c) >= 0x80;
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool in_word(char c) {
    return starts_word(c) || is_digit(c) || c == '$';
}

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

/// The end of the block comment that begins at `at`; comments nest.
std::size_t block_comment_end(std::string_view text, std::size_t at) {
    std::size_t depth = 0;
    while (at < text.size()) {
        if (text.compare(at, 2, "/*") == 0) {
            ++depth;
            at += 2;
        } else if (text.compare(at, 2, "*/") == 0) {
            at += 2;
            if (--depth == 0) return at;
        } else {
            ++at;
        }
    }
    return at;
}

std::size_t line_end(std::string_view text, std::size_t at) {
    return std::min(text.find_first_of("\n\r", at), text.size());
}

std::size_t quoted_end(std::string_view text, std::size_t at, char quote) {
    for (++at; at < text.size(); ++at) {
        if (text[at] != quote) continue;
        if (at + 1 < text.size() && text[at + 1] == quote)
            ++at;
        else
            return at + 1;
    }
    return at;
}

/// Where the next piece of a string begins that is continued across a line break, or nothing.
std::size_t continuation(std::string_view text, std::size_t at) {
    bool newline = false;
    while (at < text.size()) {
        if (is_space(text[at])) {
            newline = newline || text[at] == '\n' || text[at] == '\r';
            ++at;
        } else if (text.compare(at, 2, "--") == 0) {
            at = line_end(text, at);
        } else {
            break;
        }
    }
    return newline && at < text.size() && text[at] == '\'' ? at : std::string_view::npos;
}

/// The end of E'...', from its quote on, with the pieces that continue it.
std::size_t escape_string_end(std::string_view text, std::size_t at) {
    while (true) {
        for (++at; at < text.size() && text[at] != '\''; ++at)
            if (text[at] == '\\') ++at;
        if (at >= text.size()) return text.size();
        ++at;
        if (at < text.size() && text[at] == '\'') continue;  // doubled
        const std::size_t next = continuation(text, at);
        if (next == std::string_view::npos) return at;
        at = next;
    }
}

/// The end of a dollar-quoted string that begins at `at`, or `at` when none does.
std::size_t dollar_string_end(std::string_view text, std::size_t at) {
    std::size_t end = at + 1;
    if (end < text.size() && starts_word(text[end]))
        while (end < text.size() && in_word(text[end]) && text[end] != '$')
            ++end;
    if (end >= text.size() || text[end] != '$') return at;
    const std::string_view tag = text.substr(at, end + 1 - at);
    const std::size_t close = text.find(tag, end + 1);
    return close == std::string_view::npos ? text.size() : close + tag.size();
}

void note_hint(std::string_view comment, std::size_t offset, PreScan &out) {
    comment.remove_prefix(2);
    if (comment.ends_with("*/")) comment.remove_suffix(2);
    const auto trim = [](std::string_view s) {
        while (!s.empty() && is_space(s.front()))
            s.remove_prefix(1);
        while (!s.empty() && is_space(s.back()))
            s.remove_suffix(1);
        return s;
    };
    comment = trim(comment);
    constexpr std::string_view mark = "interlock:";
    if (comment.size() < mark.size() || !same_word(comment.substr(0, mark.size()), mark)) return;
    out.hints.push_back({trim(comment.substr(mark.size())), offset});
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
    bool after_dot = false;  // a word behind a dot is a name
    for (std::size_t at = 0; at < text.size();) {
        const char c = text[at];
        if (is_space(c)) {
            ++at;
            continue;
        }
        if (text.compare(at, 2, "--") == 0 || text.compare(at, 2, "/*") == 0) {
            const std::size_t end = c == '-' ? line_end(text, at) : block_comment_end(text, at);
            if (c == '/') note_hint(text.substr(at, end - at), at, out);
            at = end;
            continue;
        }
        const bool name = after_dot;
        after_dot = c == '.';
        if (starts_word(c)) {
            const std::size_t start = at;
            while (at < text.size() && in_word(text[at]))
                ++at;
            const std::string_view word = text.substr(start, at - start);
            if (at < text.size() && text[at] == '\'' && (word == "e" || word == "E"))
                at = escape_string_end(text, at);
            else if (!name)
                apply(effect_of(word), nesting);
        } else if (is_digit(c)) {
            // With its dots: a word behind "1." is not a name.
            while (at < text.size() && (is_digit(text[at]) || text[at] == '.'))
                ++at;
        } else if (c == '\'' || c == '"') {
            at = quoted_end(text, at, c);
        } else if (c == '$') {
            const std::size_t end = dollar_string_end(text, at);
            at = end == at ? at + 1 : end;
        } else {
            ++at;
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
        }
    }
    out.nesting = nesting.total();
    return out;
}

std::size_t skip_blanks(std::string_view text, std::size_t from) {
    while (from < text.size()) {
        if (is_space(text[from]))
            ++from;
        else if (text.compare(from, 2, "--") == 0)
            from = line_end(text, from);
        else if (text.compare(from, 2, "/*") == 0)
            from = block_comment_end(text, from);
        else
            break;
    }
    return from;
}

}  // namespace interlock::sql
