// `interlock serve`: listeners, catalog watcher, signals, until told to stop.
#pragma once

#include "base/settings.h"

#include <functional>
#include <string>

namespace interlock {

/// Reads the settings anew for SIGHUP: false and `error` when they are wrong.
using ReloadSettings = std::function<bool(Settings &out, std::string &error)>;

/// Runs the router. Returns the process's exit status: 0 after SIGTERM or SIGINT, 1 when it could
/// not start (the reason is logged).
///
/// SIGTERM finishes transactions in progress (bounded by limits.shutdown_timeout), SIGINT stops
/// now, SIGHUP reloads.
[[nodiscard]] int serve(Settings settings, ReloadSettings reload);

}  // namespace interlock
