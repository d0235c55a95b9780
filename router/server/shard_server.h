// Which server is a shard's primary, as far as it can be known from those that were connected to.
//
// A promoted standby goes on under a new timeline, one above those before it. The primary it
// replaced may come back, or may never have been gone: it takes writes, knows the same buckets, and
// nobody will read what it takes. So what was seen last counts: a server of a lower timeline is not
// connected to any more, and connections to it that are open already are not lent.
#pragma once

#include <cstdint>
#include <string>

namespace interlock {

/// What a server says of itself in its greeting.
struct ServerHistory {
    std::string system_identifier;  ///< the same for all that descend from one initdb
    std::uint32_t timeline = 0;     ///< of its next commit
    std::int32_t floor = 0;         ///< the route version under which it last gave a bucket away
};

/// Of one shard, for all logins of a worker.
class ShardServer {
  public:
    /// Empty when the server may be the primary; it is then the one that was seen last. Else what
    /// is wrong: it is older than the one seen before.
    [[nodiscard]] std::string accept(const std::string &shard, const ServerHistory &server);

    /// Another number each time another server is accepted: what was connected to under an earlier
    /// one has been replaced.
    [[nodiscard]] std::uint32_t generation() const { return generation_; }

  private:
    std::string system_identifier_;
    std::uint32_t timeline_ = 0;  ///< 0: none was seen
    std::uint32_t generation_ = 0;
};

/// What is wrong with a shard whose floor is lower than the catalog's history says; empty if it is
/// not. It has lost the decision to hand a bucket over, and would take that bucket's rows again.
[[nodiscard]] std::string floor_problem(std::int32_t floor, std::int32_t min_floor);

}  // namespace interlock
