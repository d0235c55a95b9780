// Where the clauses of a SELECT stand in its text, found among the tokens that are in no
// parentheses, so that something can be put in between.
//
// What is found rests on words that are reserved: behind FROM no name can be one of them. Whoever
// edits a text parses the result and compares (scatter_edits.cpp), so a mistake here is a refusal.
#pragma once

#include "sql/raw_tokens.h"
#include "sql/scatter.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::sql {

class SelectText {
  public:
    /// A piece of the text, from its first token to its last.
    struct Piece {
        std::uint32_t offset = 0;
        std::uint32_t length = 0;
        [[nodiscard]] std::uint32_t end() const { return offset + length; }
    };
    enum class Clause : std::uint8_t { where, group, having, window, order, limit, offset, other };

    /// The SELECT at text[offset, offset + length), whose first FROM item begins at `from_item`.
    SelectText(std::string_view text, std::size_t offset, std::size_t length,
               std::size_t from_item);

    /// False: it is not spelled SELECT list FROM ..., or it stands in parentheses.
    [[nodiscard]] bool sound() const { return sound_; }

    /// The items of the target list, with their names.
    [[nodiscard]] const std::vector<Piece> &targets() const { return targets_; }
    /// An item without its name.
    [[nodiscard]] std::optional<Piece> without_alias(const Piece &target) const;
    /// The arguments of the call that begins at `offset`, and where its parenthesis closes.
    struct Call {
        Piece name;  ///< what stands before the parenthesis
        std::vector<Piece> arguments;
        std::uint32_t close = 0;
    };
    [[nodiscard]] std::optional<Call> call_at(std::size_t offset) const;
    /// What stands behind "name =>" or "name :=".
    [[nodiscard]] std::optional<Piece> named_value(const Piece &argument) const;
    /// The end of the FROM clause.
    [[nodiscard]] std::uint32_t from_end() const { return from_end_; }
    /// The end of what may stand before LIMIT, OFFSET, FETCH.
    [[nodiscard]] std::uint32_t before_limit() const { return before_limit_; }

    /// What stands behind the clause's words; of LIMIT, OFFSET and FETCH the number alone. Nothing
    /// where the clause is not there, or empty.
    [[nodiscard]] std::optional<Piece> body(Clause clause) const;
    /// A clause's body, parted at its commas.
    [[nodiscard]] std::vector<Piece> items(Clause clause) const;
    /// A piece without its last `count` tokens.
    [[nodiscard]] std::optional<Piece> without_last(const Piece &piece, std::size_t count) const;

    /// The call in an item of the target list, from its first parenthesis on.
    [[nodiscard]] std::optional<Piece> from_parenthesis(const Piece &piece) const;

    [[nodiscard]] std::string_view text(const Piece &piece) const {
        return text_.substr(piece.offset, piece.length);
    }

  private:
    struct Token {
        RawToken raw;
        std::size_t depth = 0;  ///< of the parentheses it is in
        [[nodiscard]] bool top() const { return depth == 0; }
        [[nodiscard]] bool word(std::string_view lower) const;
        [[nodiscard]] bool symbol(char c) const;
        [[nodiscard]] std::size_t end() const { return raw.offset + raw.text.size(); }
    };
    struct Range {
        std::size_t first = 0;
        std::size_t end = 0;
    };
    void read(std::string_view text, std::size_t offset, std::size_t length);
    void find_clauses(std::size_t from);
    [[nodiscard]] Piece piece(Range range) const;
    [[nodiscard]] Range range_of(const Piece &piece) const;
    [[nodiscard]] std::vector<Piece> parted(Range range, std::size_t depth = 0) const;

    std::string_view text_;
    std::vector<Token> tokens_;  ///< without comments
    bool sound_ = false;
    std::vector<Piece> targets_;
    std::uint32_t from_end_ = 0;
    std::uint32_t before_limit_ = 0;
    std::optional<Range> bodies_[8];
};

}  // namespace interlock::sql
