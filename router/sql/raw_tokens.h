// Tokens of a text as PostgreSQL's lexer parts them, without a judgement of what they are: where
// strings, names and comments end. Never fails: what does not end, ends with the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace interlock::sql {

struct RawToken {
    enum class Kind : std::uint8_t {
        word,     ///< identifier or keyword, not quoted
        number,   ///< digits and dots
        quoted,   ///< string of any kind, or "name"
        comment,  ///< of either kind
        symbol,   ///< one character of anything else
        end
    };
    Kind kind = Kind::end;
    bool behind_dot = false;  ///< a word behind a dot is a name, never a keyword
    std::size_t offset = 0;
    std::string_view text;
};

class RawTokens {
  public:
    explicit RawTokens(std::string_view text) : text_(text) {}
    [[nodiscard]] RawToken next();

  private:
    std::string_view text_;
    std::size_t at_ = 0;
    bool after_dot_ = false;
};

[[nodiscard]] bool is_blank(char c);

/// Where the blanks and comments at the start of text[from..] end.
[[nodiscard]] std::size_t skip_blanks(std::string_view text, std::size_t from);

/// Whether a comment is a hint: "/* interlock: ... */".
[[nodiscard]] bool is_hint(std::string_view comment);

/// A statement of a text: without the semicolon, and without the blanks and comments before it, but
/// with its hints.
struct TextPart {
    std::size_t offset = 0;
    std::size_t length = 0;
};

/// Parts a text at its semicolons, as psql does: not inside parentheses, nor between BEGIN ATOMIC
/// and END. Parts without a token are left out.
[[nodiscard]] std::vector<TextPart> split_statements(std::string_view text);

}  // namespace interlock::sql
