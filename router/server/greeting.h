// The first exchange with a backend: proves whom we talk to, and learns what must be known of the
// session and the database before a client's statement goes there.
#pragma once

#include "server/backend.h"
#include "server/login.h"
#include "server/shard_server.h"
#include "server/surroundings.h"

#include <cstdint>
#include <string>

namespace interlock {

/// What the server must say about itself before a connection is used.
struct ExpectedIdentity {
    std::string cluster_id;
    std::string shard;
    std::int32_t min_floor = 0;  ///< its floor cannot be lower; see RouteTable
};

/// Loads the extension in the session, sets the route version and proves: cluster, shard, not a
/// restored copy, not a standby, not a server that `server` knows to be replaced, none that has
/// lost the decision to give buckets away; built-in names first in the search path, UTF-8, standard
/// strings, sessions of the login that begin as on the other shards. Learns the surroundings of
/// what is `declared`. One round trip, which also proves that libpq holds no bytes back. Empty when
/// all is well, else what is wrong.
///
/// A floor above `route_version` is no fault: the shard itself refuses what is too old for it, with
/// a code that says so.
[[nodiscard]] Task<std::string> greet(Backend &backend, const ExpectedIdentity &expected,
                                      std::shared_ptr<const Declared> declared, LoginProfile &login,
                                      ShardServer &server, std::int32_t route_version,
                                      Millis deadline);

/// Asks a backend again for its floor, which must have risen since it was greeted, and sets its
/// route version. False: the server has not the floor that is expected, or it does not answer; the
/// backend must then be closed.
[[nodiscard]] Task<bool> prove_floor(Backend &backend, const ExpectedIdentity &expected,
                                     std::int32_t route_version, Millis deadline);

/// Asks the backend again for what changes while it lives: keysets and keys. For an idle one in
/// whose session the login's own settings are in force. Empty when all is well, else what is wrong:
/// the backend must then be closed.
[[nodiscard]] Task<std::string> learn_keysets(Backend &backend, Millis deadline);

}  // namespace interlock
