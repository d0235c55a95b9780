// How a move goes on, for a person at a terminal, for a log, or for a program.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <ostream>
#include <string>

#include "tools/move_model.h"

namespace interlock {

/// Things done per second over the last ten seconds.
class ProgressRate {
  public:
    using Time = std::chrono::steady_clock::time_point;

    /// `done` so far; never less than before.
    void note(Time now, std::int64_t done);
    /// 0 until it is known.
    [[nodiscard]] double per_second() const;
    /// Whole seconds until `left` more are done, rounded up; -1: not known.
    [[nodiscard]] std::int64_t seconds_for(std::int64_t left) const;
    void reset() { samples_.clear(); }

  private:
    std::deque<std::pair<Time, std::int64_t>> samples_;
};

enum class ProgressStyle : std::uint8_t {
    terminal,  ///< one line that is written over, below what is said for good
    log,       ///< a line every ten seconds
    json,      ///< one object a line, at most one a second of a kind that only counts
};

class MoveProgress : public MoveObserver {
  public:
    using Clock = std::function<std::chrono::steady_clock::time_point()>;

    /// `out` gets what is said for good (json: everything), `lines` the progress. `columns`: width
    /// of the terminal.
    MoveProgress(std::ostream &out, std::ostream &lines, ProgressStyle style,
                 std::size_t columns = 80, Clock clock = std::chrono::steady_clock::now);
    ~MoveProgress() override { clear_line(); }

    void began(const Move &move, bool resumed) override;
    void step(const std::string &name) override;
    void found(const std::vector<MoveFinding> &findings) override;
    void copying(const std::string &table, std::int64_t rows, std::int64_t bytes,
                 std::int64_t estimated_rows) override;
    void following(std::int64_t lag_bytes, std::int64_t bytes_a_second) override;
    void holding_up(const std::vector<MoveHolder> &holders) override;
    void switched(std::int32_t route_version, std::int64_t pause_ms) override;
    void verified(std::int64_t rows) override;
    void cleaning(std::int64_t rows) override;
    void note(const std::string &text) override;

    /// The last word of a run.
    void ended(MoveResult result);
    /// What stopped it. Not told yet on standard error.
    void failed(const ControlError &error);
    /// Takes the line that is written over away, before somebody else writes.
    void clear_line();

  private:
    struct TableCount {
        std::int64_t rows = 0, bytes = 0, estimate = 0;
    };

    void say(const std::string &text);                        ///< for good
    void event(const char *name, const std::string &fields);  ///< json
    bool due(std::string_view kind);
    void progress(const char *kind, const std::string &line, const std::string &fields);
    [[nodiscard]] double seconds() const;
    [[nodiscard]] std::string where() const;  ///< bucket 3 of keyspace accounts

    std::ostream &out_;
    std::ostream &lines_;
    const ProgressStyle style_;
    const std::size_t columns_;
    const Clock clock_;

    Move move_;
    std::chrono::steady_clock::time_point began_;
    std::chrono::steady_clock::time_point copy_began_;
    std::chrono::steady_clock::time_point next_{};
    std::string last_kind_;
    std::map<std::string, TableCount> tables_;
    ProgressRate copied_, cleaned_;
    std::int64_t removed_ = 0;
    std::string held_by_;
    bool line_open_ = false;
    bool refused_ = false;
};

/// Severity, what, detail and mend as apply tells its findings: "ERROR:  ...", DETAIL, HINT.
[[nodiscard]] std::string finding_text(const MoveFinding &finding);
/// The same as fields of a JSON object.
[[nodiscard]] std::string finding_json(const MoveFinding &finding);

}  // namespace interlock
