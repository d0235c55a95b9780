// Signals that ask a mover to end: what they may not interrupt, and a last word on what to do next.
#pragma once

#include <csignal>

#include <string>

namespace interlock {

/// From here on SIGINT, SIGTERM and SIGHUP end the process only after the latest advice was written
/// to standard error, and not while an InterruptsHeld lives. To be called before there is any other
/// thread.
void answer_interrupts();

/// What an interrupted mover says.
void advise_interrupted(const std::string &text);

/// Nobody ends us, or stops us from a terminal, while buckets are shut: signals that ask for it
/// wait.
class InterruptsHeld {
  public:
    InterruptsHeld();
    ~InterruptsHeld();
    InterruptsHeld(const InterruptsHeld &) = delete;
    InterruptsHeld &operator=(const InterruptsHeld &) = delete;

  private:
    sigset_t before_;
};

}  // namespace interlock
