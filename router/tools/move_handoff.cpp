#include "tools/move_handoff.h"

#include <algorithm>

#include "tools/bucket_set.h"
#include "tools/index_model.h"

namespace interlock {

HandoffState read_handoff(ControlConnection &shard, const std::string &id) {
    const Rows rows = shard.query("SELECT h.state, COALESCE(h.route_version, 0), h.fence "
                                  "FROM interlock.handoff h WHERE h.move_id = $1",
                                  {Param::of_uuid(id)});
    if (rows.empty()) return {};
    return {true, rows.text(0, 0), rows.int32(0, 1), rows.int32(0, 2)};
}

void require_decision(const MoveSession &session, const std::string &id, const HandoffState &source,
                      const HandoffState &target) {
    if (target.state != "active" || source.state == "decided") return;
    const std::string from = "shard \"" + session.from().name + '"';
    const std::string to = "shard \"" + session.to().name + '"';
    throw ControlError(
        "55000", from + " has lost the decision of move " + id,
        "By that decision " + to + " owns " + buckets_phrase(session.buckets()) +
            ", under route version " + std::to_string(target.version) + ", but " + from +
            (source.known ? " has the move as " + source.state : " does not know the move") +
            ": it may be a standby that was promoted, or an older copy. So both own the buckets.",
        "Bring a " + from + " back that has the decision, then run the command with --resume " +
            id + ". If there is none any more, its rows are the ones that count: on " + to +
            ", run SELECT interlock.revoke_import('" + id +
            "'); that gives up what was written there, and the move can be taken back, or gone on "
            "with.");
}

void require_whole_history(MoveSession &session, const MoveRequest &request, std::int32_t decided) {
    const RouteTable &routes = session.routes();
    for (std::size_t i = 0; i < routes.shards.size(); ++i) {
        const Shard &shard = routes.shards[i];
        if (shard.index_only) continue;
        const auto index = static_cast<ShardIndex>(i);
        const auto connection = open_member(routes, index, "interlock move", request.query_timeout);
        const std::int32_t floor =
            connection->query("SELECT g.floor FROM interlock.greet(0) g").int32(0, 0);
        std::int32_t expected = shard.min_floor;
        if (index == session.from_index()) expected = std::max(expected, decided);
        if (floor <= expected) continue;
        throw ControlError(
            "55000", "the catalog has lost route versions",
            "Shard \"" + shard.name + "\" gave buckets away under route version " +
                std::to_string(floor) + "; the catalog knows of none later than " +
                std::to_string(expected) + ".",
            "It may be a standby that was promoted, or an older copy: restore one that has them. "
            "What is published from this one would have buckets at their old owners.");
    }
}

}  // namespace interlock
