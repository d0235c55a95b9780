// What becomes of a shard's part of a scatter when nobody wants it any more: its statement is
// ended, and the backend given back.
//
// PostgreSQL goes on with a statement whose client is gone, and keeps its locks, until it has
// something to write. So the connection is not simply closed: what does not end by itself is
// cancelled, and the connection is lent again only when the statement's end has been read. A cancel
// request that comes late must not hit the next statement: an empty round trip, after the server
// has taken the request, lets it pass.
#pragma once

#include "base/task.h"
#include "session/scatter_stream.h"

#include <memory>

namespace interlock {

class ShardDrain {
  public:
    /// Ends what `stream` has under way. For a stream that was abandoned and is not at work.
    [[nodiscard]] static Task<void> run(std::shared_ptr<ShardStream> stream);

  private:
    [[nodiscard]] static Task<void> end_and_give_back(ShardStream &stream);
    [[nodiscard]] static Task<void> end(ShardStream &stream, bool &cancelled);
    [[nodiscard]] static Task<bool> quiet(Backend &backend, Millis deadline);
    static void give_back(ShardStream &stream);
};

}  // namespace interlock
