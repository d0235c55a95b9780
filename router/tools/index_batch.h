// One batch of a consumer: records taken from a shard's outbox, applied to the index, removed.
//
// The order of things is what makes a crash at any point harmless:
//   1. shard: BEGIN, outbox_take() locks the records;
//   2. index database: BEGIN, index_apply();
//   3. shard: outbox_done() removes them, not committed yet: proof that the locks are still ours,
//   now
//      that the index database's transaction has a number (see index_report() in 48-index.sql);
//   4. index database: COMMIT;
//   5. shard: COMMIT.
// Whatever ends it between 4 and 5, the records are taken again and applied again, which changes
// nothing: an entry is overwritten only by a newer change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/control.h"

namespace interlock {

struct BatchRequest {
    std::string index;
    std::string shard;
    std::int32_t max_records = 2000;
    std::int32_t max_tries = 5;
};

/// A record that could not be applied this time.
struct FailedRecord {
    std::string seq;
    std::string key;
    std::string error;
    bool parked = false;  ///< for the last time: it has been set aside
};

struct BatchOutcome {
    std::size_t taken = 0;
    std::size_t applied = 0;        ///< removed from the outbox because the index has them
    std::size_t parked_behind = 0;  ///< set aside because an earlier record of their key is
    std::vector<FailedRecord> failed;
};

/// Takes, applies and removes one batch. A record that the index database refuses for what it says
/// (a value, a constraint) is found by halving; a try of it is counted, and the others go on.
/// Throws ControlError for everything else: nothing has been removed then, and both connections
/// have to be rolled back (or are broken).
[[nodiscard]] BatchOutcome drain_batch(ControlConnection &shard, ControlConnection &database,
                                       const BatchRequest &request);

/// Whether an error says that a value cannot be stored, as opposed to one that time may mend.
[[nodiscard]] bool is_data_error(const ControlError &error);

}  // namespace interlock
