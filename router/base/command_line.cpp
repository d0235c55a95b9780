#include "base/command_line.h"

#include <exception>
#include <sstream>
#include <variant>

#include <boost/program_options.hpp>

#include "base/setting_table.h"
#include "base/settings_file.h"
#include "base/startup_error.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

constexpr unsigned help_width = 100;

std::string unknown_flag_hint(const std::string &flag, const po::options_description &flags) {
    std::vector<std::string> names;
    for (const auto &option : flags.options())
        names.push_back("--" + option->long_name());
    const std::string near = nearest_name(flag, names);
    return near.empty() ? "--help lists the options." : "did you mean " + near + "?";
}

po::options_description serve_flags() {
    po::options_description flags(help_width, help_width / 2);
    po::options_description general("General", help_width, help_width / 2);
    general.add_options()("config,c", po::value<std::string>()->value_name("FILE"),
                          "configuration file; flags win over it")("help,h", "this text");
    flags.add(general);
    flags.add(setting_flags());
    return flags;
}

}  // namespace

po::variables_map parse_flags(const std::vector<std::string> &args,
                              const po::options_description &flags,
                              std::vector<std::string> *others) {
    // No guessing of abbreviations: a flag added later must not change what a script means.
    constexpr int style =
        po::command_line_style::allow_long | po::command_line_style::long_allow_next |
        po::command_line_style::long_allow_adjacent | po::command_line_style::allow_short |
        po::command_line_style::short_allow_next | po::command_line_style::short_allow_adjacent |
        po::command_line_style::allow_dash_for_short;
    try {
        const po::parsed_options parsed =
            po::command_line_parser(args).options(flags).style(style).run();
        for (const auto &option : parsed.options) {
            if (option.position_key < 0) continue;
            if (others != nullptr)
                others->insert(others->end(), option.value.begin(), option.value.end());
            else
                throw StartupError("unexpected argument \"" + option.value.at(0) + "\"",
                                   "Options begin with -- ; --help lists them.");
        }
        po::variables_map given;
        po::store(parsed, given);
        return given;
    } catch (const po::unknown_option &error) {
        const std::string flag = error.get_option_name();
        throw StartupError("unknown option \"" + flag + "\"", unknown_flag_hint(flag, flags));
    } catch (const po::multiple_occurrences &error) {
        throw StartupError("option \"" + error.get_option_name() + "\" is given twice");
    } catch (const po::error_with_option_name &error) {
        throw StartupError("option \"" + error.get_option_name() + "\" needs a value");
    } catch (const po::error &error) {
        throw StartupError(error.what());
    }
}

po::options_description setting_flags(const std::string &only) {
    po::options_description flags(help_width, help_width / 2);
    const Settings defaults;
    for (const std::string_view section : section_names()) {
        if (!only.empty() && section != only) continue;
        po::options_description group(std::string(section_title(section)), help_width,
                                      help_width / 2);
        for (const SettingSpec &spec : setting_table()) {
            if (spec.section != section) continue;
            std::string help(spec.help);
            const std::string standard = setting_text(spec, defaults);
            std::string notes = standard.empty() ? "" : "default " + standard;
            if (!spec.range().empty()) notes += (notes.empty() ? "" : ", ") + spec.range();
            if (spec.restart) notes += notes.empty() ? "restart" : ", restart";
            if (!notes.empty()) help += " (" + notes + ")";
            group.add_options()(
                spec.flag().c_str(),
                po::value<std::string>()->value_name(std::string(spec.value_name())), help.c_str());
        }
        flags.add(group);
    }
    return flags;
}

void apply_setting_flags(const po::variables_map &given, Settings &settings) {
    for (const SettingSpec &spec : setting_table()) {
        const auto flag = given.find(spec.flag());
        if (flag == given.end()) continue;
        const std::string problem = set_setting(spec, flag->second.as<std::string>(), settings);
        if (!problem.empty()) throw StartupError("option \"--" + spec.flag() + "\" " + problem);
    }
}

void add_catalog_flags(po::options_description &flags) {
    flags.add_options()("catalog", po::value<std::string>()->value_name("CONNINFO"),
                        "connection string of the catalog database; required here or in the file")(
        "config,c", po::value<std::string>()->value_name("FILE"),
        "configuration file, as for \"interlock serve\"; its section [catalog] is used");
}

Settings catalog_settings(const po::variables_map &given) {
    Settings settings;
    if (given.count("config")) read_settings_file(given["config"].as<std::string>(), settings);
    apply_setting_flags(given, settings);  // --catalog
    if (settings.catalog_conninfo.empty())
        throw StartupError(
            "no catalog is given",
            "Use --catalog CONNINFO, or -c FILE with conninfo in section [catalog].");
    return settings;
}

void take_duration(const po::variables_map &given, const char *flag, std::int64_t &value) {
    const auto found = given.find(flag);
    if (found == given.end()) return;
    const auto parsed = parse_duration(found->second.as<std::string>());
    constexpr std::int64_t longest = std::int64_t{7} * 24 * 3'600'000;
    if (!parsed || *parsed < 1 || *parsed > longest)
        throw StartupError(std::string("option \"--") + flag +
                           "\" must be a duration from 1ms to 7d, not \"" +
                           found->second.as<std::string>() + "\"");
    value = *parsed;
}

Settings load_settings(const std::vector<std::string> &args) {
    const po::variables_map given = parse_flags(args, serve_flags());
    Settings settings;
    if (given.count("config")) read_settings_file(given["config"].as<std::string>(), settings);
    apply_setting_flags(given, settings);
    if (settings.catalog_conninfo.empty())
        throw StartupError("no catalog is given",
                           "Use --catalog CONNINFO, or conninfo in section [catalog] of the "
                           "configuration file.");
    if (settings.line_listen.empty() && settings.pg_listen.empty())
        throw StartupError("no listener is given",
                           "Set listen in section [pg] or [line] of the configuration file.");
    return settings;
}

bool reload_settings(const std::vector<std::string> &args, Settings &fresh, std::string &error) {
    try {
        fresh = load_settings(args);
        return true;
    } catch (const StartupError &failure) {
        error = failure.one_line();
    } catch (const std::exception &failure) {
        error = failure.what();
    }
    return false;
}

std::vector<std::string> restart_needed(const Settings &running, const Settings &fresh) {
    std::vector<std::string> names;
    for (const SettingSpec &spec : setting_table())
        if (spec.restart && setting_text(spec, running) != setting_text(spec, fresh))
            names.push_back(spec.name());
    return names;
}

void keep_restart_settings(const Settings &running, Settings &fresh) {
    for (const SettingSpec &spec : setting_table())
        if (spec.restart)
            std::visit([&](auto member) { fresh.*member = running.*member; }, spec.member);
}

std::string serve_help() {
    std::ostringstream out;
    out << "Usage: interlock serve [-c FILE] --catalog CONNINFO [OPTION]...\n"
           "\n"
           "Runs the router: reads the route table from the catalog, watches it, and serves "
           "clients\n"
           "until it is told to stop.\n"
           "\n"
           "Every option can stand in the configuration file as well: --pool-size=8 is \"size = "
           "8\"\n"
           "in section [pool]; --catalog is \"conninfo\" in section [catalog]. Options win over "
           "the\n"
           "file.\n"
           "  DURATION  a whole number and us, ms, s, min, h or d; without a unit, milliseconds\n"
           "  SIZE      a whole number and B, kB, MB, GB or TB (1 kB = 1024 B); without, bytes\n"
           "  restart   the setting is read once; the others take effect on SIGHUP as well\n"
        << serve_flags()
        << "\n"
           "Signals: SIGTERM finishes transactions in progress and ends, SIGINT ends now, SIGHUP\n"
           "reads the configuration again.\n"
           "\n"
           "Exit status: 0 ended as told, 1 failed, 2 the command line or the configuration file "
           "is\n"
           "wrong.\n";
    return out.str();
}

}  // namespace interlock
