// Telling what is wrong from what is on its way, and mending what is wrong.
//
// A key is looked up four times, in this order: its entry; its row; the outboxes; its entry again.
// It is judged only if the entry is the same row version both times and no outbox holds a change of
// the key. Then the entry is compared with the row, and what differs is wrong.
//
// Why that can never take a change on its way for a fault. Let t1 be the moment of the first look
// at the entry, T that of the look at the row, and t2 that of the second look at the entry; the
// outboxes are looked at between T and t2. Each look has finished before the next begins, and each
// sees all that was committed on its server before it began.
// * The entry holds nothing newer than the row that was looked at: it was written before t1 (the
//   same version was there at t1), by a consumer that had seen the change committed on the shard,
//   so that change was committed before t1, which is before T.
// * The entry lacks nothing that the row had at T: a change and its record in the outbox commit
//   together, so a change that the row shows at T had its record there by T. A consumer commits
//   its work in the index before the commit that removes the record. The outbox was found without
//   records of the key after T, so all those changes were in the index by then, that is, before
//   t2, and the entry found at t2 holds them.
// So an entry that differs from the row differs because a change has no record (it bypassed the
// trigger, was lost or was discarded), or because something else wrote the entry.
//
// Why not fewer looks. Without the first, a change committed after T and applied before t2 would
// look like an entry that is wrong. Without the last, a change applied between t1 and the look at
// the outbox would look like one that was forgotten. With the outbox before the row, a change
// between the two would be in the row, not in the entry, and not in what was seen of the outbox.
//
// What else could make the two looks at an entry equal although it changed in between: a row
// version is known by the transaction that wrote it (xmin), so only "no entry" can come back, by an
// insert, a delete and the removal of its tombstone. Tombstones are held while this runs.
//
// Buckets that move: the row counts only from a shard that answers for the bucket under the
// session's route version, in the same statement. Records of changes stay on the shard where the
// change was made, so the outboxes of all shards are looked at. A record that is parked is a
// record: its key is not judged, since `interlock index retry` may still apply it.
//
// Mending is compare-and-set: index_mend() writes what the row held at T only if the entry still
// has the version (route version, seq) that was judged, and leaves it that version. A change after
// T has a newer one (its number is drawn while it holds the row, and a new owner's route version is
// higher): if it has been applied, the comparison fails, and if not, it will overwrite what was
// mended. An entry that was absent gets version (0, 0), older than any change; that a delete
// applied meanwhile is not undone by it rests on the tombstone, which is held.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/repair_cluster.h"
#include "tools/repair_sql.h"

namespace interlock {

enum class Verdict : std::uint8_t {
    equal,
    missing,  ///< there is a row, and no live entry
    gone,     ///< there is a live entry, and no row
    differs,  ///< both are there, with other values
    pending,  ///< an outbox holds a change of the key
    parked,   ///< such a change is parked
    moving,   ///< the entry was written meanwhile, or the bucket changes its owner: look again
};

/// What was found of one key.
struct Judged {
    std::string key;
    Verdict verdict = Verdict::moving;
    std::size_t owner = 0;  ///< position of the shard in IndexModel::shards
    std::string row;        ///< values; empty: there is none
    std::string entry;      ///< values; empty: there is none, live or dead
    std::string version;    ///< route version and seq of the entry, as members of an object

    [[nodiscard]] bool wrong() const {
        return verdict == Verdict::missing || verdict == Verdict::gone ||
               verdict == Verdict::differs;
    }
};

/// What became of mending.
struct Mended {
    struct Refusal {
        std::string key;
        std::string reason;
    };
    std::int64_t count = 0;         ///< of those that still were as judged
    std::vector<Refusal> refusals;  ///< the index database does not take these entries
};

class RepairCheck {
  public:
    RepairCheck(RepairCluster &cluster, const RepairSql &sql) : cluster_(cluster), sql_(sql) {}

    /// Looks up keys, at most a few thousand. Throws ControlError; with IL102 the routes must be
    /// renewed, and the call repeated.
    std::vector<Judged> look(const std::vector<std::string> &keys);

    /// Mends those that are wrong. Throws ControlError unless it is about the values of one entry.
    Mended mend(const std::vector<Judged> &judged);

  private:
    struct Entry {
        std::int64_t hash = 0;
        std::string xmin;  ///< empty: there is none
        bool deleted = false;
        std::string values, version;
        bool equal = false;  ///< to the row's values
    };
    struct Row {
        bool answered = false;
        std::string values;
    };

    std::vector<Entry> find_entries(const std::vector<std::string> &keys,
                                    const std::vector<Row> &rows);
    std::vector<Row> find_rows(const std::vector<std::string> &keys,
                               const std::vector<Entry> &entries);
    std::vector<Verdict> find_changes(const std::vector<std::string> &keys);
    void mend_all(std::size_t shard, std::span<const Judged *const> wrong, Mended &result);

    RepairCluster &cluster_;
    const RepairSql &sql_;
};

}  // namespace interlock
