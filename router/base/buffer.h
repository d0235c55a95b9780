// A byte queue: bytes are appended at the end and consumed at the front.
//
// One contiguous block, so that a frame or a line can be looked at in place. The owner decides the
// bound (it stops reading when size() reaches it); the buffer itself only grows. clear() keeps a
// small block for reuse and gives a large one back, so that an idle connection costs little.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

namespace interlock {

class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer &&other) noexcept
        : block_(std::move(other.block_)), capacity_(std::exchange(other.capacity_, 0)),
          begin_(std::exchange(other.begin_, 0)), end_(std::exchange(other.end_, 0)) {}
    Buffer &operator=(Buffer &&other) noexcept {
        block_ = std::move(other.block_);
        capacity_ = std::exchange(other.capacity_, 0);
        begin_ = std::exchange(other.begin_, 0);
        end_ = std::exchange(other.end_, 0);
        return *this;
    }

    [[nodiscard]] const char *data() const { return block_.get() + begin_; }
    [[nodiscard]] char *data() { return block_.get() + begin_; }
    [[nodiscard]] std::size_t size() const { return end_ - begin_; }
    [[nodiscard]] bool empty() const { return begin_ == end_; }
    [[nodiscard]] std::string_view view() const { return {data(), size()}; }

    /// Makes room for at least `bytes` more and returns where they go; commit() says how many came.
    char *prepare(std::size_t bytes) {
        if (capacity_ - end_ < bytes) make_room(bytes);
        return block_.get() + end_;
    }
    [[nodiscard]] std::size_t room() const { return capacity_ - end_; }
    void commit(std::size_t bytes) { end_ += bytes; }

    void append(std::string_view bytes) {
        if (bytes.empty()) return;
        std::memcpy(prepare(bytes.size()), bytes.data(), bytes.size());
        end_ += bytes.size();
    }
    void append(char byte) {
        *prepare(1) = byte;
        ++end_;
    }

    /// Drops the first `bytes`, which must be there.
    void consume(std::size_t bytes) {
        begin_ += bytes;
        if (begin_ == end_) clear();
    }
    /// Drops everything after the first `bytes` (undoing appends).
    void truncate(std::size_t bytes) { end_ = begin_ + bytes; }

    void clear() {
        begin_ = end_ = 0;
        if (capacity_ > kept_when_empty) {
            block_.reset();
            capacity_ = 0;
        }
    }

    static constexpr std::size_t kept_when_empty = 16 * 1024;

  private:
    void make_room(std::size_t bytes) {
        const std::size_t used = size();
        if (capacity_ >= used + bytes && begin_ >= capacity_ / 2) {
            std::memmove(block_.get(), block_.get() + begin_, used);
        } else {
            std::size_t wanted = capacity_ == 0 ? 512 : capacity_;
            while (wanted < used + bytes)
                wanted *= 2;
            std::unique_ptr<char[]> block(new char[wanted]);
            if (used > 0) std::memcpy(block.get(), block_.get() + begin_, used);
            block_ = std::move(block);
            capacity_ = wanted;
        }
        begin_ = 0;
        end_ = used;
    }

    std::unique_ptr<char[]> block_;
    std::size_t capacity_ = 0;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
};

}  // namespace interlock
