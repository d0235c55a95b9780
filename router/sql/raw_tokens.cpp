#include "sql/raw_tokens.h"

#include "sql/strict_scanner.h"

#include <algorithm>

namespace interlock::sql {

namespace {

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
        if (is_blank(text[at])) {
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

}  // namespace

bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

RawToken RawTokens::next() {
    while (at_ < text_.size() && is_blank(text_[at_]))
        ++at_;
    RawToken token;
    token.offset = at_;
    if (at_ == text_.size()) return token;
    const char c = text_[at_];
    std::size_t end = at_ + 1;
    if (text_.compare(at_, 2, "--") == 0 || text_.compare(at_, 2, "/*") == 0) {
        token.kind = RawToken::Kind::comment;
        end = c == '-' ? line_end(text_, at_) : block_comment_end(text_, at_);
    } else {
        token.behind_dot = after_dot_;
        after_dot_ = c == '.';
        if (starts_word(c)) {
            token.kind = RawToken::Kind::word;
            while (end < text_.size() && in_word(text_[end]))
                ++end;
            if (end == at_ + 1 && (c == 'e' || c == 'E') && end < text_.size() &&
                text_[end] == '\'') {
                token.kind = RawToken::Kind::quoted;
                end = escape_string_end(text_, end);
            }
        } else if (is_digit(c)) {
            // With its dots: a word behind "1." is not a name.
            token.kind = RawToken::Kind::number;
            while (end < text_.size() && (is_digit(text_[end]) || text_[end] == '.'))
                ++end;
        } else if (c == '\'' || c == '"') {
            token.kind = RawToken::Kind::quoted;
            end = quoted_end(text_, at_, c);
        } else if (c == '$' && dollar_string_end(text_, at_) != at_) {
            token.kind = RawToken::Kind::quoted;
            end = dollar_string_end(text_, at_);
        } else {
            token.kind = RawToken::Kind::symbol;
        }
    }
    token.text = text_.substr(at_, end - at_);
    at_ = end;
    return token;
}

std::size_t skip_blanks(std::string_view text, std::size_t from) {
    while (from < text.size()) {
        if (is_blank(text[from]))
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

bool is_hint(std::string_view comment) {
    constexpr std::string_view mark = "interlock:";
    if (!comment.starts_with("/*")) return false;
    std::size_t at = 2;
    while (at < comment.size() && is_blank(comment[at]))
        ++at;
    return same_word(comment.substr(at, mark.size()), mark);
}

std::vector<TextPart> split_statements(std::string_view text) {
    std::vector<TextPart> parts;
    RawTokens tokens(text);
    bool open = false;    // a statement has begun
    bool hinted = false;  // a hint stands before it
    std::size_t start = 0;
    std::size_t end = 0;
    std::size_t parentheses = 0;
    std::size_t body = 0;  // BEGIN ATOMIC and CASEs in it
    const auto finish = [&] {
        if (open) parts.push_back({start, end - start});
        open = hinted = false;
        parentheses = body = 0;
    };
    for (RawToken token = tokens.next(); token.kind != RawToken::Kind::end; token = tokens.next()) {
        if (token.kind == RawToken::Kind::comment) {
            if (!open && !hinted && is_hint(token.text)) {
                hinted = true;
                start = token.offset;
            }
            continue;
        }
        const char c = token.kind == RawToken::Kind::symbol ? token.text[0] : '\0';
        if (c == ';' && parentheses == 0 && body == 0) {
            finish();
            continue;
        }
        if (!open) {
            open = true;
            if (!hinted) start = token.offset;
        }
        end = token.offset + token.text.size();
        if (c == '(') ++parentheses;
        if (c == ')' && parentheses > 0) --parentheses;
        if (token.kind != RawToken::Kind::word || token.behind_dot) continue;
        if (same_word(token.text, "atomic") || (body > 0 && same_word(token.text, "case"))) ++body;
        if (body > 0 && same_word(token.text, "end")) --body;
    }
    finish();
    return parts;
}

}  // namespace interlock::sql
