// Task<T>: a lazily started coroutine that somebody awaits.
//
// Errors are values here, so an exception that reaches a coroutine's end is a fault of ours and
// ends the process (the router keeps nothing that would need recovery). Frames come from a free
// list a thread, because a statement runs through several of them.
#pragma once

// GCC 12 (Debian 12's) gives a coroutine that has no local variable but awaits inside a condition a
// frame whose promise is not where std::coroutine_handle::from_promise looks for it: resuming such
// a coroutine destroys it. tests/unit/task_test.cpp holds the smallest case.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#error "GCC 12 and older miscompile coroutines: compile the router with clang++ 14 or newer"
#endif

#include <array>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <utility>

namespace interlock {

namespace detail {

/// Free lists of coroutine frames by size, in steps of 32 bytes. Frames are always freed by the
/// thread that made them: a loop and its coroutines belong to one thread.
class FramePool {
  public:
    static void *take(std::size_t size) {
        if (sanitized) return ::operator new(size);
        const std::size_t slot = (size + step - 1) / step;
        if (slot >= slots) return ::operator new(size);
        auto &head = lists().heads[slot];
        if (head == nullptr) return ::operator new(slot *step);
        Node *node = head;
        head = node->next;
        return node;
    }
    static void give(void *frame, std::size_t size) {
        const std::size_t slot = (size + step - 1) / step;
        if (sanitized || slot >= slots) {
            ::operator delete(frame);
            return;
        }
        auto &head = lists().heads[slot];
        head = ::new (frame) Node{head};
    }

  private:
    struct Node {
        Node *next;
    };
    // A recycled frame would hide a use after free from the address sanitizer.
#if defined(__SANITIZE_ADDRESS__)
    static constexpr bool sanitized = true;
#elif defined(__has_feature)
    static constexpr bool sanitized = __has_feature(address_sanitizer);
#else
    static constexpr bool sanitized = false;
#endif
    static constexpr std::size_t step = 32;
    static constexpr std::size_t slots = 128;
    struct Lists {
        std::array<Node *, slots> heads{};
        ~Lists() {
            for (Node *head : heads)
                while (head != nullptr)
                    ::operator delete(std::exchange(head, head->next));
        }
    };
    static Lists &lists() {
        static thread_local Lists lists;
        return lists;
    }
};

struct PromiseBase {
    static void *operator new(std::size_t size) { return FramePool::take(size); }
    static void operator delete(void *frame, std::size_t size) { FramePool::give(frame, size); }

    std::suspend_always initial_suspend() noexcept { return {}; }
    void unhandled_exception() noexcept { std::terminate(); }

    struct FinalAwaiter {
        bool await_ready() noexcept { return false; }
        template <typename Promise>
        std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) noexcept {
            return self.promise().continuation;
        }
        void await_resume() noexcept {}
    };
    FinalAwaiter final_suspend() noexcept { return {}; }

    std::coroutine_handle<> continuation = std::noop_coroutine();
};

template <typename T>
struct Promise : PromiseBase {
    std::optional<T> value;
    std::coroutine_handle<Promise> get_return_object() {
        return std::coroutine_handle<Promise>::from_promise(*this);
    }
    template <typename U>
    void return_value(U &&result) {
        value.emplace(std::forward<U>(result));
    }
    T take() { return std::move(*value); }
};

template <>
struct Promise<void> : PromiseBase {
    std::coroutine_handle<Promise> get_return_object() {
        return std::coroutine_handle<Promise>::from_promise(*this);
    }
    void return_void() {}
    void take() {}
};

}  // namespace detail

template <typename T = void>
class [[nodiscard]] Task {
  public:
    using promise_type = detail::Promise<T>;

    Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
    Task(Task &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Task &operator=(Task &&) = delete;
    ~Task() {
        if (handle_) handle_.destroy();
    }

    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
        handle_.promise().continuation = awaiting;
        return handle_;
    }
    T await_resume() { return handle_.promise().take(); }

  private:
    std::coroutine_handle<promise_type> handle_;
};

/// A coroutine that nobody awaits: it runs at once, up to its first wait, and frees itself at its
/// end.
struct Detached {
    struct promise_type : detail::PromiseBase {
        Detached get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
    };
};

/// Starts `task` and lets it run on its own.
inline Detached spawn(Task<void> task) {
    co_await std::move(task);
}

}  // namespace interlock
