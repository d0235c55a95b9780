// A value or the reason why there is none. Errors on the data path are values, never exceptions.
#pragma once

#include <utility>
#include <variant>

namespace interlock {

template <typename T, typename E>
class [[nodiscard]] Result {
  public:
    Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
    Result(E error) : content_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool ok() const { return content_.index() == 0; }
    explicit operator bool() const { return ok(); }

    [[nodiscard]] T &value() { return *std::get_if<0>(&content_); }
    [[nodiscard]] const T &value() const { return *std::get_if<0>(&content_); }
    [[nodiscard]] E &error() { return *std::get_if<1>(&content_); }
    [[nodiscard]] const E &error() const { return *std::get_if<1>(&content_); }

    T &operator*() { return value(); }
    const T &operator*() const { return value(); }
    T *operator->() { return &value(); }
    const T *operator->() const { return &value(); }

  private:
    std::variant<T, E> content_;
};

}  // namespace interlock
