// The first exchange with a backend: proves whom we talk to, and learns what must be known of the
// session and the database before a client's statement goes there.
#pragma once

#include "server/backend.h"
#include "server/login.h"
#include "server/surroundings.h"

#include <cstdint>
#include <string>

namespace interlock {

/// What the server must say about itself before a connection is used.
struct ExpectedIdentity {
    std::string cluster_id;
    std::string shard;
};

/// Loads the extension in the session, sets the route version and proves: cluster, shard, floor,
/// not a restored copy, not a standby, built-in names first in the search path, UTF-8, standard
/// strings, sessions of the login that begin as on the other shards. Learns the surroundings of
/// what is `declared`. One round trip, which also proves that libpq holds no bytes back. Empty when
/// all is well, else what is wrong.
[[nodiscard]] Task<std::string> greet(Backend &backend, const ExpectedIdentity &expected,
                                      std::shared_ptr<const Declared> declared, LoginProfile &login,
                                      std::int32_t route_version, Millis deadline);

/// Asks the backend again for what changes while it lives: keysets and keys. For an idle one in
/// whose session the login's own settings are in force. Empty when all is well, else what is wrong:
/// the backend must then be closed.
[[nodiscard]] Task<std::string> learn_keysets(Backend &backend, Millis deadline);

}  // namespace interlock
