// A statement's shape: its text with the literals taken out, by PostgreSQL's lexical rules
// (standard_conforming_strings on, which the router keeps so).
//
// Statements of one shape are analysed once. The shape keeps apart what the analysis may tell
// apart: the kind of each literal stays in it (for integers also whether PostgreSQL takes them for
// int4, int8 or numeric), and so do hint comments ("/* interlock: ... */"); other comments, the
// amount of white space and the case of words do not. Two texts of one shape are parsed into the
// same tree, but for the values of their literals; the few literals whose value decides what the
// tree is like (UESCAPE 'c', FLOAT(n)) therefore stay in the shape as they are written. Source:
// PostgreSQL documentation, "Lexical Structure".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::sql {

enum class LiteralKind : std::uint8_t {
    integer,  ///< digits only; may be too large for bigint
    number,   ///< with a point or an exponent
    string,   ///< '...' with doubled quotes
    escape,   ///< E'...'
    dollar,   ///< $tag$...$tag$
    other,    ///< B'', X'', U&'', N'', or pieces joined across a line break; all of it
};

struct Literal {
    std::uint32_t offset = 0;  ///< bytes into the text; of the first character, prefix included
    std::uint32_t length = 0;
    LiteralKind kind = LiteralKind::integer;
};

/// Reused from statement to statement, so that a hit allocates nothing.
struct Shape {
    std::string text;               ///< the key: what is left, literals replaced by marks
    std::vector<Literal> literals;  ///< in the order of the text
    bool complete = true;           ///< false: a string, comment or quoted name does not end
    int statements = 1;             ///< pieces between semicolons that are not empty; at least 1

    void clear() {
        text.clear();
        literals.clear();
        complete = true;
        statements = 1;
    }
};

/// Fills `out` from `text`. Linear in the text; keeps out's storage unless that is very large.
void make_shape(std::string_view text, Shape &out);

/// The value a string literal spells, or a number's digits. Points into `text` where it can, else
/// into `scratch`. Nothing for one that cannot be decoded here (kind other, malformed escapes).
[[nodiscard]] std::optional<std::string_view>
literal_value(std::string_view text, const Literal &literal, std::string &scratch);

}  // namespace interlock::sql
