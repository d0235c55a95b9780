// The session: one client's transaction state, and the whole flow of a statement.
//
//     analyse -> plan -> (begin, pin) -> lend -> relay -> judge the outcome -> reply
//
// It knows nothing of how the client speaks: a listener's face parses requests, calls run() and
// writes the reply. States and codes are those of spec "routing", "Transaction states".
#pragma once

#include "plan/plan.h"
#include "session/client_end.h"
#include "session/relay.h"
#include "session/route_patience.h"
#include "session/worker.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace interlock {

enum class Transaction : char { none = 'I', open = 'T', failed = 'E' };

struct Reply {
    std::optional<Refusal> refusal;  ///< none: the statement succeeded
    std::string tag;                 ///< "UPDATE", "BEGIN"
    std::string shard;               ///< empty: no backend was used; "*": one of each shard
    int pid = 0;                     ///< of the backend process; 0: none
    std::int32_t route_version = 0;  ///< the version this statement was judged and run under
    std::uint64_t count = 0;
    Transaction transaction = Transaction::none;
    bool no_transaction = false;  ///< COMMIT or ROLLBACK with nothing to end
};

class Session {
  public:
    /// `client`: may leave while a statement waits for routes, which is then not carried out; null:
    /// nobody looks.
    explicit Session(Worker &worker, ClientEnd *client = nullptr)
        : worker_(worker), client_(client) {}
    ~Session() = default;  // a lease still held closes its connection, and the server rolls back
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    /// Carries out one statement of the `strict` profile. Rows go to `sink`.
    [[nodiscard]] Task<Reply> run(std::string_view text, std::span<const Parameter> parameters,
                                  RowSink &sink);

    /// The client sent something that is no statement (R02): fails an open transaction.
    [[nodiscard]] Task<Reply> refuse(Refusal refusal);

    /// The client is gone: rolls back and gives the backend back.
    [[nodiscard]] Task<void> end();

    /// The pinned backend's descriptor, or null: an idle client's face waits on it too, and calls
    /// backend_stirred() when it becomes readable.
    [[nodiscard]] Watch *pinned_watch();
    void backend_stirred();

    [[nodiscard]] Transaction transaction() const { return transaction_; }

  private:
    [[nodiscard]] Reply reply() const;
    [[nodiscard]] Reply begin();
    [[nodiscard]] Task<Reply> commit();
    [[nodiscard]] Task<Reply> rollback();
    /// Nothing: other routes are in force, and the statement is to be judged anew under them.
    [[nodiscard]] Task<std::optional<Reply>>
    run_data(std::shared_ptr<const sql::Statement> statement, std::span<const Parameter> parameters,
             RowSink &sink, RoutePatience &patience);
    [[nodiscard]] Task<std::optional<Refusal>> hold_back(RoutePatience &patience, bool &again);
    [[nodiscard]] Task<bool> give_up_refused(Lease &own, const Answer &end, bool user_code);
    [[nodiscard]] bool client_gone() const { return client_ != nullptr && client_->gone(); }
    [[nodiscard]] std::optional<Refusal> waited_in_vain() const;
    [[nodiscard]] Refusal on_the_move() const;
    [[nodiscard]] Refusal told(RouteRefusal kind, const BackendError &error);
    [[nodiscard]] Task<Reply> run_page(std::shared_ptr<const sql::Statement> statement,
                                       std::span<const Parameter> parameters, RowSink &sink);
    [[nodiscard]] std::optional<Refusal> judge_page(const sql::Statement &statement,
                                                    std::span<const Parameter> parameters) const;
    [[nodiscard]] Task<void> fail_transaction();
    [[nodiscard]] Task<void> give_back_rolled_back();
    void leave_transaction();
    void give_back(Lease &lease, bool user_code);
    [[nodiscard]] Reply refuse_failed(Reply answer, const char *message);
    [[nodiscard]] const std::shared_ptr<const Routes> &routes_in_use() const;

    Worker &worker_;
    ClientEnd *client_;
    Transaction transaction_ = Transaction::none;
    std::shared_ptr<const Routes> snapshot_;  ///< of the transaction in progress
    Lease pinned_;
    bool user_code_ = false;  ///< may have run in the pinned session, and left something there
    ShardIndex pinned_shard_ = 0;
    struct Lost {
        Refusal refusal;
        std::string shard;
        int pid;
    };
    std::optional<Lost> lost_;  ///< why the pinned backend was lost, not yet told
};

}  // namespace interlock
