// Asks the catalog about users, on a thread of its own with a control connection of its own: a
// login may wait for the catalog, the loop never does.
#pragma once

#include "base/loop.h"
#include "session/auth_file.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace interlock {

class ControlConnection;

/// The catalog's answer about one user.
struct CatalogAnswer {
    bool failed = false;             ///< there was none; `error` says why
    std::string error;               ///< one line, for the log
    std::optional<ClientUser> user;  ///< nothing: there is no such user
};

class UserLookup {
  public:
    using Answered = std::function<void(std::string user, CatalogAnswer answer)>;

    /// `answered` is called on the loop's thread, for each user asked about.
    UserLookup(Loop &loop, std::string conninfo, Answered answered);
    /// Ends the thread; waits for a query in progress (bounded by its timeout).
    ~UserLookup();
    UserLookup(const UserLookup &) = delete;
    UserLookup &operator=(const UserLookup &) = delete;

    /// Asks; the answer, or that there is none, comes within about `timeout` ms after those asked
    /// for before. The name must be valid UTF-8.
    void ask(std::string user, std::int64_t timeout);

  private:
    struct Question {
        std::string user;
        std::int64_t timeout;
    };
    void run();
    CatalogAnswer answer(const Question &question);
    CatalogAnswer query(const Question &question);

    // Shared with the loop's thread through post(), which may run what was posted after our end.
    struct Receiver {
        Answered answered;
    };

    Loop &loop_;
    std::string conninfo_;
    std::shared_ptr<Receiver> receiver_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Question> questions_;
    bool stopping_ = false;
    std::unique_ptr<ControlConnection> catalog_;  ///< the thread's own
    std::thread thread_;                          ///< last: it uses all of the above
};

}  // namespace interlock
