#include "tools/move_steps.h"

#include <csignal>
#include <cstdlib>
#include <string>

namespace interlock {

namespace {

void stop_at(const char *when, MoveStep step) {
    const char *const wanted = std::getenv("INTERLOCK_TEST_STOP");
    // Once: a run that comes to the step again, after an outage, goes on.
    static bool stopped = false;
    if (!wanted || stopped || wanted != std::string(when) + std::string(name_of(step))) return;
    stopped = true;
    std::raise(SIGSTOP);
}

}  // namespace

void stop_before(MoveStep step) {
    stop_at("before-", step);
}

void stop_after(MoveStep step) {
    stop_at("after-", step);
}

}  // namespace interlock
