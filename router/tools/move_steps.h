// The recorded steps of a move, in order. Whoever resumes one starts from the last recorded.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace interlock {

enum class MoveStep : std::uint8_t {
    planned,           ///< the catalog knows of it
    prepared,          ///< DDL refused on both sides, the target's buckets importing
    recorded_slot,     ///< the source knows what the slot will let through
    published_tables,  ///< the publication is there
    slot,              ///< the slot is there, its snapshot is open
    copied,            ///< the rows of that snapshot are on the target, committed
    subscribed,        ///< the target follows
    caught_up,
    announced,  ///< a number is reserved and routers have been told
    fenced,
    waited,    ///< nobody from before the fence writes any more
    marked,    ///< the marker is written
    drained,   ///< and has come
    verified,  ///< both sides compared, or their snapshots taken
    decided,   ///< the point of no return
    activated,
    routed,        ///< published
    unsubscribed,  ///< subscription, slot and publication are gone
    cleaned,       ///< and so are the source's rows
    done,
};

inline constexpr std::array<std::string_view, 20> move_step_names{
    "planned",   "prepared",   "recorded_slot", "published_tables", "slot",
    "copied",    "subscribed", "caught_up",     "announced",        "fenced",
    "waited",    "marked",     "drained",       "verified",         "decided",
    "activated", "routed",     "unsubscribed",  "cleaned",          "done"};

[[nodiscard]] constexpr std::string_view name_of(MoveStep step) {
    return move_step_names[static_cast<std::size_t>(step)];
}

[[nodiscard]] constexpr std::optional<MoveStep> move_step_named(std::string_view name) {
    for (std::size_t i = 0; i < move_step_names.size(); ++i)
        if (move_step_names[i] == name) return static_cast<MoveStep>(i);
    return std::nullopt;
}

/// For tests: stops this process (SIGSTOP) if the environment's INTERLOCK_TEST_STOP is
/// "before-STEP" or "after-STEP"; the first time only.
void stop_before(MoveStep step);
void stop_after(MoveStep step);

}  // namespace interlock
