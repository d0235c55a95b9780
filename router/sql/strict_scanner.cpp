#include "sql/strict_scanner.h"

#include <algorithm>
#include <array>
#include <string>

namespace interlock::sql {

namespace {

bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
// Bytes above ASCII are letters of an identifier, as in PostgreSQL's scanner.
bool starts_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           static_cast<unsigned char>(c) >= 0x80;
}
bool continues_word(char c) {
    return starts_word(c) || is_digit(c) || c == '$';
}

int character_position(std::string_view text, std::size_t offset) {
    int position = 1;
    for (std::size_t i = 0; i < offset && i < text.size(); ++i)
        if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++position;
    return position;
}

Refusal refuse(Code code, std::string_view text, std::size_t offset, std::string message,
               std::string hint = {}) {
    Refusal refusal;
    refusal.code = code;
    refusal.message = std::move(message);
    refusal.hint = std::move(hint);
    refusal.position = character_position(text, offset);
    return refusal;
}

// Where the quoted piece that starts at `at` ends (one past), or npos when it does not. `escapes`
// tells whether a backslash escapes the next character (E'...').
std::size_t end_of_quoted(std::string_view text, std::size_t at, bool escapes) {
    const char quote = text[at];
    for (std::size_t i = at + 1; i < text.size(); ++i) {
        if (escapes && text[i] == '\\') {
            ++i;
        } else if (text[i] == quote) {
            if (i + 1 < text.size() && text[i + 1] == quote)
                ++i;
            else
                return i + 1;
        }
    }
    return std::string_view::npos;
}

// Length of a dollar-quote delimiter ($$ or $tag$) at `at`, 0 when there is none.
std::size_t dollar_delimiter(std::string_view text, std::size_t at) {
    std::size_t i = at + 1;
    if (i < text.size() && starts_word(text[i])) {
        ++i;
        while (i < text.size() && (starts_word(text[i]) || is_digit(text[i])))
            ++i;
    }
    return i < text.size() && text[i] == '$' ? i + 1 - at : 0;
}

std::size_t end_of_number(std::string_view text, std::size_t at) {
    std::size_t i = at;
    while (i < text.size() && (is_digit(text[i]) || text[i] == '.'))
        ++i;
    if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
        std::size_t exponent = i + 1;
        if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
        if (exponent < text.size() && is_digit(text[exponent])) {
            i = exponent;
            while (i < text.size() && is_digit(text[i]))
                ++i;
        }
    }
    // Letters that follow belong to the same malformed number (0x1F, 1_000): still a literal.
    while (i < text.size() && continues_word(text[i]))
        ++i;
    return i;
}

// Check 1, and the tokens.
Result<std::vector<Token>, Refusal> tokenize(std::string_view text) {
    std::vector<Token> tokens;
    tokens.reserve(text.size() / 4 + 4);
    std::size_t at = 0;
    const auto add = [&](TokenKind kind, std::size_t end) {
        tokens.push_back({kind, text.substr(at, end - at), static_cast<std::uint32_t>(at)});
        at = end;
    };
    while (at < text.size()) {
        const char c = text[at];
        const char next = at + 1 < text.size() ? text[at + 1] : '\0';
        if (is_space(c)) {
            ++at;
        } else if ((c == '-' && next == '-') || (c == '/' && next == '*')) {
            return refuse(Code::R23, text, at, "comments are not accepted in this profile");
        } else if (c == ';') {
            return refuse(Code::R22, text, at,
                          "semicolons and several statements are not accepted in this profile",
                          "Send one statement, without a semicolon at its end.");
        } else if (c == '\'' || c == '"') {
            const std::size_t end = end_of_quoted(text, at, false);
            if (end == std::string_view::npos)
                return refuse(Code::R01, text, at, "a quoted string is not terminated");
            add(c == '"' ? TokenKind::quoted : TokenKind::literal, end);
        } else if (next == '\'' && std::string_view("eEbBxXnN").find(c) != std::string_view::npos) {
            const std::size_t end = end_of_quoted(text, at + 1, c == 'e' || c == 'E');
            if (end == std::string_view::npos)
                return refuse(Code::R01, text, at, "a quoted string is not terminated");
            add(TokenKind::literal, end);
        } else if ((c == 'u' || c == 'U') && next == '&' && at + 2 < text.size() &&
                   (text[at + 2] == '\'' || text[at + 2] == '"')) {
            const TokenKind kind = text[at + 2] == '"' ? TokenKind::quoted : TokenKind::literal;
            const std::size_t end = end_of_quoted(text, at + 2, false);
            if (end == std::string_view::npos)
                return refuse(Code::R01, text, at, "a quoted string is not terminated");
            add(kind, end);
        } else if (c == '$' && dollar_delimiter(text, at) != 0) {
            const std::size_t length = dollar_delimiter(text, at);
            const std::size_t close = text.find(text.substr(at, length), at + length);
            if (close == std::string_view::npos)
                return refuse(Code::R01, text, at, "a dollar-quoted string is not terminated");
            add(TokenKind::literal, close + length);
        } else if (is_digit(c) || (c == '.' && is_digit(next))) {
            add(TokenKind::literal, end_of_number(text, at));
        } else if (starts_word(c)) {
            std::size_t end = at + 1;
            while (end < text.size() && continues_word(text[end]))
                ++end;
            add(TokenKind::word, end);
        } else {
            add(c == '?' ? TokenKind::placeholder : TokenKind::symbol, at + 1);
        }
    }
    add(TokenKind::end, at);
    return tokens;
}

template <std::size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N> &words) {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view candidate) { return same_word(word, candidate); });
}

constexpr std::array<std::string_view, 16> ddl_words = {
    "create", "alter",   "drop",    "truncate", "comment", "grant",  "revoke",   "reindex",
    "vacuum", "analyze", "analyse", "cluster",  "refresh", "import", "reassign", "security"};

constexpr std::array<std::string_view, 22> session_words = {
    "set",        "reset",   "show",       "listen",  "unlisten", "notify",  "prepare", "execute",
    "deallocate", "discard", "savepoint",  "release", "lock",     "declare", "fetch",   "move",
    "close",      "load",    "checkpoint", "start",   "end",      "abort"};

// Statements of PostgreSQL that are neither of these nor part of the profile: named here, so that
// EXPLAIN SELECT is not taken for a subquery.
constexpr std::array<std::string_view, 7> other_words = {"copy",  "explain", "call", "do",
                                                         "merge", "values",  "table"};

// Check 2.
bool first_word_refused(std::string_view text, const std::vector<Token> &tokens, Refusal &out) {
    const Token &first = tokens.front();
    if (first.kind != TokenKind::word) return false;
    std::string word(first.text);
    std::transform(word.begin(), word.end(), word.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
    if (is_one_of(first.text, ddl_words)) {
        out = refuse(Code::R24, text, first.offset,
                     word + " is not accepted: it is not a statement on rows",
                     "Change the schema on every shard directly, then run \"interlock apply\".");
        return true;
    }
    const Token &second = tokens.size() > 1 ? tokens[1] : first;
    const bool more = second.kind != TokenKind::end;
    const bool options =
        more && (same_word(first.text, "begin") || same_word(first.text, "commit") ||
                 same_word(first.text, "rollback"));
    if (is_one_of(first.text, session_words) || options) {
        out = refuse(
            Code::R25, text, first.offset,
            options
                ? word + " takes no options in this profile"
                : word + " is not accepted: it would change the state of a session or transaction");
        out.detail = "A connection to a shard serves other clients next.";
        return true;
    }
    if (is_one_of(first.text, other_words)) {
        out = refuse(Code::R01, text, first.offset, word + " is not accepted in this profile");
        return true;
    }
    return false;
}

// Of SELECT * FROM interlock.keyset_page(?, NULL::table ...: where the NULL stands, which gives the
// rows' type and is no value. 0 in all other statements.
std::size_t place_of_row_type(const std::vector<Token> &tokens) {
    constexpr std::array<std::string_view, 12> beginning = {
        "select", "*", "from", "interlock", ".", "keyset_page", "(", "?", ",", "null", ":", ":"};
    constexpr std::size_t place = 9;
    if (tokens.size() <= beginning.size()) return 0;
    for (std::size_t i = 0; i < beginning.size(); ++i) {
        const TokenKind kind = tokens[i].kind;
        if (kind == TokenKind::quoted || kind == TokenKind::literal ||
            !same_word(tokens[i].text, beginning[i]))
            return 0;
    }
    return place;
}

// Check 3: by category over the whole text, in this order.
bool construct_refused(std::string_view text, const std::vector<Token> &tokens, Refusal &out) {
    const std::size_t row_type = place_of_row_type(tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Token &token = tokens[i];
        if (i == row_type && row_type != 0) continue;
        // In IS [NOT] NULL the word belongs to a condition, which the grammar judges.
        const bool condition =
            i > 0 && tokens[i - 1].kind == TokenKind::word &&
            (same_word(tokens[i - 1].text, "is") || same_word(tokens[i - 1].text, "not"));
        const bool constant = token.kind == TokenKind::word && !condition &&
                              (same_word(token.text, "null") || same_word(token.text, "true") ||
                               same_word(token.text, "false"));
        if (token.kind == TokenKind::literal || constant) {
            out = refuse(Code::R28, text, token.offset, "a literal is not accepted in this profile",
                         "Put ? in its place and send the value as a parameter.");
            return true;
        }
    }
    for (const Token &token : tokens) {
        if (token.kind == TokenKind::quoted) {
            out = refuse(Code::R01, text, token.offset,
                         "a quoted identifier is not accepted in this profile");
            return true;
        }
    }
    for (const Token &token : tokens) {
        if (token.kind == TokenKind::word && same_word(token.text, "join")) {
            out = refuse(Code::R20, text, token.offset, "JOIN is not accepted in this profile",
                         "Send one statement for each table.");
            return true;
        }
    }
    constexpr std::array<std::string_view, 5> nested = {"select", "with", "union", "intersect",
                                                        "except"};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Token &token = tokens[i];
        if (token.kind != TokenKind::word || !is_one_of(token.text, nested)) continue;
        if (i == 0 && same_word(token.text, "select")) continue;
        out = refuse(Code::R21, text, token.offset,
                     "subqueries, WITH and set operations are not accepted in this profile");
        return true;
    }
    return false;
}

}  // namespace

bool same_word(std::string_view word, std::string_view lower) {
    if (word.size() != lower.size()) return false;
    for (std::size_t i = 0; i < word.size(); ++i) {
        const char c = word[i];
        if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != lower[i]) return false;
    }
    return true;
}

Result<std::vector<Token>, Refusal> scan_strict(std::string_view text) {
    auto tokens = tokenize(text);
    if (!tokens) return tokens;
    Refusal refusal;
    if (first_word_refused(text, *tokens, refusal) || construct_refused(text, *tokens, refusal))
        return refusal;
    return tokens;
}

}  // namespace interlock::sql
