#include "tools/repair_report.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string_view>

#include <unistd.h>

namespace interlock {

namespace {

// How many differences a person is shown unless --verbose is given.
constexpr std::int64_t shown_at_most = 20;

struct Counter {
    std::string_view name;
    std::int64_t RepairCounts::*member;
};

// The names are part of what programs read, and of what index_repair keeps.
constexpr std::array<Counter, 8> counters{{
    {"scanned", &RepairCounts::rows},
    {"entries", &RepairCounts::entries},
    {"missing", &RepairCounts::missing},
    {"stale", &RepairCounts::stale},
    {"mended", &RepairCounts::mended},
    {"pending", &RepairCounts::pending},
    {"parked", &RepairCounts::parked},
    {"elsewhere", &RepairCounts::elsewhere},
}};

/// The names here need no escapes but these.
std::string json_text(const std::string &text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
    }
    return quoted + "\"";
}

std::string json_or_null(const std::string &json) {
    return json.empty() ? "null" : json;
}

std::string members(const RepairCounts &counts) {
    std::string text;
    for (const Counter &counter : counters)
        text += (text.empty() ? "" : ", ") + json_text(std::string(counter.name)) + ": " +
                std::to_string(counts.*counter.member);
    return text;
}

const char *kind(Verdict verdict) {
    return verdict == Verdict::missing ? "missing" : "stale";
}

const char *reason(Verdict verdict) {
    switch (verdict) {
    case Verdict::missing: return "no entry";
    case Verdict::gone: return "no row";
    default: return "other values";
    }
}

}  // namespace

std::string RepairCounts::json() const {
    return "{" + members(*this) + "}";
}

void RepairCounts::take(const Rows &found, int first_column) {
    for (std::size_t i = 0; i < counters.size(); ++i)
        this->*counters[i].member = found.int64(0, first_column + static_cast<int>(i));
}

RepairReport::RepairReport(const RepairRun &run, bool json, bool verbose)
    : run_(run), json_(json), verbose_(verbose), terminal_(isatty(STDERR_FILENO) == 1) {}

double RepairReport::seconds() const {
    return std::chrono::duration<double>(Clock::now() - begun_).count();
}

void RepairReport::clear_line() {
    if (line_shown_) std::cerr << "\r\033[K" << std::flush;
    line_shown_ = false;
}

void RepairReport::tell(const std::string &text) {
    clear_line();
    std::cerr << "interlock repair: " << text << std::endl;
}

void RepairReport::difference(const Judged &judged, const std::string &shard) {
    if (json_) {
        std::cout << "{\"event\": \"difference\", \"kind\": \"" << kind(judged.verdict)
                  << "\", \"reason\": \"" << reason(judged.verdict)
                  << "\", \"shard\": " << json_text(shard) << ", \"key\": " << judged.key
                  << ", \"row\": " << json_or_null(judged.row)
                  << ", \"entry\": " << json_or_null(judged.entry) << "}\n";
        return;
    }
    if (++shown_ > shown_at_most && !verbose_) {
        if (shown_ == shown_at_most + 1) {
            clear_line();
            std::cout << "... (--verbose shows all)" << std::endl;
        }
        return;
    }
    clear_line();
    std::cout << kind(judged.verdict) << " (" << reason(judged.verdict) << "): " << judged.key
              << " of shard " << shard;
    if (judged.verdict == Verdict::differs)
        std::cout << ": row " << judged.row << ", entry " << judged.entry;
    std::cout << '\n';
}

void RepairReport::refused(const Mended::Refusal &refusal) {
    tell("could not mend " + refusal.key + ": " + refusal.reason);
}

void RepairReport::progress(const RepairCounts &counts, std::int64_t estimate) {
    const std::int64_t compared = std::max(counts.rows, counts.entries);
    if (compared_before_ < 0) compared_before_ = compared;
    const Clock::time_point now = Clock::now();
    if (now - last_progress_ < std::chrono::seconds(1)) return;
    last_progress_ = now;
    const double rate =
        static_cast<double>(compared - compared_before_) / std::max(seconds(), 0.001);
    if (json_) {
        std::cout << "{\"event\": \"progress\", " << members(counts)
                  << ", \"estimate\": " << (estimate > 0 ? std::to_string(estimate) : "null")
                  << ", \"rate\": " << static_cast<std::int64_t>(rate) << "}" << std::endl;
    } else if (terminal_) {
        std::ostringstream line;
        line << compared;
        if (estimate > 0)
            line << " of about " << std::max(estimate, compared) << " ("
                 << 100 * compared / std::max(estimate, compared) << " %)";
        line << " compared, " << static_cast<std::int64_t>(rate) << "/s; missing " << counts.missing
             << ", stale " << counts.stale;
        if (estimate > compared && rate > 1)
            line << "; "
                 << static_cast<std::int64_t>(static_cast<double>(estimate - compared) / rate)
                 << " s left";
        std::cerr << "\r\033[K" << line.str() << std::flush;
        line_shown_ = true;
    }
}

void RepairReport::finish(const RepairCounts &counts, std::int64_t left) {
    clear_line();
    if (json_) {
        std::cout << "{\"event\": \"report\", \"index\": " << json_text(run_.index)
                  << ", \"apply\": " << (run_.apply ? "true" : "false")
                  << ", \"scope\": " << json_or_null(run_.scope)
                  << ", \"shard\": " << (run_.shard.empty() ? "null" : json_text(run_.shard))
                  << ", " << members(counts) << ", \"left\": " << left
                  << ", \"resumed\": " << (run_.resumed ? "true" : "false")
                  << ", \"seconds\": " << std::fixed << std::setprecision(3) << seconds() << "}"
                  << std::endl;
        return;
    }
    std::cout << run_.index << ": " << counts.rows << " rows and " << counts.entries
              << " entries compared: missing " << counts.missing << ", stale " << counts.stale
              << ", pending " << counts.pending << ", mended " << counts.mended << '\n';
    if (counts.parked > 0)
        std::cout << counts.parked
                  << " of the pending keys have parked changes: see \"interlock index status\"\n";
    if (counts.elsewhere > 0)
        std::cout << counts.elsewhere
                  << " entries name another shard than their bucket's present one: their buckets "
                     "have moved since, which does no harm\n";
    if (!run_.apply && left > 0)
        std::cout << "nothing was changed; with --apply it will be mended\n";
    std::cout << std::flush;
}

}  // namespace interlock
