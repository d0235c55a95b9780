// What the parts of `interlock move` share: what the command line asks for.
#pragma once

#include <string>
#include <vector>

#include <boost/program_options/options_description.hpp>

#include "tools/move_model.h"

namespace interlock {

enum class MoveVerb : std::uint8_t { move, plan, resume, abort, clean, status, steps };

struct MoveOptions {
    MoveVerb verb = MoveVerb::move;
    MoveRequest request;
    bool evacuate = false;   ///< all buckets of request.from, of request.keyspace or of each
    std::int64_t batch = 0;  ///< buckets a move when evacuating
    bool json = false;
};

[[nodiscard]] boost::program_options::options_description move_flags();

/// Throws StartupError.
[[nodiscard]] MoveOptions parse_move_options(const std::vector<std::string> &args);

int show_moves(const MoveOptions &options);  ///< --status
int show_plan(const MoveOptions &options);   ///< --plan

/// The buckets of a shard in batches, in the routes that are published; of unfinished moves none.
struct MoveBatch {
    std::string keyspace;
    std::vector<std::int32_t> buckets;
};
/// Unfinished moves that take buckets of the shard that is emptied elsewhere, or bring it some,
/// each as a sentence: as long as there are any, it cannot be emptied.
[[nodiscard]] std::vector<std::string> moves_of_others(const std::vector<Move> &unfinished,
                                                       const MoveOptions &options);
[[nodiscard]] std::vector<MoveBatch> evacuation(const RouteTable &routes,
                                                const std::vector<Move> &unfinished,
                                                const MoveOptions &options);

}  // namespace interlock
