// Keyset pages of one text but for its literals.
//
// A client that writes its cursor into the statement sends another text for each page. What the
// analysis of one of them found holds for all whose text between the literals is the same, byte for
// byte (a shape is not enough: white space and comments are not in it, and edits have places in the
// text), once the edits are moved by what the literals before them are longer or shorter.
#pragma once

#include "sql/facts.h"
#include "sql/shape.h"

#include <memory>
#include <string>
#include <string_view>

namespace interlock::sql {

/// The key under which texts are alike: the shape, and the text without its literals.
[[nodiscard]] std::string skeleton(std::string_view text, const Shape &shape);

/// Facts of a keyset page as they are kept: with the literals of their text. Null for other
/// statements, whose facts may hold what a literal says.
[[nodiscard]] std::shared_ptr<const Facts> keepable_page(const Facts &facts, const Shape &shape);

/// Kept facts, for another text of the same skeleton.
[[nodiscard]] std::shared_ptr<const Facts> page_facts(const Facts &kept, const Shape &shape);

}  // namespace interlock::sql
