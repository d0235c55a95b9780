#include "server/shard_server.h"

#include "base/log.h"

namespace interlock {

std::string ShardServer::accept(const std::string &shard, const ServerHistory &server) {
    const bool other = server.system_identifier != system_identifier_;
    if (!other && server.timeline < timeline_)
        return format(
            "the server is a former primary of the shard: it is on timeline %u, and one on "
            "timeline %u was seen; HINT: a primary that was replaced must not serve any "
            "more; if it is meant to be the primary again, restart the router",
            server.timeline, timeline_);
    if (!other && server.timeline == timeline_) return {};
    if (timeline_ != 0 && other)
        log_warning("shard %s: another database cluster answers now: system identifier %s, was %s",
                    shard.c_str(), server.system_identifier.c_str(), system_identifier_.c_str());
    else if (timeline_ != 0)
        log_warning("shard %s: a standby was promoted: timeline %u, was %u", shard.c_str(),
                    server.timeline, timeline_);
    system_identifier_ = server.system_identifier;
    timeline_ = server.timeline;
    ++generation_;
    return {};
}

std::string floor_problem(std::int32_t floor, std::int32_t min_floor) {
    if (floor >= min_floor) return {};
    return format("the shard gave buckets away under route version %d, but this server knows of "
                  "none after version %d: it is a standby that was promoted, or a copy restored, "
                  "without that decision; HINT: connect the server that has it; if that one is "
                  "lost, see \"A decision that was lost\" in the manual (docs/dba.md)",
                  min_floor, floor);
}

}  // namespace interlock
