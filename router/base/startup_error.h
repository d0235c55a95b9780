// What stops a command before it has begun: a wrong flag, a wrong configuration file, a missing
// file.
//
// Exceptions are used at start-up (and in the tools' control connections) only; the data path has
// errors as values.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace interlock {

/// The command line or the configuration file is wrong: exit status 2.
/// what() is the whole text as a person reads it: the message, and on further lines DETAIL and
/// HINT.
class StartupError : public std::runtime_error {
  public:
    explicit StartupError(const std::string &message, std::string hint = {})
        : std::runtime_error(hint.empty() ? message : message + "\nHINT:  " + hint),
          message_(message), hint_(std::move(hint)) {}

    const std::string &message() const { return message_; }
    const std::string &hint() const { return hint_; }

    /// The same on one line, for a log: "message; HINT: hint".
    std::string one_line() const {
        return hint_.empty() ? message_ : message_ + "; HINT: " + hint_;
    }

  private:
    std::string message_;
    std::string hint_;
};

}  // namespace interlock
