// Scanner of the `strict` profile: text to tokens, and the checks that come before the grammar.
//
// The order of the checks is promised, because it decides which code a client sees:
//   1. one pass that knows where strings end finds comments (R23) and semicolons (R22)
//   2. the first keyword picks out DDL (R24), session state (R25) and other statements (R01)
//   3. literals (R28; the NULL::table of a page's row type is none), quoted identifiers (R01), JOIN
//   (R20), further SELECTs, WITH and set
//      operations (R21)
// Rules for strings, dollar quotes and numbers: PostgreSQL documentation, "Lexical Structure".
#pragma once

#include "base/result.h"
#include "sql/refusal.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace interlock::sql {

enum class TokenKind : std::uint8_t {
    word,         ///< unquoted identifier or keyword, as written
    quoted,       ///< "identifier"
    literal,      ///< string, dollar quote, bit string or number
    placeholder,  ///< ?
    symbol,       ///< one character of punctuation or operator
    end
};

struct Token {
    TokenKind kind = TokenKind::end;
    std::string_view text;
    std::uint32_t offset = 0;  ///< in bytes from the start of the statement

    [[nodiscard]] bool is_symbol(char c) const { return kind == TokenKind::symbol && text[0] == c; }
};

/// Compares an ASCII word with a lower-case one, letters in any case.
[[nodiscard]] bool same_word(std::string_view word, std::string_view lower);

/// Tokens of a statement that passed checks 1 to 3, ending in one of kind `end`. Views into `text`.
[[nodiscard]] Result<std::vector<Token>, Refusal> scan_strict(std::string_view text);

}  // namespace interlock::sql
