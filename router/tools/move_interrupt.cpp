#include "tools/move_interrupt.h"

#include <atomic>
#include <mutex>
#include <thread>

#include <unistd.h>

namespace interlock {

namespace {

struct Interrupts {
    std::mutex held;  ///< by whoever may not be interrupted
    std::atomic<bool> asked{false};
    std::mutex advice;  ///< guards the text
    std::string text;
};

/// Never destroyed: the thread that waits for signals outlives main().
Interrupts &interrupts() {
    static auto *const one = new Interrupts;
    return *one;
}

sigset_t set_of(std::initializer_list<int> signals) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : signals)
        sigaddset(&set, signal);
    return set;
}

void say_last_word() {
    std::string text = ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "";
    {
        const std::lock_guard lock(interrupts().advice);
        text += "interlock move: interrupted; " + interrupts().text + "\n";
    }
    // Whoever cannot read it any more does without.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

void answer_interrupts() {
    advise_interrupted("nothing was changed");
    const sigset_t signals = set_of({SIGINT, SIGTERM, SIGHUP});
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::thread([signals] {
        int signal = 0;
        if (sigwait(&signals, &signal) != 0) return;
        interrupts().asked = true;
        interrupts().held.lock();
        say_last_word();
        std::signal(signal, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        std::raise(signal);
    }).detach();
}

void advise_interrupted(const std::string &text) {
    const std::lock_guard lock(interrupts().advice);
    interrupts().text = text;
}

InterruptsHeld::InterruptsHeld() {
    interrupts().held.lock();
    const sigset_t signals = set_of({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTOU});
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

InterruptsHeld::~InterruptsHeld() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    interrupts().held.unlock();
    // No further: whoever has asked meanwhile is answered now.
    while (interrupts().asked)
        ::pause();
}

}  // namespace interlock
