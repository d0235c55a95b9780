// Session parameters under transaction pooling: what a client has set is kept here and put in force
// on each backend it is lent.
//
// Values are PostgreSQL's own spelling of them (what SHOW says), since each SET is first carried
// out by a backend. Sets of values are immutable and shared: two clients with equal settings hold
// the same set, so that whether a backend has to be changed is one comparison of pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace interlock {

/// A parameter the router keeps for its clients. The list is published in docs/application.md.
struct TrackedParameter {
    std::string_view name;  ///< as PostgreSQL spells it in ParameterStatus
    bool reported = false;  ///< PostgreSQL reports its changes to the client
};

/// All of them, in their order; the reported ones first.
[[nodiscard]] std::span<const TrackedParameter> tracked_parameters();

/// By name in any case; null for a parameter that is not tracked.
[[nodiscard]] const TrackedParameter *find_tracked(std::string_view name);

/// Whether text in this client_encoding can be read byte by byte as PostgreSQL reads it: no byte of
/// a multi-byte character looks like ASCII.
[[nodiscard]] bool safe_client_encoding(std::string_view name);

/// What a session has set, beyond its login's defaults.
class ParameterSet {
  public:
    struct Value {
        const TrackedParameter *parameter;
        std::string value;
    };
    std::vector<Value> values;  ///< in the order of the list of tracked parameters

    [[nodiscard]] const std::string *find(const TrackedParameter *parameter) const;

    /// Whether a backend of this pool has taken the set before (pools are told apart by address).
    [[nodiscard]] bool accepted_by(const void *pool) const;
    void note_accepted(const void *pool) const;

  private:
    mutable std::vector<const void *> accepted_by_;
};

/// Null stands for the defaults: nothing set.
using Parameters = std::shared_ptr<const ParameterSet>;

/// The value of `parameter` in `set`, or null.
[[nodiscard]] const std::string *value_in(const Parameters &set, const TrackedParameter *parameter);

/// SQL that turns a session with `from` in force into one with `to`. Empty when they are equal.
[[nodiscard]] std::string change_parameters_sql(const Parameters &from, const Parameters &to);

/// Whether a statement's text begins with this word, in any case.
[[nodiscard]] bool begins_with_word(std::string_view text, std::string_view word);

/// 'text' as a literal, quotes doubled.
[[nodiscard]] std::string quote_literal(std::string_view text);
/// "name" as an identifier, always quoted.
[[nodiscard]] std::string quote_identifier(std::string_view name);

/// Makes sets, each only once.
class ParameterSets {
  public:
    [[nodiscard]] Parameters with(const Parameters &set, const TrackedParameter *parameter,
                                  std::string value);
    [[nodiscard]] Parameters without(const Parameters &set, const TrackedParameter *parameter);

  private:
    [[nodiscard]] Parameters intern(ParameterSet set);
    std::unordered_map<std::string, std::weak_ptr<const ParameterSet>> sets_;
};

}  // namespace interlock
