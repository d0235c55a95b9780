// One run of `interlock repair`, from connecting to the report.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/repair_check.h"
#include "tools/repair_cluster.h"
#include "tools/repair_position.h"
#include "tools/repair_report.h"
#include "tools/repair_sql.h"
#include "tools/repair_walk.h"

namespace interlock {

struct RepairRequest {
    std::string catalog;
    std::string index;
    bool apply = false;
    bool restart = false;
    bool json = false;
    bool verbose = false;
    std::string scope;          ///< JSON as given; empty: everything
    std::string shard;          ///< empty: all
    std::int64_t rate = 0;      ///< rows a second at most; 0: as fast as it goes
    std::int32_t chunk = 5000;  ///< rows of a range, about
    std::int64_t wait = 3000;   ///< at the end, for changes on their way
    RepairTimeouts timeouts;
};

class RepairCommand {
  public:
    explicit RepairCommand(const RepairRequest &request);
    /// The exit status.
    int run();

  private:
    using Clock = std::chrono::steady_clock;
    struct Candidate {
        std::string key;
        bool told = false;  ///< and counted as wrong
    };

    void take_scope();
    void check_shard();
    void prepare_sessions();
    std::string resume();
    void estimate();
    void walk(RepairWalk &walk);
    void pace();
    /// Judges candidates until each is equal, mended, wrong or left for the end.
    void settle(std::vector<Candidate> candidates);
    std::vector<Candidate> settle_once(const std::vector<Candidate> &candidates);
    std::int64_t mend(const std::vector<Judged> &wrong);
    void renew_routes();
    void put_off(Candidate candidate, bool parked);
    void look_at_the_end();
    /// Runs `action` again under newer routes when a shard refuses the present ones.
    template <typename Action>
    auto under_current_routes(Action action);
    RepairCounts counts() const;

    const RepairRequest &request_;
    RepairCluster cluster_;
    RepairScope scope_;
    RepairRun run_;
    RepairSql sql_;
    RepairCheck check_;
    RepairReport report_;
    std::unique_ptr<RepairPosition> position_;
    RepairCounts counts_;
    std::int64_t estimate_ = 0;
    std::int64_t left_ = 0;  ///< wrong, told, and not mended
    std::vector<Candidate> put_off_;
    std::int64_t parked_ = 0;           ///< of those put off
    std::int64_t not_kept_ = 0;         ///< put off, but too many to keep, or by an interrupted run
    std::int64_t parked_not_kept_ = 0;  ///< of those
    bool catalog_answers_ = true;
    std::int64_t compared_ = 0;  ///< in this run
    Clock::time_point begun_ = Clock::now();
};

}  // namespace interlock
