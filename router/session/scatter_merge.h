// The order in which the rows of several sorted streams are taken: by the bytes of their keys.
//
// Nothing is known here of what the keys mean, and nothing of where the rows come from. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// Which of the streams' heads comes first: a tournament, so that a new head is compared with about
/// log2(streams) others. Keys are views: a head's key must stay where it is until the stream's next
/// head() or end().
class MergeOrder {
  public:
    static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

    explicit MergeOrder(std::size_t streams);

    /// The stream's head. Once every stream has had a first head() or end() and least() was asked,
    /// only of the stream that least() names.
    void head(std::size_t stream, std::string_view key);
    /// The stream has no more rows.
    void end(std::size_t stream);

    /// The stream whose head has the least key, of equal ones the first; none when all have ended.
    [[nodiscard]] std::size_t least();
    [[nodiscard]] std::string_view key(std::size_t stream) const { return heads_[stream].key; }

    /// Another stream whose head has the same key as that of least(), which must not be none; none
    /// if there is no such stream.
    [[nodiscard]] std::size_t rival();

  private:
    struct Head {
        std::string_view key;
        bool ended = false;
    };
    [[nodiscard]] bool before(std::size_t one, std::size_t other) const;
    void build();
    void replay(std::size_t stream);

    std::vector<Head> heads_;
    std::vector<std::size_t> losers_;  ///< [0]: the winner; [i]: who lost at inner node i
    bool built_ = false;
};

/// What is wrong with a key, in the row of one stream.
enum class KeyFault : std::uint8_t {
    none,
    malformed,  ///< not a key at all
    digest,     ///< of another declaration than the others'
    falls,      ///< smaller than the one before it: the stream is not sorted
    repeats,    ///< equal to the one before it
};

/// Checks the keys of one stream as they come.
class KeyCheck {
  public:
    /// `digest`: what each key must begin with; may be empty.
    [[nodiscard]] KeyFault take(std::string_view key, std::string_view digest);

  private:
    std::string last_;
    bool any_ = false;
};

/// Hex digits of a keyset's digest at the front of each key of its rows.
inline constexpr std::size_t keyset_digest_digits = 16;

}  // namespace interlock
