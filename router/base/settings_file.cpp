#include "base/settings_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include <sys/stat.h>

#include "base/setting_table.h"
#include "base/startup_error.h"

namespace interlock {

namespace {

constexpr std::size_t max_file_size = 1 << 20;  // a configuration, not something given by mistake

std::string_view trim(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r\f\v");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\f\v") - first + 1);
}

/// One file being read: where we are, and what was seen before.
class Reader {
  public:
    Reader(const std::string &path, Settings &settings) : path_(path), settings_(settings) {}

    void line(std::string_view text) {
        ++line_;
        text = trim(text);
        if (text.empty() || text.front() == '#' || text.front() == ';') return;
        if (text.front() == '[')
            section(text);
        else
            setting(text);
    }

  private:
    [[noreturn]] void fail(const std::string &message, std::string hint = {}) const {
        throw StartupError(path_ + ":" + std::to_string(line_) + ": " + message, std::move(hint));
    }

    void section(std::string_view text) {
        if (text.back() != ']') fail("a section is written [name]");
        const std::string name(trim(text.substr(1, text.size() - 2)));
        if (section_title(name).empty()) {
            std::vector<std::string> known;
            std::string list;
            for (const std::string_view each : section_names()) {
                known.emplace_back(each);
                list += (list.empty() ? "[" : ", [") + std::string(each) + "]";
            }
            const std::string near = nearest_name(name, known);
            fail("unknown section [" + name + "]",
                 near.empty() ? "The sections are " + list + "." : "did you mean [" + near + "]?");
        }
        section_ = name;
    }

    void setting(std::string_view text) {
        const auto equals = text.find('=');
        if (equals == std::string_view::npos)
            fail("expected \"setting = value\", [section] or a comment",
                 "A comment begins with # or ;.");
        const std::string key(trim(text.substr(0, equals)));
        const std::string_view value = trim(text.substr(equals + 1));
        if (section_.empty()) fail("setting \"" + key + "\" stands before the first [section]");
        const std::string name = section_ + "." + key;
        const SettingSpec *spec = find_setting(section_, key);
        if (!spec) unknown(name, key);
        const auto [seen, first] = seen_.emplace(name, line_);
        if (!first)
            fail("setting \"" + name + "\" is given twice",
                 "It was given in line " + std::to_string(seen->second) + " before.");
        const std::string problem = set_setting(*spec, value, settings_);
        if (!problem.empty()) fail("setting \"" + name + "\" " + problem, value_hint(value));
    }

    [[noreturn]] void unknown(const std::string &name, const std::string &key) const {
        // The right key in the wrong section comes first, then a slip of the pen.
        std::vector<std::string> names;
        for (const SettingSpec &spec : setting_table()) {
            if (spec.key == key)
                fail("unknown setting \"" + name + "\"", "did you mean " + spec.name() + "?");
            names.push_back(spec.name());
        }
        const std::string near = nearest_name(name, names);
        fail("unknown setting \"" + name + "\"",
             near.empty() ? "\"interlock help serve\" lists the settings."
                          : "did you mean " + near + "?");
    }

    static std::string value_hint(std::string_view value) {
        if (!value.empty() && (value.front() == '"' || value.front() == '\''))
            return "A value is written without quotes.";
        if (value.find(" #") != std::string_view::npos ||
            value.find(" ;") != std::string_view::npos)
            return "A comment needs a line of its own.";
        return {};
    }

    const std::string &path_;
    Settings &settings_;
    std::size_t line_ = 0;
    std::string section_;
    std::map<std::string, std::size_t> seen_;
};

}  // namespace

void read_settings_text(std::string_view text, const std::string &path, Settings &settings) {
    if (text.starts_with("\xEF\xBB\xBF"))  // a byte-order mark some editors leave
        text.remove_prefix(3);
    Reader reader(path, settings);
    while (!text.empty()) {
        const auto end = text.find('\n');
        reader.line(text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
}

void read_settings_file(const std::string &path, Settings &settings) {
    const auto fail = [&path](const char *why) {
        throw StartupError("could not read configuration file \"" + path + "\": " + why);
    };
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) fail(std::strerror(errno));
    if (S_ISDIR(status.st_mode)) fail("it is a directory");
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(std::strerror(errno));
    std::string text(max_file_size + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (file.bad()) fail("read error");
    text.resize(static_cast<std::size_t>(file.gcount()));
    if (text.size() > max_file_size) fail("it is larger than 1 MB");
    read_settings_text(text, path, settings);
}

}  // namespace interlock
