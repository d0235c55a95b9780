// The catalog as `interlock apply` sees it: reading what is wanted, keeping others out meanwhile,
// reserving the number of the next route version, recording columns and publishing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "tools/apply_model.h"

namespace interlock {

/// A connection to the catalog with one transaction, which lasts until commit() or destruction;
/// reserve() and give_back() end it and begin another.
class CatalogSession {
  public:
    /// Connects, begins, and makes sure that there is a catalog of our version. `exclusive`: also
    /// keeps out other applies until destruction, and edits and publications until the end of the
    /// transaction; otherwise the transaction is
    /// read-only, on one snapshot. Throws ApplyRefusal or ControlError.
    CatalogSession(const std::string &conninfo, bool exclusive, const ApplyTimeouts &timeouts);

    /// The move that the next route version was reserved for when the catalog would have been
    /// locked: it was not then, lest its publication wait. Empty: none; the catalog is locked.
    [[nodiscard]] const std::string &reserving_move() const { return reserving_move_; }

    /// Throws ApplyRefusal if the catalog is not complete enough to be applied.
    DesiredState read();

    /// Whether a publication now would make a new version although the map is the same.
    bool declarations_changed();

    /// Makes a key that signs cursors, committed at once, and returns all there are.
    std::vector<CursorKey> make_cursor_key();

    /// Reserves the number of the next route version, for good: once a shard has been told it, it
    /// must never be that of another map, whatever becomes of this run. Needs the exclusive
    /// session, before anything was changed in it. False if the catalog was edited before others
    /// could be kept out again; the number stays reserved. Throws ControlError.
    [[nodiscard]] bool reserve(std::int32_t version);

    /// A number that an apply has reserved, this or an earlier one, is not needed: no shard has
    /// given anything away under it. Takes effect with commit().
    void withdraw();

    /// The same, at once, when this run has failed: what the transaction has changed is taken back.
    /// Never throws; what cannot be given back is found by the next run.
    void give_back() noexcept;

    /// Replaces the recorded columns of a table.
    void record_columns(std::int32_t table_id, const std::vector<ColumnInfo> &columns);

    /// Nothing is left of a dropped index. May follow commit().
    void forget_index(const std::string &name);

    /// Publishes exactly `version`.
    void publish(std::int32_t version);

    /// The second time, there is nothing left to commit.
    void commit();

  private:
    void require_catalog();
    void keep_others_out();
    void lock_catalog();
    std::string fingerprint();
    std::string holder();
    void read_moves(DesiredState &desired);
    std::vector<CursorKey> read_cursor_keys();
    void read_indexes(DesiredState &desired);

    std::string conninfo_;
    ControlConnection connection_;
    std::unique_ptr<ControlTransaction> transaction_;
    std::string reserving_move_;
    bool committed_ = false;
    ApplyTimeouts timeouts_;
};

}  // namespace interlock
