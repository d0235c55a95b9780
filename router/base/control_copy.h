// COPY from one control connection into another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/control.h"

namespace interlock {

/// Called after each batch of rows went out, with the rows and bytes so far. May wait, to slow the
/// copy down; what it throws ends the copy.
using CopyProgress = std::function<void(std::int64_t rows, std::int64_t bytes)>;

/// Runs `copy_out` (COPY ... TO STDOUT) on one connection and `copy_in` (COPY ... FROM STDIN) on
/// the other, and lets the rows flow; both in a format with a row a message (text, csv). Holds some
/// 100 kB at a time. There is no limit to how long it takes, but `silence` ms without a byte on
/// either side end it. `copy_in` is ended and begun again each `commit_every` ms: outside a
/// transaction, what has come by then is committed. Returns the rows copied. Throws ControlError:
/// after that, transactions have failed or connections are of no use.
std::int64_t copy_rows(ControlConnection &from, const std::string &copy_out, ControlConnection &to,
                       const std::string &copy_in, std::int64_t silence, std::int64_t commit_every,
                       const CopyProgress &progress);

}  // namespace interlock
