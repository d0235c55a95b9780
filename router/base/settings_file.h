// The configuration file: INI, read line by line so that every complaint can name its line.
//
//   [pool]
//   # connections to a shard
//   size = 8
//
// A comment is a whole line beginning with # or ;. A value is the rest of its line, without quotes
// (so that a # or a quote inside a connection string means itself).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"

namespace interlock {

/// Reads the file `path` into `settings`; what the file does not mention keeps its value. Throws
/// StartupError with "path:line: what is wrong": unknown section or setting (with the one probably
/// meant), a setting given twice, a value out of range, a line that is no setting.
void read_settings_file(const std::string &path, Settings &settings);

/// The same for a text already in memory; `path` is used in messages only.
void read_settings_text(std::string_view text, const std::string &path, Settings &settings);

}  // namespace interlock
