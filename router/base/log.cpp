#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <unistd.h>

namespace interlock {

namespace {

std::atomic<LogLevel> threshold{LogLevel::info};

const char *label(LogLevel level) {
    switch (level) {
    case LogLevel::error: return "ERROR";
    case LogLevel::warning: return "WARNING";
    case LogLevel::info: return "LOG";
    case LogLevel::debug: return "DEBUG";
    }
    return "LOG";
}

std::string vformat(const char *format, std::va_list args) {
    std::va_list again;
    va_copy(again, args);
    const int length = std::vsnprintf(nullptr, 0, format, args);
    std::string text(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
    std::vsnprintf(text.data(), text.size() + 1, format, again);
    va_end(again);
    return text;
}

}  // namespace

void set_log_level(LogLevel level) {
    threshold.store(level, std::memory_order_relaxed);
}

bool parse_log_level(std::string_view name, LogLevel &out) {
    if (name == "error")
        out = LogLevel::error;
    else if (name == "warning")
        out = LogLevel::warning;
    else if (name == "info")
        out = LogLevel::info;
    else if (name == "debug")
        out = LogLevel::debug;
    else
        return false;
    return true;
}

void log_message(LogLevel level, std::string_view message) {
    if (level > threshold.load(std::memory_order_relaxed)) return;
    std::timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    std::tm utc{};
    ::gmtime_r(&now.tv_sec, &utc);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &utc);
    std::string line =
        format("%s.%03ld UTC [%d] %s: ", stamp, now.tv_nsec / 1000000, ::getpid(), label(level));
    for (char c : message)
        line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    while (!line.empty() && line.back() == ' ')
        line.pop_back();
    line += '\n';
    // One write, so that lines of several threads do not mix. A failing standard error is ignored.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

#define INTERLOCK_LOG_FUNCTION(name, level)                                                        \
    void name(const char *format, ...) {                                                           \
        if (level > threshold.load(std::memory_order_relaxed)) return;                             \
        std::va_list args;                                                                         \
        va_start(args, format);                                                                    \
        const std::string text = vformat(format, args);                                            \
        va_end(args);                                                                              \
        log_message(level, text);                                                                  \
    }

INTERLOCK_LOG_FUNCTION(log_error, LogLevel::error)
INTERLOCK_LOG_FUNCTION(log_warning, LogLevel::warning)
INTERLOCK_LOG_FUNCTION(log_info, LogLevel::info)
INTERLOCK_LOG_FUNCTION(log_debug, LogLevel::debug)

std::string format(const char *format, ...) {
    std::va_list args;
    va_start(args, format);
    std::string text = vformat(format, args);
    va_end(args);
    return text;
}

}  // namespace interlock
