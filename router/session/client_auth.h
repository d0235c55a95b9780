// Who may log in to the PostgreSQL listener, and how: the rules in force, and where users are
// looked up (a file, or the catalog through a short cache).
#pragma once

#include "base/loop.h"
#include "base/result.h"
#include "base/settings.h"
#include "base/task.h"
#include "session/auth_file.h"
#include "session/user_lookup.h"
#include "wire/tls.h"

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace interlock {

/// The rules of one moment: a login keeps those it began with.
struct LoginRules {
    enum class Method : std::uint8_t { scram, cert, trust } method = Method::scram;
    bool require_tls = false;
    std::shared_ptr<const wire::TlsContext> tls;  ///< null: TLS is off
    std::shared_ptr<const UserList> users;        ///< null: the catalog is asked
};

/// Reads what the settings name. The error is one line.
[[nodiscard]] Result<std::shared_ptr<const LoginRules>, std::string>
load_login_rules(const Settings &settings);

/// What a look-up came to.
struct UserFound {
    bool unavailable = false;        ///< nobody knows at present
    bool late = false;               ///< the deadline passed
    std::optional<ClientUser> user;  ///< nothing: there is no such user
};

/// What the catalog said of users, and when; the oldest word is dropped when there is no room.
class UserCache {
  public:
    struct Entry {
        std::optional<ClientUser> user;
        Millis asked = 0;
    };

    explicit UserCache(std::size_t limit) : limit_(limit) {}
    [[nodiscard]] const Entry *find(const std::string &name) const;
    void put(const std::string &name, Entry entry);
    void erase(const std::string &name);

  private:
    struct Kept {
        Entry entry;
        std::list<std::string>::iterator place;
    };
    std::size_t limit_;
    std::unordered_map<std::string, Kept> entries_;
    std::list<std::string> by_age_;
};

class ClientAuth {
  public:
    /// How long the catalog's word about a user holds.
    static constexpr Millis cache_time = 5000;
    /// After a look-up that failed, the catalog is left alone for so long.
    static constexpr Millis failure_pause = 1000;

    /// Reads the rules; asks the catalog only when a user is looked up there. The error is one
    /// line.
    [[nodiscard]] static Result<std::unique_ptr<ClientAuth>, std::string>
    create(Loop &loop, const Settings &settings);

    /// Reads them anew (SIGHUP). If something is wrong, it is logged and the old rules stay.
    void reload(const Settings &settings);

    [[nodiscard]] const std::shared_ptr<const LoginRules> &rules() const { return rules_; }

    /// Looks a user up by these rules. When the catalog does not answer, what it said of the user
    /// before goes on to hold.
    [[nodiscard]] Task<UserFound> find(const LoginRules &rules, std::string user, Millis deadline);

  private:
    struct Waiting {
        Event done;
        bool failed = false;
        std::optional<ClientUser> user;
    };

    ClientAuth(Loop &loop, const Settings &settings, std::shared_ptr<const LoginRules> rules);
    void answered(const std::string &user, CatalogAnswer answer);
    [[nodiscard]] UserFound remembered(const std::string &user) const;

    Loop &loop_;
    std::string conninfo_;
    std::int64_t timeout_;
    std::shared_ptr<const LoginRules> rules_;
    // Apart, so that names made up by somebody do not drive out those that are needed when the
    // catalog is away. Both, so that the time taken does not tell which names there are.
    UserCache known_{10000};
    UserCache unknown_{1000};
    std::unordered_map<std::string, std::vector<Waiting *>> waiting_;
    Millis failed_at_ = 0;                ///< when a look-up last failed; 0: the last one did not
    std::string error_;                   ///< why
    std::unique_ptr<UserLookup> lookup_;  ///< made when first needed
};

}  // namespace interlock
