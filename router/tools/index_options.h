// What the parts of `interlock index` share: options, names, how a failure is told.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>

#include "base/control.h"
#include "route/route_table.h"

namespace interlock {

/// --catalog, -c, --timeout, --help.
[[nodiscard]] boost::program_options::options_description index_flags();

/// The catalog, and how long things may take.
struct IndexAccess {
    std::string catalog;
    std::int64_t catalog_timeout = 5000;
    std::int64_t poll_interval = 200;  ///< of the catalog
    std::int64_t timeout = 30000;      ///< connecting to a member, or one statement there

    explicit IndexAccess(const boost::program_options::variables_map &given);

    /// Throws ControlError; its message names the catalog.
    [[nodiscard]] std::unique_ptr<ControlConnection> connect() const;
    [[nodiscard]] std::shared_ptr<const RouteTable> routes() const;
};

/// A whole number of a flag within bounds, or `value` if it is not given. Throws StartupError.
void take_number(const boost::program_options::variables_map &given, const char *flag,
                 std::int64_t least, std::int64_t most, std::int64_t &value);

/// The declaration of an index that is published. Throws ControlError, with those there are.
[[nodiscard]] const GlobalIndex &require_published(const RouteTable &routes,
                                                   const std::string &name);

/// Text as a JSON string, with its quotes.
[[nodiscard]] std::string json_string(std::string_view text);

/// "ERROR:  ...", DETAIL and HINT on standard error.
void tell_failure(const ControlError &error);

// The sub-commands, with the arguments behind their names.
int run_index_consumers(const std::vector<std::string> &args);
int run_index_backfill(const std::vector<std::string> &args);
int run_index_status(const std::vector<std::string> &args);
int run_index_retry(const std::vector<std::string> &args);
int run_index_discard(const std::vector<std::string> &args);

[[nodiscard]] boost::program_options::options_description index_run_flags();
[[nodiscard]] boost::program_options::options_description index_backfill_flags();
[[nodiscard]] boost::program_options::options_description index_status_flags();
[[nodiscard]] boost::program_options::options_description index_parked_flags();

}  // namespace interlock
