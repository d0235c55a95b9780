// Command lines: flags in, variables_map out, with errors a person can act on.
#pragma once

#include <string>
#include <vector>

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>

#include "base/settings.h"

namespace interlock {

/// Parses `args` (without program and command name) by `flags`. No abbreviations, no positional
/// arguments. Throws StartupError: unknown flag (with the one probably meant), missing value, a
/// flag given twice, an argument that is no flag. The messages name the flag, not its value, which
/// may hold a password.
/// With `others`, arguments that are no flags go there instead.
boost::program_options::variables_map
parse_flags(const std::vector<std::string> &args,
            const boost::program_options::options_description &flags,
            std::vector<std::string> *others = nullptr);

/// One group of flags per section of the settings, made from the setting table. If `only` is not
/// empty, only that section.
boost::program_options::options_description setting_flags(const std::string &only = {});

/// Sets what was given by flags. Throws StartupError.
void apply_setting_flags(const boost::program_options::variables_map &given, Settings &settings);

/// --catalog and -c/--config, for commands that need nothing but the catalog.
void add_catalog_flags(boost::program_options::options_description &flags);
/// Settings from those two. Throws StartupError when they name no catalog.
Settings catalog_settings(const boost::program_options::variables_map &given);

/// The duration that the flag was given, from 1ms to 7d, else `value` stays. Throws StartupError.
void take_duration(const boost::program_options::variables_map &given, const char *flag,
                   std::int64_t &value);

/// Settings of `interlock serve` from its arguments: defaults, then the file named by -c/--config,
/// then the flags. Throws StartupError; no catalog given is an error too.
Settings load_settings(const std::vector<std::string> &args);

/// The same again for SIGHUP: true and `fresh`, or false and `error` in one line. Never throws.
/// `fresh` holds everything as it is now written, the settings that need a restart included.
bool reload_settings(const std::vector<std::string> &args, Settings &fresh, std::string &error);

/// Names of the settings that differ but need a restart to take effect.
std::vector<std::string> restart_needed(const Settings &running, const Settings &fresh);

/// Copies the settings that need a restart from `running`, so that `fresh` says what is in force.
void keep_restart_settings(const Settings &running, Settings &fresh);

/// The text of `interlock serve --help`.
std::string serve_help();

}  // namespace interlock
