// The table of settings: for each one its name, kind, range and help, and where it lives in
// Settings.
//
// The configuration file, the flags, --help and the error messages are all made from this table, so
// a setting is added by adding its member to Settings and its row here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/settings.h"

namespace interlock {

/// How a setting's text is read.
enum class SettingKind : std::uint8_t {
    text,      ///< taken as it is
    conninfo,  ///< a libpq connection string; checked by libpq's own parser
    address,   ///< HOST:PORT, an IPv6 host in brackets; or empty
    word,      ///< one of the words the setting lists
    level,     ///< error, warning, info or debug
    duration,  ///< whole number and us, ms, s, min, h or d; a bare number is milliseconds
    bytes,     ///< whole number and B, kB, MB, GB or TB (1 kB = 1024 B); a bare number is bytes
    count,     ///< whole number
};

struct SettingSpec {
    using Member =
        std::variant<std::string Settings::*, std::int64_t Settings::*, std::size_t Settings::*>;

    std::string_view section;
    std::string_view key;
    SettingKind kind;
    Member member;
    std::int64_t min;  ///< least value allowed (numbers only)
    std::int64_t max;  ///< greatest value allowed (numbers only)
    bool restart;      ///< read once; a reload does not change it
    std::string_view help;
    std::string_view words = {};  ///< of a word setting: what it may be, separated by |

    /// "pool.size"
    std::string name() const;
    /// "pool-size"; catalog.conninfo is plain "catalog"
    std::string flag() const;
    /// What stands for the value in --help: N, DURATION, SIZE, HOST:PORT, CONNINFO, WORD, TEXT
    std::string_view value_name() const;
    /// "10ms to 1d"; empty if the kind has no range
    std::string range() const;
};

/// All settings, grouped by section, in the order of --help.
std::span<const SettingSpec> setting_table();

/// The setting called section.key, or null.
const SettingSpec *find_setting(std::string_view section, std::string_view key);

/// The title of a section in --help, or empty if there is no such section.
std::string_view section_title(std::string_view section);
/// The sections' names in order.
std::vector<std::string_view> section_names();

/// Reads `text` into the setting's member. Returns an empty string, or what is wrong with it, to be
/// put behind the setting's name: `must be from 1 to 10000, not 0`.
[[nodiscard]] std::string set_setting(const SettingSpec &spec, std::string_view text,
                                      Settings &settings);

/// The setting's value as it would be written in the file.
std::string setting_text(const SettingSpec &spec, const Settings &settings);

/// Reads a duration ("200", "5s", "2 min") as milliseconds, or nothing if it is not one.
/// Microseconds are rounded up. Never negative.
std::optional<std::int64_t> parse_duration(std::string_view text);
/// "200ms", "5s", "2min": the largest unit that is exact.
std::string format_duration(std::int64_t milliseconds);

/// The candidate that `name` was probably meant to be, or empty if none is near enough.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace interlock
