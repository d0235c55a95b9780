// Connecting to a shard off the loop.
//
// libpq does what it is best at (connection strings, service files, several hosts, SCRAM, TLS); it
// also resolves names synchronously, so each attempt runs on a thread of its own and the finished
// connection is handed to the loop. Connects are rare; a pool has at most a few under way.
#pragma once

#include "base/loop.h"
#include "base/result.h"
#include "base/task.h"

#include <memory>
#include <string>
#include <vector>

struct pg_conn;
struct pg_cancel;

namespace interlock {

struct FinishConnection {
    void operator()(pg_conn *connection) const;
};
using Connection = std::unique_ptr<pg_conn, FinishConnection>;

struct FreeCancel {
    void operator()(pg_cancel *cancel) const;
};

/// libpq keywords and values, in the order given to it; a later value of a keyword wins.
struct ConnectParameters {
    std::vector<std::string> keywords;
    std::vector<std::string> values;
    Millis longest = 0;  ///< what one attempt may take in all, when each host uses its time up
};

/// Merges connection strings (later ones win), takes `login` for the user unless it is empty, and
/// adds what the router needs: UTF-8, standard_conforming_strings, no GSS encryption (whose bytes
/// we could not take over), a connect timeout. libpq's is for each host, in whole seconds, at least
/// 2: of several hosts each gets its part of `connect_timeout` (ms), unless the connection string
/// asks for less.
/// The error is libpq's complaint about the string, which never quotes a password.
[[nodiscard]] Result<ConnectParameters, std::string>
connect_parameters(const std::vector<std::string> &conninfos, const std::string &login,
                   Millis connect_timeout);

/// Connects; waits at most until `deadline`. The error is libpq's text on one line.
[[nodiscard]] Task<Result<Connection, std::string>>
connect(Loop &loop, const ConnectParameters &parameters, Millis deadline);

/// Asks the server to cancel what `key`'s session is running, from a thread of its own, and returns
/// when the request has been delivered (or has failed, or `deadline` passed).
[[nodiscard]] Task<void> request_cancel(Loop &loop, std::shared_ptr<pg_cancel> key,
                                        Millis deadline);

}  // namespace interlock
