#include "tools/route_source.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/control.h"
#include "base/setting_table.h"
#include "base/settings_file.h"
#include "base/startup_error.h"
#include "route/catalog_watcher.h"
#include "sql/analysis.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

bool begins_character(char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

/// The byte at which the character number `position`, from 1, begins.
std::size_t byte_of(std::string_view text, std::size_t position) {
    std::size_t seen = 0;
    for (std::size_t i = 0; i < text.size(); ++i)
        if (begins_character(text[i]) && ++seen == position) return i;
    return text.size();
}

std::size_t characters(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

}  // namespace

po::options_description judging_flags() {
    po::options_description flags("Options", 100, 50);
    add_catalog_flags(flags);
    flags.add_options()("timeout", po::value<std::string>()->value_name("DURATION"),
                        "connecting, or one query (default: catalog.timeout, 5s)")(
        "search-path", po::value<std::string>()->value_name("PATH"),
        "search_path the statements run under (default: \"$user\", public)")(
        "user", po::value<std::string>()->value_name("NAME"),
        "what \"$user\" stands for")("help,h", "this text");
    return flags;
}

std::shared_ptr<const RouteTable> read_route_table(const po::variables_map &given) {
    const Settings settings = catalog_settings(given);
    std::int64_t timeout = settings.catalog_timeout;
    take_duration(given, "timeout", timeout);
    ControlConnection catalog(settings.catalog_conninfo, "interlock explain", timeout);
    ControlTransaction transaction(catalog, "ISOLATION LEVEL REPEATABLE READ READ ONLY");
    const CatalogRows rows = read_catalog(catalog);
    transaction.commit();
    if (rows.version == 0)
        throw std::runtime_error("the catalog has not published a route version yet");
    auto table = RouteTable::build(rows);
    if (!table)
        throw std::runtime_error("route version " + std::to_string(rows.version) +
                                 " of the catalog is not sound: " + table.error());
    return *table;
}

std::vector<std::string> search_path_of(const po::variables_map &given) {
    const std::string path =
        given.count("search-path") ? given["search-path"].as<std::string>() : "\"$user\", public";
    const std::string user = given.count("user") ? given["user"].as<std::string>() : "";
    auto schemas = sql::split_search_path(path, user);
    if (!schemas)
        throw StartupError("option \"--search-path\" must be a list of schemas, not \"" + path +
                           "\"");
    return std::move(*schemas);
}

std::string read_text(const std::string &path) {
    if (path == "-")
        return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file.is_open() || file.bad())
        throw std::runtime_error("could not read file \"" + path + "\"");
    return text;
}

Place place_of(std::string_view text, std::size_t position) {
    const std::string_view before = text.substr(0, byte_of(text, position));
    const std::size_t newline = before.rfind('\n');
    Place place;
    place.line = 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
    place.column =
        1 + characters(newline == std::string_view::npos ? before : before.substr(newline + 1));
    return place;
}

std::string show_place(std::string_view text, std::size_t position, std::string_view indent) {
    const std::size_t at = byte_of(text, position);
    const std::size_t newline = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
    const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    std::string line(text.substr(start, text.find('\n', at) - start));
    std::size_t column = characters(text.substr(start, at - start));
    std::replace(line.begin(), line.end(), '\t', ' ');
    line.erase(std::remove(line.begin(), line.end(), '\r'), line.end());
    // A long line is shown around the place.
    constexpr std::size_t around = 60;
    if (column > around) {
        line.erase(0, byte_of(line, column - around + 1));
        line.insert(0, "...");
        column = around + 3;
    }
    if (characters(line) > column + around) {
        line.erase(byte_of(line, column + around + 1));
        line += "...";
    }
    return std::string(indent) + line + '\n' + std::string(indent) + std::string(column, ' ') +
           "^\n";
}

}  // namespace interlock
