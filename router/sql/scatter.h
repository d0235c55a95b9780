// What the analysis found out about a statement that all shards answer together.
//
// Each shard gets the client's own text with a few insertions (the ownership filter, hidden columns
// at the end of the target list); the answers are merged by bytes the shards computed. Pure.
#pragma once

#include "sql/refusal.h"
#include "sql/shape.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::sql {

/// What is put in place of text[offset, offset + length) of the text that was analysed. Ascending,
/// apart.
struct TextEdit {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    std::string text;
};

/// A value that the router must know before it sends anything: see plan/scatter_values.h.
struct ValueSource {
    enum class From : std::uint8_t { absent, literal, parameter, null, number };
    From from = From::absent;
    bool negative = false;  ///< of a number literal with a minus sign before it
    bool typed = false;     ///< a parameter that stands elsewhere too, where it could take another
                            ///< type: its binary form is read only if that is declared
    std::uint32_t index =
        0;                   ///< literal of the shape, parameter $(index + 1), or the number itself
    std::uint32_t cast = 0;  ///< OID of the type it is cast to; 0: none
};

enum class ScatterKind : std::uint8_t {
    keyset_page,  ///< SELECT ... FROM interlock.keyset_page(...): the keyset says how it is merged
    ordered,      ///< SELECT ... ORDER BY ... LIMIT
    aggregate,    ///< count, sum, min, max, avg, with or without GROUP BY
};

/// A column of an aggregate's answer, and what the shards add for it, hidden.
struct PartialColumn {
    enum class Kind : std::uint8_t {
        group,    ///< equal in all rows of the group; no hidden column of its own
        count,    ///< hidden: count
        sum,      ///< hidden: sum
        average,  ///< hidden: sum, count
        min,      ///< hidden: sort key of the value
        max,      ///< the same
    };
    Kind kind = Kind::group;
    std::uint16_t hidden = 0;  ///< position of its first hidden column, among all columns
};

/// The columns of keyset_page that the router rewrites where a shard is missing.
struct PageColumns {
    static constexpr std::uint16_t none = 0xFFFF;
    /// Positions among the columns of the answer. Those from `open` on count (item).* as no column.
    std::vector<std::uint16_t> cursor, complete, missing_shards;
    std::uint16_t open = none;    ///< where (item).* stands, which may be of any width
    std::uint16_t known = 0;      ///< columns of the answer, without (item).* and hidden ones
    bool in_expressions = false;  ///< one of them is used otherwise: no partial pages

    /// Where a column is in an answer of `total` columns, hidden ones not counted.
    [[nodiscard]] std::uint16_t place(std::uint16_t position, std::uint16_t total) const {
        if (position < open || total < known) return position;
        return static_cast<std::uint16_t>(position + (total - known));
    }
};

/// Where the keyset's default page size is put into the text: text[offset, offset + length) becomes
/// before + number + after. Shards must stop exactly where the router cuts, so what a shard would
/// take by itself is never left to it.
struct DefaultPage {
    bool needed = false;  ///< the page size is absent, NULL, or a parameter that may be NULL
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    std::string before, after;
};

/// Where the call of keyset_page and its arguments stand: a global index is asked with the same
/// arguments, and shards with the same text but for the function (sql/index_page.h).
struct PageCall {
    enum class Parameter : std::uint8_t { scope, after, before };
    struct Argument {
        Parameter parameter = Parameter::scope;
        std::uint32_t offset = 0;  ///< of its value
        std::uint32_t length = 0;
        std::vector<std::uint32_t> parameters;  ///< $(n + 1) that stand in it
    };
    bool sound = false;  ///< the rest holds; false too where the table has no index
    std::uint32_t name_offset = 0;
    std::uint32_t name_length = 0;    ///< of the function, without its schema
    std::uint32_t close = 0;          ///< the closing parenthesis
    bool nameless = false;            ///< no alias: the function's name is the relation's
    std::vector<Argument> arguments;  ///< those but keyset, row type and page size, as they stand
};

struct Scatter {
    ScatterKind kind = ScatterKind::ordered;
    std::vector<TextEdit> edits;
    std::uint16_t hidden = 0;      ///< columns the edits append; the merge key is the first of them
    std::uint32_t table = 0;       ///< position in RouteTable::tables
    bool allowed_by_hint = false;  ///< /* interlock: scatter */ stood in front
    bool allowed_by_table = false;  ///< the catalog allows it for the table (allow_scatter)
    bool partial_by_hint = false;   ///< /* interlock: partial */
    /// Null: the statement, or the catalog, allows it. Else what to answer unless the session does.
    std::shared_ptr<const Refusal> unless_allowed;

    // keyset_page
    ValueSource keyset, before, page_size;
    DefaultPage default_page;  ///< not among `edits`, and apart from them
    PageColumns page;
    PageCall call;
    std::vector<Literal> literals;  ///< of facts that were kept: see sql/scatter_skeleton.h

    // ordered: LIMIT + OFFSET rows are fetched from each shard. aggregate: the same of groups, and
    // LIMIT may be absent or NULL
    ValueSource limit, offset;
    /// Plain columns of the table among ORDER BY, in order: they must hold a unique NOT NULL key.
    std::vector<std::string> order_columns;
    bool text_order = false;  ///< the order may involve a collation: shards must agree on them

    // aggregate: columns of the target list, in order; not grouped: one row
    std::vector<PartialColumn> columns;
    bool grouped = false;
};

/// The text for the shards.
[[nodiscard]] std::string edited(std::string_view text, const std::vector<TextEdit> &edits);

}  // namespace interlock::sql
