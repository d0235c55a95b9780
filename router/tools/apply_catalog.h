// The catalog as `interlock apply` sees it: reading what is wanted, keeping others out meanwhile,
// recording columns and publishing.
#pragma once

#include <string>
#include <vector>

#include "base/control.h"
#include "tools/apply_model.h"

namespace interlock {

/// A connection to the catalog with one transaction, which lasts until commit() or destruction.
class CatalogSession {
  public:
    /// Connects, begins, and makes sure that there is a catalog of our version. `exclusive`: also
    /// keeps out other applies until destruction, and edits and publications until the end of the
    /// transaction; otherwise the transaction is
    /// read-only, on one snapshot. Throws ApplyRefusal or ControlError.
    CatalogSession(const std::string &conninfo, bool exclusive, const ApplyTimeouts &timeouts);

    /// Throws ApplyRefusal if the catalog is not complete enough to be applied.
    DesiredState read();

    /// Whether a publication now would make a new version although the map is the same.
    bool declarations_changed();

    /// Makes a key that signs cursors, committed at once, and returns all there are.
    std::vector<CursorKey> make_cursor_key();

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
    std::string holder();
    std::vector<CursorKey> read_cursor_keys();
    void read_indexes(DesiredState &desired);

    std::string conninfo_;
    ControlConnection connection_;
    ControlTransaction transaction_;
    bool committed_ = false;
    ApplyTimeouts timeouts_;
};

}  // namespace interlock
