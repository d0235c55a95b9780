// One-line logs to standard error: time, pid, level, message.
//
//   2026-01-31 12:00:00.123 UTC [4711] LOG: route version 3 in force
//
// Messages follow PostgreSQL's style. Line breaks inside a message are written as spaces, so that
// one event is one line. Safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

namespace interlock {

enum class LogLevel { error, warning, info, debug };

/// Messages above this level are dropped. May be changed at any time.
void set_log_level(LogLevel level);
/// "error", "warning", "info", "debug"; false when it is none of them.
[[nodiscard]] bool parse_log_level(std::string_view name, LogLevel &out);

void log_message(LogLevel level, std::string_view message);

[[gnu::format(printf, 1, 2)]] void log_error(const char *format, ...);
[[gnu::format(printf, 1, 2)]] void log_warning(const char *format, ...);
[[gnu::format(printf, 1, 2)]] void log_info(const char *format, ...);
[[gnu::format(printf, 1, 2)]] void log_debug(const char *format, ...);

/// printf into a string.
[[nodiscard]] [[gnu::format(printf, 1, 2)]] std::string format(const char *format, ...);

}  // namespace interlock
