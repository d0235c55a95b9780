#include "tools/move_progress.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "tools/bucket_set.h"
#include "tools/index_options.h"
#include "tools/move_preflight.h"

namespace interlock {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds window{10};

std::string count(std::int64_t number) {
    return std::to_string(number);
}

/// "45 MB", "1.2 GB"
std::string size(std::int64_t bytes) {
    const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(units)) {
        value /= 1024;
        ++unit;
    }
    return format(unit == 0 || value >= 10 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

/// "", or ", 2 min left"
std::string time_left(std::int64_t seconds) {
    if (seconds < 0) return {};
    if (seconds < 120) return ", " + count(seconds) + " s left";
    if (seconds < 7200) return ", " + count((seconds + 59) / 60) + " min left";
    return ", " + count((seconds + 3599) / 3600) + " h left";
}

std::string number_field(const char *name, std::int64_t value) {
    return std::string(",\"") + name + "\":" + std::to_string(value);
}

std::string text_field(const char *name, const std::string &value) {
    return std::string(",\"") + name + "\":" + json_string(value);
}

}  // namespace

void ProgressRate::note(Time now, std::int64_t done) {
    samples_.emplace_back(now, done);
    // One older than the window stays, or a slow thing would never have two.
    while (samples_.size() > 2 && samples_[1].first <= now - window)
        samples_.pop_front();
}

double ProgressRate::per_second() const {
    if (samples_.size() < 2) return 0;
    const double time =
        std::chrono::duration<double>(samples_.back().first - samples_.front().first).count();
    if (time <= 0) return 0;
    return static_cast<double>(samples_.back().second - samples_.front().second) / time;
}

std::int64_t ProgressRate::seconds_for(std::int64_t left) const {
    const double rate = per_second();
    if (rate <= 0) return -1;
    return static_cast<std::int64_t>(
        std::ceil(static_cast<double>(std::max<std::int64_t>(0, left)) / rate));
}

std::string finding_text(const MoveFinding &finding) {
    std::string text =
        finding.severity == MoveFinding::Severity::refuse ? "ERROR:  " : "WARNING:  ";
    text += finding.what + '\n';
    if (!finding.detail.empty()) text += "DETAIL:  " + finding.detail + '\n';
    if (!finding.mend.empty()) text += "HINT:  " + finding.mend + '\n';
    return text;
}

std::string finding_json(const MoveFinding &finding) {
    return std::string("\"severity\":") +
           (finding.severity == MoveFinding::Severity::refuse ? "\"refuse\"" : "\"warn\"") +
           text_field("what", finding.what) + text_field("detail", finding.detail) +
           text_field("mend", finding.mend);
}

MoveProgress::MoveProgress(std::ostream &out, std::ostream &lines, ProgressStyle style,
                           std::size_t columns, Clock clock)
    : out_(out), lines_(lines), style_(style), columns_(columns), clock_(std::move(clock)),
      began_(clock_()), copy_began_(began_) {}

double MoveProgress::seconds() const {
    return std::chrono::duration<double>(clock_() - began_).count();
}

std::string MoveProgress::where() const {
    return buckets_phrase(move_.buckets) + " of keyspace " + move_.keyspace;
}

void MoveProgress::clear_line() {
    if (line_open_) lines_ << "\r\033[K" << std::flush;
    line_open_ = false;
}

void MoveProgress::say(const std::string &text) {
    if (style_ == ProgressStyle::json) return;
    clear_line();
    out_ << text << std::endl;
}

void MoveProgress::event(const char *name, const std::string &fields) {
    if (style_ != ProgressStyle::json) return;
    out_ << "{\"event\":\"" << name << "\",\"move\":" << json_string(move_.id)
         << format(",\"seconds\":%.3f", seconds()) << fields << "}" << std::endl;
}

bool MoveProgress::due(std::string_view kind) {
    const auto now = clock_();
    const bool other = kind != last_kind_;
    if (!other && now < next_) return false;
    // A log is not to be filled by what is over in a moment.
    const bool wait = style_ == ProgressStyle::log && other;
    last_kind_ = kind;
    next_ = now + (style_ == ProgressStyle::terminal ? std::chrono::milliseconds(200)
                   : style_ == ProgressStyle::json   ? std::chrono::milliseconds(1000)
                                                     : std::chrono::milliseconds(10000));
    return !wait;
}

void MoveProgress::progress(const char *kind, const std::string &line, const std::string &fields) {
    if (!due(kind)) return;
    if (style_ == ProgressStyle::json) {
        event(kind, fields);
    } else if (style_ == ProgressStyle::log) {
        lines_ << "interlock move: " << line << std::endl;
    } else {
        lines_ << '\r' << line.substr(0, columns_ > 1 ? columns_ - 1 : 1) << "\033[K" << std::flush;
        line_open_ = true;
    }
}

void MoveProgress::began(const Move &move, bool resumed) {
    move_ = move;
    began_ = copy_began_ = clock_();
    tables_.clear();
    copied_.reset();
    cleaned_.reset();
    removed_ = 0;
    held_by_.clear();
    say("move " + move.id + ": " + where() + " from " + move.from + " to " + move.to +
        (resumed ? ", goes on after step " + move.step : ""));
    std::string buckets;
    for (const std::int32_t bucket : move.buckets)
        buckets += (buckets.empty() ? "" : ",") + std::to_string(bucket);
    event("begin", text_field("keyspace", move.keyspace) + ",\"buckets\":[" + buckets + "]" +
                       text_field("from", move.from) + text_field("to", move.to) +
                       text_field("step", move.step) +
                       ",\"resumed\":" + (resumed ? "true" : "false"));
}

void MoveProgress::step(const std::string &name) {
    move_.step = name;
    if (name == "slot") {
        // The copy begins; one that had to begin anew counts from its own start.
        tables_.clear();
        copied_.reset();
        copy_began_ = clock_();
    }
    if (name == "copied") {
        TableCount all;
        for (const auto &[table, counted] : tables_) {
            all.rows += counted.rows;
            all.bytes += counted.bytes;
        }
        say("copied " + count(all.rows) + (all.rows == 1 ? " row, " : " rows, ") + size(all.bytes) +
            format(", in %.1f s", std::chrono::duration<double>(clock_() - copy_began_).count()));
    }
    if (name == "cleaned" && removed_ > 0)
        say("removed " + count(removed_) + (removed_ == 1 ? " row" : " rows") + " from " +
            move_.from);
    event("step", text_field("step", name));
}

void MoveProgress::found(const std::vector<MoveFinding> &findings) {
    refused_ = has_refusal(findings);
    for (const MoveFinding &finding : findings) {
        event("finding", "," + finding_json(finding));
        if (style_ == ProgressStyle::json) continue;
        clear_line();
        lines_ << finding_text(finding) << std::flush;
    }
}

void MoveProgress::copying(const std::string &table, std::int64_t rows, std::int64_t bytes,
                           std::int64_t estimated_rows) {
    tables_[table] = {rows, bytes, estimated_rows < 0 ? -1 : std::max(rows, estimated_rows)};
    TableCount all;
    bool known = true;
    for (const auto &[name, counted] : tables_) {
        all.rows += counted.rows;
        all.bytes += counted.bytes;
        all.estimate += counted.estimate;
        known = known && counted.estimate >= 0;
    }
    copied_.note(clock_(), all.rows);
    const std::int64_t left = known ? copied_.seconds_for(all.estimate - all.rows) : -1;
    const double rate = copied_.per_second();
    const std::string of_all =
        known ? " of about " + count(all.estimate) + " rows (" +
                    count(all.estimate > 0 ? all.rows * 100 / all.estimate : 100) + " %), "
              : " rows, ";
    progress(
        "copying",
        "copying " + table + ": " + count(all.rows) + of_all + size(all.bytes) +
            format(", %.0f rows/s", rate) + time_left(left),
        text_field("table", table) + number_field("rows", all.rows) +
            number_field("bytes", all.bytes) +
            (known ? number_field("estimate", all.estimate) : std::string(",\"estimate\":null")) +
            number_field("rows_per_second", std::llround(rate)) +
            (left < 0 ? std::string(",\"seconds_left\":null")
                      : number_field("seconds_left", left)));
}

void MoveProgress::following(std::int64_t lag_bytes, std::int64_t bytes_a_second) {
    const std::int64_t left = lag_bytes >= 0 && bytes_a_second > 0
                                  ? (lag_bytes + bytes_a_second - 1) / bytes_a_second
                                  : -1;
    progress("following",
             "following: " +
                 (lag_bytes < 0 ? std::string("lag not known") : size(lag_bytes) + " behind") +
                 (bytes_a_second > 0 ? ", " + size(bytes_a_second) + "/s" : "") + time_left(left),
             (lag_bytes < 0 ? std::string(",\"lag_bytes\":null")
                            : number_field("lag_bytes", lag_bytes)) +
                 number_field("bytes_per_second", bytes_a_second) +
                 (left < 0 ? std::string(",\"seconds_left\":null")
                           : number_field("seconds_left", left)));
}

void MoveProgress::holding_up(const std::vector<MoveHolder> &holders) {
    std::string text, objects;
    for (const MoveHolder &holder : holders) {
        text += (text.empty() ? "" : ", ") + holder.described();
        objects += (objects.empty() ? "" : ",") + std::string("{\"pid\":") +
                   (holder.pid == 0 ? "null" : std::to_string(holder.pid)) +
                   text_field("user", holder.user) + text_field("application", holder.application) +
                   text_field("state", holder.state) + text_field("since", holder.since) +
                   text_field("gid", holder.gid) + "}";
    }
    event("held_up", ",\"holders\":[" + objects + "]");
    if (style_ == ProgressStyle::json || text == held_by_) return;
    held_by_ = text;
    clear_line();
    lines_ << "WARNING:  held up by " << text << std::endl;
}

void MoveProgress::switched(std::int32_t route_version, std::int64_t pause_ms) {
    move_.route_version = route_version;
    say("switched at route version " + count(route_version) +
        (pause_ms < 0 ? "" : ": writers of the buckets waited " + count(pause_ms) + " ms"));
    event("switched", number_field("route_version", route_version) +
                          (pause_ms < 0 ? std::string(",\"pause_ms\":null")
                                        : number_field("pause_ms", pause_ms)));
}

void MoveProgress::verified(std::int64_t rows) {
    say("verified: " + count(rows) + (rows == 1 ? " row" : " rows") + ", the same on both sides");
    event("verified", number_field("rows", rows));
}

void MoveProgress::cleaning(std::int64_t rows) {
    removed_ = rows;
    cleaned_.note(clock_(), rows);
    const double rate = cleaned_.per_second();
    progress("cleaning",
             "removing rows from " + move_.from + ": " + count(rows) +
                 format(", %.0f rows/s", rate),
             number_field("rows", rows) + number_field("rows_per_second", std::llround(rate)));
}

void MoveProgress::note(const std::string &text) {
    say(text);
    event("note", text_field("text", text));
}

void MoveProgress::ended(MoveResult result) {
    const char *const names[] = {"done", "failed", "", "given_up"};
    event("end", text_field("result", names[static_cast<std::size_t>(result)]));
    clear_line();
    if (result == MoveResult::failed && refused_ && style_ != ProgressStyle::json)
        lines_ << "interlock move: refused, nothing was changed" << std::endl;
    if (result == MoveResult::given_up)
        say("given up without harm: nothing has changed for anyone. Go on with it: interlock move "
            "--resume " +
            move_.id + "; or take it back: interlock move --abort " + move_.id);
}

void MoveProgress::failed(const ControlError &error) {
    clear_line();
    event("error", text_field("sqlstate", error.sqlstate) + text_field("message", error.what()) +
                       text_field("detail", error.detail) + text_field("hint", error.hint));
}

}  // namespace interlock
