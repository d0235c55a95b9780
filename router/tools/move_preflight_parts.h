// The parts of the preflight, and what they share. Each looks at one thing and adds what it finds.
#pragma once

#include <string>
#include <vector>

#include "tools/move_model.h"

namespace interlock {

/// One side of the move as the checks address it.
struct PreflightSide {
    ControlConnection &connection;
    const std::string &name;

    /// shard "s0"
    [[nodiscard]] std::string called() const { return "shard \"" + name + '"'; }
};

class Preflight {
  public:
    Preflight(MoveSession &session, const MoveRequest &request)
        : session(session),
          request(request), source{session.source(), session.from().name}, target{
                                                                               session.target(),
                                                                               session.to().name} {}

    void refuse(std::string what, std::string detail, std::string mend) {
        findings.push_back(
            {MoveFinding::Severity::refuse, std::move(what), std::move(detail), std::move(mend)});
    }
    void warn(std::string what, std::string detail, std::string mend) {
        findings.push_back(
            {MoveFinding::Severity::warn, std::move(what), std::move(detail), std::move(mend)});
    }

    /// "On shard "s0", run: STATEMENT"
    [[nodiscard]] static std::string run_on(const PreflightSide &side,
                                            const std::string &statement) {
        return "On " + side.called() + ", run: " + statement;
    }

    MoveSession &session;
    const MoveRequest &request;
    PreflightSide source, target;
    std::vector<MoveFinding> findings;
};

// In the order in which they are run.
void check_source_server(Preflight &check);      ///< settings, free slots, rights
void check_target_server(Preflight &check);      ///< the same of the side that follows
void check_same_surroundings(Preflight &check);  ///< encoding, collation, extension
void check_way_to_source(Preflight &check);      ///< the target's server can follow the source
void check_ownership(Preflight &check);          ///< states of the buckets, the keyspace
void check_guards(Preflight &check);             ///< nobody writes past a fence
void check_identities(Preflight &check);    ///< changes can be told apart by bucket, and applied
void check_definitions(Preflight &check);   ///< columns, types, constraints ... are the same
void check_foreign_keys(Preflight &check);  ///< none leaves the keyspace
void check_triggers(Preflight &check);      ///< none fires for rows that only change places
void check_transactions(Preflight &check);  ///< old ones, prepared ones
void check_leftovers(Preflight &check);     ///< of earlier moves
void check_room(Preflight &check);          ///< on the target's disk, where it can be known

}  // namespace interlock
