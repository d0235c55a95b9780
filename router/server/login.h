// What is known about a backend login: how its sessions begin, which must be the same on all
// shards.
//
// A statement is judged once, by the router, and may run on any shard. So a shard on which the
// login's sessions begin with another search_path, or spell a timestamp differently, is refused
// instead of giving answers of its own kind.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace interlock {

/// How a new session of a login begins. Shared by the backends that began so.
struct LoginDefaults {
    using Values = std::vector<std::pair<std::string, std::string>>;

    /// What the server reports by itself (ParameterStatus), in the order of reported_parameters.
    Values reported;
    /// What decides the meaning of a statement or the spelling of its answer (compared between
    /// shards), in the order of compared_settings.
    Values settings;

    /// A value of either list; empty when it is in neither.
    [[nodiscard]] const std::string &value(std::string_view name) const;
    [[nodiscard]] const std::string &search_path() const { return value("search_path"); }
};

/// Names of the parameters PostgreSQL reports to a client at the start of a session.
[[nodiscard]] const std::vector<std::string> &reported_parameters();
/// Names of the settings that must be equal on all shards.
[[nodiscard]] const std::vector<std::string> &compared_settings();

/// One login over all shards of a worker. The first backend that greets teaches it.
class LoginProfile {
  public:
    /// `login` may be empty: whatever the connection strings say.
    explicit LoginProfile(std::string login) : login_(std::move(login)) {}

    [[nodiscard]] const std::string &login() const { return login_; }

    /// Null until a backend was greeted. A new value when the shard that taught the last one begins
    /// its sessions differently now: backends that began under another value are not lent any more.
    [[nodiscard]] const std::shared_ptr<const LoginDefaults> &defaults() const { return defaults_; }

    /// A session of `shard` began with `found`. Empty, and `found` is the shared value, if that is
    /// how they all begin; else what differs.
    [[nodiscard]] std::string accept(const std::string &shard,
                                     std::shared_ptr<const LoginDefaults> &found);

    /// Another shard differs from what `shard` taught. Its pool then replaces its idle connections,
    /// so that a change made everywhere is learnt soon.
    [[nodiscard]] bool doubted(const std::string &shard) const {
        return doubted_ && shard == teacher_;
    }
    /// Nothing of the teacher's sessions is left: whoever greets next teaches.
    void forget();

  private:
    std::string login_;
    std::string teacher_;
    std::shared_ptr<const LoginDefaults> defaults_;
    bool doubted_ = false;
};

}  // namespace interlock
