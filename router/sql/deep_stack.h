// A stack for code that recurses over a parse tree: libpg_query and the analysis of its trees.
#pragma once

#include <cstddef>

namespace interlock::sql {

/// Large enough for a tree of max_nesting (sql/parse_limits.h); proven by tests/unit.
inline constexpr std::size_t deep_stack_bytes = std::size_t{64} << 20;

/// Runs `work` on a stack of deep_stack_bytes that belongs to the calling thread, with a page below
/// it that no one may touch. Returns when it has returned; it must not throw. Not reentrant: inside
/// `work` a further call just calls.
///
/// The memory is reserved on a thread's first call and taken by use. After a deep run
/// (`give_back`) what was taken is given back.
void on_deep_stack(void (*work)(void *), void *argument, bool give_back);

template <typename Work>
void on_deep_stack(Work &&work, bool give_back) {
    on_deep_stack([](void *argument) { (*static_cast<Work *>(argument))(); },
                  static_cast<void *>(&work), give_back);
}

}  // namespace interlock::sql
