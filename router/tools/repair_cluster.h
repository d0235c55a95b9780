// The sessions of `interlock repair`: one on the index database, one on each shard, all under one
// route version, so that of each bucket exactly one shard answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "tools/index_model.h"

namespace interlock {

struct RepairTimeouts {
    std::int64_t query = 5000;         ///< connecting, or a query that reads little
    std::int64_t scan = 600'000;       ///< reading one part of the rows
    std::int64_t new_routes = 60'000;  ///< for a move in progress to be published
};

/// Which servers were compared: by the names of their members.
struct RepairServers {
    std::vector<std::string> members;
    std::vector<std::string> identities;  ///< system, timeline, database
};

class RepairCluster {
  public:
    /// Connects to all. `by_key`: whatever is read in the order of the key is read by its index,
    /// however the planner would rather do it: a sort of all the rows for each part of them is
    /// never better. Throws ControlError.
    RepairCluster(std::string catalog, const std::string &index, const RepairTimeouts &timeouts,
                  bool by_key);

    /// Of the routes that all sessions are greeted with.
    [[nodiscard]] const IndexModel &model() const { return model_; }

    [[nodiscard]] ControlConnection &database() { return *database_; }
    /// Runs an action that does not walk over the index, and sorts what it has in hand.
    template <typename Action>
    auto without_walking(Action action) {
        if (!by_key_) return action();
        database_->query("SELECT pg_catalog.set_config('enable_sort', 'on', false)");
        try {
            auto result = action();
            walk_by_key(*database_);
            return result;
        } catch (...) {
            if (!database_->broken()) walk_by_key(*database_);
            throw;
        }
    }
    /// `position` is one in model().shards.
    [[nodiscard]] ControlConnection &shard(std::size_t position) { return *shards_[position]; }
    [[nodiscard]] const std::string &shard_name(std::size_t position) const {
        return model_.member(model_.shards[position]).name;
    }

    /// The position in model().shards of the shard that owns the bucket of a hash.
    [[nodiscard]] std::size_t owner(std::int64_t hash) const;

    [[nodiscard]] RepairServers servers();

    /// Reads the routes again and greets all sessions, if there is a newer version.
    bool renew_routes();
    /// The same, for when it can wait: false if the catalog does not answer, and `why`. It is then
    /// not asked for some time, so that an outage costs little.
    bool try_renew_routes(std::string &why);
    /// Waits for one, and for the catalog: a shard has refused the present one. Throws ControlError
    /// when none comes.
    void await_routes();

    [[nodiscard]] const RepairTimeouts &timeouts() const { return timeouts_; }

  private:
    using Clock = std::chrono::steady_clock;

    std::shared_ptr<const RouteTable> read_routes();
    bool take_routes(std::shared_ptr<const RouteTable> routes);
    static void walk_by_key(ControlConnection &connection);
    std::unique_ptr<ControlConnection> open(const RouteTable &routes, ShardIndex member);
    void connect_shards();

    std::string catalog_;
    RepairTimeouts timeouts_;
    bool by_key_;
    Clock::time_point ask_again_{};  ///< the catalog, after it has not answered
    std::string why_not_;            ///< it has not
    std::unique_ptr<ControlConnection> database_;
    IndexModel model_;
    std::vector<std::unique_ptr<ControlConnection>> shards_;  ///< as model_.shards
};

}  // namespace interlock
