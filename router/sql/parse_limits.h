// What is looked at before a text is given to the parser: how deep its tree can become, and hint
// comments.
//
// libpg_query recurses over the tree without looking at its stack, and packing the tree costs the
// square of its depth. So the depth is bounded first, in one linear pass over the tokens that needs
// no stack of its own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace interlock::sql {

/// Deepest nesting given to the parser, as nesting_bound() counts it.
inline constexpr std::uint32_t max_nesting = 1000;

/// A comment that begins with "interlock:".
struct HintComment {
    std::string_view text;  ///< what stands behind the colon, without blanks around it
    std::size_t offset = 0;
};

struct PreScan {
    std::uint32_t nesting = 0;  ///< never less than the depth of the parse tree, in expressions;
                                ///< max_nesting + 1 or more where the text is deeper than allowed
    std::vector<HintComment> hints;
};

/// Linear in the text. Lists (of a thousand rows, of conditions joined by AND or OR) cost no depth;
/// parentheses, brackets, CASE, operators, joins and set operations do.
[[nodiscard]] PreScan pre_scan(std::string_view text);

}  // namespace interlock::sql
