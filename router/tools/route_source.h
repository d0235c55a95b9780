// What the tools that judge statements share: the route table in force, read from the catalog; the
// search path; a text and places in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>

#include "route/route_table.h"
#include "sql/refusal.h"

namespace interlock {

/// --catalog, -c, --timeout, --search-path, --user, --help.
[[nodiscard]] boost::program_options::options_description judging_flags();

/// The published route table of the catalog that the flags, or the file they name, tell. Throws
/// StartupError (no catalog given), ControlError (it does not answer), std::runtime_error (nothing
/// is published, or it is not sound).
[[nodiscard]] std::shared_ptr<const RouteTable>
read_route_table(const boost::program_options::variables_map &given);

/// The schemas of --search-path, "$user" replaced by --user. Throws StartupError.
[[nodiscard]] std::vector<std::string>
search_path_of(const boost::program_options::variables_map &given);

/// The content of a file; "-" is standard input. Throws std::runtime_error.
[[nodiscard]] std::string read_text(const std::string &path);

/// Line and column, from 1, of a position in characters from 1.
struct Place {
    std::size_t line = 1;
    std::size_t column = 1;
};
[[nodiscard]] Place place_of(std::string_view text, std::size_t position);

/// The line that holds the position, and under it a caret; both indented by `indent`.
[[nodiscard]] std::string show_place(std::string_view text, std::size_t position,
                                     std::string_view indent);

}  // namespace interlock
