#include "base/loop.h"

#include "base/log.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <system_error>

namespace interlock {

namespace {

constexpr std::uint32_t read_events = EPOLLIN | EPOLLRDHUP;
constexpr std::uint32_t broken_events = EPOLLHUP | EPOLLERR;

}  // namespace

// Watch -------------------------------------------------------------------------------------------

Watch::~Watch() {
    forget();
}

// Without epoll's help a waiting session would hang for ever, unnoticed: better to end, loudly. The
// router keeps nothing that would be lost.
void Watch::control(int operation) {
    epoll_event event{};
    event.events = armed_;
    event.data.ptr = this;
    if (::epoll_ctl(loop_.epoll_.get(), operation, fd_, &event) == 0) return;
    log_error("could not watch descriptor %d: %s", fd_, std::strerror(errno));
    std::abort();
}

void Watch::arm_more(std::uint32_t events) {
    armed_ |= events;
    control(registered_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD);
    registered_ = true;
}

void Watch::disarm(std::uint32_t events) {
    if ((armed_ & events) == 0) return;
    armed_ &= ~events;
    if (armed_ == 0)
        forget();
    else
        control(EPOLL_CTL_MOD);
}

// Out of epoll altogether: a broken descriptor reports HUP whatever it is armed for, so with nobody
// waiting this is the only way not to spin.
void Watch::forget() {
    if (!registered_) return;
    control(EPOLL_CTL_DEL);
    registered_ = false;
    armed_ = 0;
}

void Watch::arm_stray() {
    arm(read_events);
}

void Watch::arm_hangup() {
    arm(EPOLLRDHUP);
}

bool Watch::hung_up() const {
    pollfd fd{fd_, POLLRDHUP, 0};
    return ::poll(&fd, 1, 0) > 0;
}

// Event -------------------------------------------------------------------------------------------

void Event::set() {
    set_ = true;
    if (waiter_ != nullptr) waiter_->fire({Source::Kind::event, this});
}

// Waiter ------------------------------------------------------------------------------------------

void Waiter::await_suspend(std::coroutine_handle<> awaiting) {
    handle_ = awaiting;
    for (unsigned i = 0; i < wait_.count_; ++i) {
        const Source source = wait_.sources_[i];
        if (Watch *watch = source.watch()) {
            const bool read = source.kind() == Source::Kind::read;
            (read ? watch->reader_ : watch->writer_) = this;
            watch->arm(read ? read_events : static_cast<std::uint32_t>(EPOLLOUT));
        } else if (Event *event = source.event()) {
            event->waiter_ = this;
        }
    }
    if (wait_.deadline_ != never) wait_.loop_.add_timer(this);
}

void Waiter::fire(Source source) {
    for (unsigned i = 0; i < wait_.count_; ++i)
        if (wait_.sources_[i] == source) fired_ |= static_cast<std::uint8_t>(1U << i);
    wait_.loop_.make_ready(this);
}

void Waiter::detach() {
    for (unsigned i = 0; i < wait_.count_; ++i) {
        const Source source = wait_.sources_[i];
        if (Watch *watch = source.watch()) {
            Waiter *&waiter = source.kind() == Source::Kind::read ? watch->reader_ : watch->writer_;
            if (waiter == this) waiter = nullptr;
        } else if (Event *event = source.event(); event != nullptr && event->waiter_ == this) {
            event->waiter_ = nullptr;
        }
    }
    if (heap_position_ != not_in_heap) wait_.loop_.remove_timer(this);
}

// Loop --------------------------------------------------------------------------------------------

Loop::Loop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), now_(clock()) {
    if (!epoll_.valid() || !mailbox_->wake_.valid())
        throw std::system_error(errno, std::generic_category(), "could not create an event loop");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = nullptr;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mailbox_->wake_.get(), &event) != 0)
        throw std::system_error(errno, std::generic_category(), "could not watch an event");
}

Millis Loop::clock() {
    std::timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<Millis>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

Loop::~Loop() {
    const std::lock_guard lock(mailbox_->mutex_);
    mailbox_->closed_ = true;
    mailbox_->work_.clear();
}

Mailbox::Mailbox() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Mailbox::post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    work_.push_back(std::move(work));
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Loop::run_posted() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(mailbox_->wake_.get(), &count, sizeof count);
    std::vector<std::function<void()>> work;
    {
        const std::lock_guard lock(mailbox_->mutex_);
        work.swap(mailbox_->work_);
    }
    for (auto &item : work)
        item();
}

void Loop::dispatch(Watch *watch, std::uint32_t events) {
    const bool broken = (events & broken_events) != 0;
    if ((events & EPOLLOUT) != 0 || broken) {
        if (watch->writer_ != nullptr)
            watch->writer_->fire({Source::Kind::write, watch});
        else if (!broken)
            watch->disarm(EPOLLOUT);
    }
    if ((events & read_events) != 0 || broken) {
        if (watch->reader_ != nullptr) {
            watch->reader_->fire({Source::Kind::read, watch});
        } else {
            if (broken && watch->writer_ == nullptr)
                watch->forget();
            else
                watch->disarm(read_events);
            if (watch->stray_ != nullptr) watch->stray_(watch->stray_argument_);  // may destroy it
        }
    }
}

void Loop::run() {
    std::array<epoll_event, 256> events;
    now_ = clock();
    while (!stopping_) {
        int timeout = -1;
        if (!ready_.empty()) {
            timeout = 0;
        } else if (!timers_.empty()) {
            // By the time at the start of this round: one look at the clock a round is enough, and
            // a timer is late by what the round took at most.
            const Millis left = timers_.front()->deadline() - now_;
            timeout = left <= 0 ? 0 : static_cast<int>(std::min<Millis>(left, 60000));
        }
        const int count =
            ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
        now_ = clock();
        bool mail = false;
        for (int i = 0; i < count; ++i) {
            if (events[i].data.ptr == nullptr)
                mail = true;
            else
                dispatch(static_cast<Watch *>(events[i].data.ptr), events[i].events);
        }
        if (mail) run_posted();
        while (!timers_.empty() && timers_.front()->deadline() <= now_) {
            Waiter *wait = timers_.front();
            remove_timer(wait);
            make_ready(wait);
        }
        // What becomes ready while these run is taken up in the next round, after a look at epoll.
        resuming_.swap(ready_);
        for (Waiter *wait : resuming_) {
            wait->detach();
            wait->handle_.resume();
        }
        resuming_.clear();
    }
}

void Loop::make_ready(Waiter *wait) {
    if (wait->queued_) return;
    wait->queued_ = true;
    ready_.push_back(wait);
}

// A binary heap whose members know their place, so that a wait that ends early leaves in O(log n).

void Loop::place(std::size_t position, Waiter *wait) {
    timers_[position] = wait;
    wait->heap_position_ = position;
}

void Loop::sift_up(std::size_t position) {
    Waiter *wait = timers_[position];
    while (position > 0) {
        const std::size_t parent = (position - 1) / 2;
        if (timers_[parent]->deadline() <= wait->deadline()) break;
        place(position, timers_[parent]);
        position = parent;
    }
    place(position, wait);
}

void Loop::sift_down(std::size_t position) {
    Waiter *wait = timers_[position];
    for (;;) {
        std::size_t child = position * 2 + 1;
        if (child >= timers_.size()) break;
        if (child + 1 < timers_.size() &&
            timers_[child + 1]->deadline() < timers_[child]->deadline())
            ++child;
        if (wait->deadline() <= timers_[child]->deadline()) break;
        place(position, timers_[child]);
        position = child;
    }
    place(position, wait);
}

void Loop::add_timer(Waiter *wait) {
    timers_.push_back(wait);
    wait->heap_position_ = timers_.size() - 1;
    sift_up(timers_.size() - 1);
}

void Loop::remove_timer(Waiter *wait) {
    const std::size_t position = wait->heap_position_;
    wait->heap_position_ = Waiter::not_in_heap;
    Waiter *last = timers_.back();
    timers_.pop_back();
    if (last == wait) return;
    place(position, last);
    sift_up(position);
    sift_down(last->heap_position_);
}

}  // namespace interlock
