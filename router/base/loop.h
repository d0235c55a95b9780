// The event loop: level-triggered epoll, a timer heap, coroutines that wait.
//
// A coroutine waits for the first of several things, never without a deadline:
//
//     auto fired = co_await Wait(loop, deadline).read(client).read(backend).event(wake);
//     if (fired.none()) ...          // the deadline passed
//     if (fired.has(0)) ...          // the first thing named (client) is ready
//
// One loop belongs to one thread. Only post() may be called from others. A descriptor's direction
// and an event have at most one waiter at a time.
#pragma once

#include "base/fd.h"

#include <array>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

namespace interlock {

class Loop;
class Waiter;

/// Milliseconds of the monotonic clock.
using Millis = std::int64_t;
inline constexpr Millis never = std::numeric_limits<Millis>::max();

/// now + timeout, or never for a timeout of 0 or less ("0 turns it off") .
constexpr Millis deadline_after(Millis now, Millis timeout) {
    return timeout <= 0 || timeout >= never - now ? never : now + timeout;
}

/// A descriptor the loop watches. Does not own the descriptor; must be destroyed before it is
/// closed.
class Watch {
  public:
    Watch(Loop &loop, int fd) : loop_(loop), fd_(fd) {}
    ~Watch();
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] Loop &loop() const { return loop_; }

    /// Called when the descriptor becomes readable (or breaks) while nobody waits to read it, if
    /// set: how a pool notices that an idle connection died. It may destroy this Watch. Takes
    /// effect while arm_stray() keeps the descriptor armed.
    void on_stray(void (*callback)(void *), void *argument) {
        stray_ = callback;
        stray_argument_ = argument;
    }
    void arm_stray();
    /// The same, but only for the end of the other side: what it sends before stays unheard.
    void arm_hangup();
    /// The other side has closed its end, whether or not all that it has sent was read.
    [[nodiscard]] bool hung_up() const;

  private:
    friend class Loop;
    friend class Waiter;
    void control(int operation);
    void arm(std::uint32_t events) {
        if ((armed_ & events) != events) arm_more(events);
    }
    void arm_more(std::uint32_t events);
    void disarm(std::uint32_t events);
    void forget();

    Loop &loop_;
    int fd_;
    std::uint32_t armed_ = 0;
    bool registered_ = false;
    Waiter *reader_ = nullptr;
    Waiter *writer_ = nullptr;
    void (*stray_)(void *) = nullptr;
    void *stray_argument_ = nullptr;
};

/// Something that happens inside the process. Stays set until reset().
class Event {
  public:
    void set();
    void reset() { set_ = false; }
    [[nodiscard]] bool is_set() const { return set_; }

  private:
    friend class Waiter;
    bool set_ = false;
    Waiter *waiter_ = nullptr;
};

/// Which of the things waited for are ready, in the order they were named.
struct Fired {
    std::uint32_t bits = 0;
    [[nodiscard]] bool none() const { return bits == 0; }
    [[nodiscard]] bool has(unsigned position) const { return (bits >> position & 1U) != 0; }
};

/// A descriptor's direction or an event. One word, because each idle session waits for a few.
class Source {
  public:
    enum class Kind : std::uint8_t { read, write, event };

    Source() = default;
    Source(Kind kind, const void *what)
        : word_(reinterpret_cast<std::uintptr_t>(what) | static_cast<std::uintptr_t>(kind)) {}

    [[nodiscard]] Kind kind() const { return static_cast<Kind>(word_ & kind_bits); }
    /// Null where the kind is another, or the place holds nothing.
    [[nodiscard]] Watch *watch() const {
        return kind() == Kind::event ? nullptr : reinterpret_cast<Watch *>(word_ & ~kind_bits);
    }
    [[nodiscard]] Event *event() const {
        return kind() == Kind::event ? reinterpret_cast<Event *>(word_ & ~kind_bits) : nullptr;
    }
    bool operator==(const Source &) const = default;

  private:
    static constexpr std::uintptr_t kind_bits = 3;
    std::uintptr_t word_ = 0;
};

/// Describes a wait: co_await it. At most four things; a null Watch or Event holds a position and
/// never fires.
class Wait {
  public:
    Wait(Loop &loop, Millis deadline) : loop_(loop), deadline_(deadline) {}

    Wait &read(Watch *watch) { return add({Source::Kind::read, watch}); }
    Wait &read(Watch &watch) { return read(&watch); }
    Wait &write(Watch *watch) { return add({Source::Kind::write, watch}); }
    Wait &write(Watch &watch) { return write(&watch); }
    Wait &event(Event *event) { return add({Source::Kind::event, event}); }
    Wait &event(Event &e) { return event(&e); }

    [[nodiscard]] Waiter operator co_await() const;

  private:
    friend class Waiter;
    Wait &add(Source source) {
        sources_[count_++] = source;
        return *this;
    }

    Loop &loop_;
    Millis deadline_;
    std::array<Source, 4> sources_{};
    std::uint8_t count_ = 0;
};

/// The awaiter a Wait makes, which must outlive it (in one expression with co_await it does). Lives
/// in the waiting coroutine's frame, so a wait allocates nothing.
class Waiter {
  public:
    explicit Waiter(const Wait &wait) : wait_(wait) {}
    Waiter(const Waiter &) = delete;
    Waiter &operator=(const Waiter &) = delete;

    bool await_ready() {
        for (unsigned i = 0; i < wait_.count_; ++i)
            if (const Event *event = wait_.sources_[i].event(); event != nullptr && event->is_set())
                fired_ |= static_cast<std::uint8_t>(1U << i);
        return fired_ != 0;
    }
    void await_suspend(std::coroutine_handle<> awaiting);
    Fired await_resume() { return Fired{fired_}; }

  private:
    friend class Loop;
    friend class Event;
    void fire(Source source);
    void detach();
    [[nodiscard]] Millis deadline() const { return wait_.deadline_; }

    static constexpr std::size_t not_in_heap = std::numeric_limits<std::size_t>::max();

    const Wait &wait_;
    bool queued_ = false;
    std::uint8_t fired_ = 0;  ///< a bit for each source
    std::size_t heap_position_ = not_in_heap;
    std::coroutine_handle<> handle_;
};

inline Waiter Wait::operator co_await() const {
    return Waiter(*this);
}

/// Work that other threads have for a loop.
class Mailbox {
  public:
    Mailbox();
    Mailbox(const Mailbox &) = delete;
    Mailbox &operator=(const Mailbox &) = delete;

    /// Safe from any thread.
    void post(std::function<void()> work);

  private:
    friend class Loop;
    UniqueFd wake_;
    std::mutex mutex_;
    bool closed_ = false;
    std::vector<std::function<void()>> work_;
};

class Loop {
  public:
    /// Throws std::system_error when the kernel gives no epoll or event descriptor (start-up only).
    Loop();
    ~Loop();
    Loop(const Loop &) = delete;
    Loop &operator=(const Loop &) = delete;

    /// The time at the start of this round of the loop.
    [[nodiscard]] Millis now() const { return now_; }

    /// Runs until stop(). Coroutines still waiting then are left as they are.
    void run();
    void stop() { stopping_ = true; }

    /// Runs `work` on the loop's thread, soon. The only function for other threads.
    void post(std::function<void()> work) { mailbox_->post(std::move(work)); }

    /// What a thread holds that may outlive the loop: work posted after the loop's end is dropped.
    [[nodiscard]] const std::shared_ptr<Mailbox> &mailbox() const { return mailbox_; }

    [[nodiscard]] static Millis clock();

  private:
    friend class Watch;
    friend class Waiter;
    friend class Event;
    void make_ready(Waiter *wait);
    void add_timer(Waiter *wait);
    void remove_timer(Waiter *wait);
    void sift_up(std::size_t position);
    void sift_down(std::size_t position);
    void place(std::size_t position, Waiter *wait);
    void dispatch(Watch *watch, std::uint32_t events);
    void run_posted();

    UniqueFd epoll_;
    std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
    Millis now_;
    bool stopping_ = false;
    std::vector<Waiter *> ready_;
    std::vector<Waiter *> resuming_;
    std::vector<Waiter *> timers_;
};

}  // namespace interlock
