// A byte queue: bytes are appended at the end and consumed at the front.
//
// One contiguous block, so that a frame or a line can be looked at in place. The owner decides the
// bound (it stops reading when size() reaches it); the buffer itself only grows. An empty buffer
// owns nothing: what it held goes back at once, so that an idle connection costs no memory, and
// views into it end there. Blocks of the usual size come from a free list of the thread, so that a
// busy connection costs no allocation either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace interlock {

namespace detail {

/// Blocks of one size, the most recently used first (it is in the cache). A few are kept.
class BlockPool {
  public:
    static constexpr std::size_t block_size = 16 * 1024;

    static char *take() {
        Node *node = list_.head;
        if (node == nullptr) return static_cast<char *>(::operator new(block_size));
        list_.head = node->next;
        --list_.count;
        return reinterpret_cast<char *>(node);
    }
    static void give(char *block) {
        if (sanitized || list_.count >= kept) {
            ::operator delete(block);
            return;
        }
        list_.head = ::new (static_cast<void *>(block)) Node{list_.head};
        ++list_.count;
    }

  private:
    struct Node {
        Node *next;
    };
    struct List {
        Node *head;
        std::size_t count;
    };
    // A recycled block would hide a use after free from the address sanitizer.
#if defined(__SANITIZE_ADDRESS__)
    static constexpr bool sanitized = true;
#elif defined(__has_feature)
    static constexpr bool sanitized = __has_feature(address_sanitizer);
#else
    static constexpr bool sanitized = false;
#endif
    static constexpr std::size_t kept = 64;
    // Without a destructor, so that an access costs nothing. Threads with a loop live as long as
    // the process.
    static inline constinit thread_local List list_{nullptr, 0};
};

}  // namespace detail

class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { give_back(); }
    Buffer(Buffer &&other) noexcept
        : block_(std::exchange(other.block_, nullptr)),
          capacity_(std::exchange(other.capacity_, 0)), begin_(std::exchange(other.begin_, 0)),
          end_(std::exchange(other.end_, 0)) {}
    Buffer &operator=(Buffer &&other) noexcept {
        if (this == &other) return *this;
        give_back();
        block_ = std::exchange(other.block_, nullptr);
        capacity_ = std::exchange(other.capacity_, 0);
        begin_ = std::exchange(other.begin_, 0);
        end_ = std::exchange(other.end_, 0);
        return *this;
    }

    [[nodiscard]] const char *data() const { return block_ + begin_; }
    [[nodiscard]] char *data() { return block_ + begin_; }
    [[nodiscard]] std::size_t size() const { return end_ - begin_; }
    [[nodiscard]] bool empty() const { return begin_ == end_; }
    [[nodiscard]] std::string_view view() const { return {data(), size()}; }

    /// Makes room for at least `bytes` more and returns where they go; commit() says how many came.
    /// If none did, settle().
    char *prepare(std::size_t bytes) {
        if (capacity_ - end_ < bytes) make_room(bytes);
        return block_ + end_;
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

    /// Drops the first `bytes`, which must be there. Views end when the last byte is dropped.
    void consume(std::size_t bytes) {
        begin_ += bytes;
        settle();
    }
    /// Drops everything after the first `bytes` (undoing appends).
    void truncate(std::size_t bytes) {
        end_ = begin_ + bytes;
        settle();
    }
    void clear() {
        end_ = begin_;
        settle();
    }
    /// Gives the memory back if nothing is in it.
    void settle() {
        if (begin_ == end_) give_back();
    }

    static constexpr std::size_t block_size = detail::BlockPool::block_size;

  private:
    void give_back() {
        release(block_, capacity_);
        block_ = nullptr;
        capacity_ = begin_ = end_ = 0;
    }
    static void release(char *block, std::size_t capacity) {
        if (capacity == block_size)
            detail::BlockPool::give(block);
        else if (capacity != 0)
            ::operator delete(block);
    }
    void make_room(std::size_t bytes) {
        const std::size_t used = size();
        // Moving costs no more than what was consumed since the last time.
        if (capacity_ >= used + bytes && begin_ >= used) {
            std::memmove(block_, block_ + begin_, used);
        } else {
            std::size_t wanted = capacity_ == 0 ? block_size : capacity_;
            while (wanted < used + bytes)
                wanted *= 2;
            char *block = wanted == block_size ? detail::BlockPool::take()
                                               : static_cast<char *>(::operator new(wanted));
            if (used > 0) std::memcpy(block, block_ + begin_, used);
            release(block_, capacity_);
            block_ = block;
            capacity_ = wanted;
        }
        begin_ = 0;
        end_ = used;
    }

    char *block_ = nullptr;
    std::size_t capacity_ = 0;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
};

}  // namespace interlock
