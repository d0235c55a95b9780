// Arrays of shard keys, element by element, in PostgreSQL's text and binary formats.
//
// One dimension, numbered from wherever. What is accepted means the same to every version of
// PostgreSQL; of the text format that leaves out backslashes outside of quotes, dimensions
// ("[1:2]={...}") and nested arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace interlock {

enum class ArrayStep : std::uint8_t { element, null, end, malformed };

class TextArray {
  public:
    explicit TextArray(std::string_view text) : text_(text) {}
    /// Moves to the next element. `element` is valid until the next call; set for
    /// ArrayStep::element only. After `end` or `malformed` there is nothing more to ask.
    [[nodiscard]] ArrayStep next(std::string_view &element);

  private:
    void skip_blanks();
    [[nodiscard]] ArrayStep quoted(std::string_view &element);
    [[nodiscard]] ArrayStep bare(std::string_view &element);
    [[nodiscard]] ArrayStep last() const;

    std::string_view text_;
    std::size_t at_ = 0;
    bool started_ = false;
    std::string scratch_;
};

class BinaryArray {
  public:
    explicit BinaryArray(std::string_view bytes);
    /// OID of the elements' type; nothing when the array's head is malformed.
    [[nodiscard]] std::optional<std::uint32_t> element_type() const { return element_type_; }
    /// As TextArray::next(); `element` points into the array.
    [[nodiscard]] ArrayStep next(std::string_view &element);

  private:
    [[nodiscard]] std::optional<std::uint32_t> number();

    std::string_view rest_;
    std::optional<std::uint32_t> element_type_;
    std::uint32_t left_ = 0;  ///< elements
};

}  // namespace interlock
