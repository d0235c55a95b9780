// The statement by which PostgreSQL itself combines what the shards counted and summed.
//
// A sum is exact only under PostgreSQL's own arithmetic (a numeric's display scale, an interval's
// months, which overflow is an error). So the partial values go back to a shard as they came, in
// binary arrays, and one statement sums them by the position of their group:
//
//     SELECT sum(p1)::int8, sum(p2) / sum(p3)
//     FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4)) AS t(g, p1, p2, p3)
//     GROUP BY g ORDER BY g
//
// in batches of bounded size. Pure: it writes requests into a buffer and takes rows.
#pragma once

#include "base/buffer.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// A value as DataRow gives it; nothing for NULL.
using Field = std::optional<std::string_view>;

/// The fields of a DataRow's body, views into it. False when the body is malformed.
[[nodiscard]] bool split_row(std::string_view body, std::vector<Field> &out);

/// How the partial values of one column of the answer become its value.
struct Combination {
    enum class Kind : std::uint8_t {
        count,  ///< of one partial: int8
        sum,    ///< of one partial
        ratio,  ///< a partial sum and a partial count
    };
    Kind kind = Kind::count;
    std::uint32_t partial_type = 0;  ///< OID of the (first) partial's type
    std::uint16_t format = 0;        ///< of the answer's column
};

enum class Combinable : std::uint8_t { exactly, floating, unknown };
/// Whether sums of a type may be summed again, and give a column of type `result`.
[[nodiscard]] Combinable combinable(Combination::Kind kind, std::uint32_t partial,
                                    std::uint32_t result);

class PartialSums {
  public:
    /// Each combination must be combinable exactly.
    explicit PartialSums(std::vector<Combination> combinations);

    /// The statement, for Parse; its parameters' types are declared.
    [[nodiscard]] const std::string &text() const { return text_; }
    /// Partial values that a row has: one a count or sum, two a ratio, in order.
    [[nodiscard]] std::size_t width() const { return types_.size(); }

    /// Adds a shard's partial values (binary) of a group. Groups come one after another, as their
    /// position says, which counts from 0 without gaps.
    void add(std::uint32_t group, std::span<const Field> partials);
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

    /// Appends the request for the next groups (Bind, Execute and Sync; before the first also Parse
    /// of the unnamed statement) and says which they are: [begin, end). Nothing when all were
    /// asked. Each group answers one row, in order.
    struct Groups {
        std::uint32_t begin = 0;
        std::uint32_t end = 0;
    };
    [[nodiscard]] std::optional<Groups> request(Buffer &out);

    static constexpr std::size_t batch_bytes = std::size_t{256} * 1024;

  private:
    /// Whole groups' values, as the elements of binary arrays.
    struct Batch {
        Groups groups;
        std::uint32_t rows = 0;
        std::size_t size = 0;
        std::vector<std::string> arrays;  ///< the positions first
        std::vector<bool> nulls;          ///< an array holds one
    };
    void append(Batch &batch, std::size_t array, const Field &value);

    std::vector<Combination> combinations_;
    std::vector<std::uint32_t> types_;  ///< of the partials
    std::string text_;
    std::vector<Batch> batches_;
    std::size_t asked_ = 0;  ///< batches
    std::size_t bytes_ = 0;
};

}  // namespace interlock
