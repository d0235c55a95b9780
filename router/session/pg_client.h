// A client of the PostgreSQL listener, after its login: reads messages, carries them out, answers.
//
//     message -> shape -> facts -> plan -> (begin, pin) -> lend -> exchange -> answer
//
// pg_client.cpp        the connection: reading, writing, idling, the end
// pg_query.cpp         Query messages
// pg_extended.cpp      Bind, Describe, Execute, Close, Flush, Sync: rounds
// pg_prepared.cpp      Parse, and statements prepared on whichever backend
// pg_long_message.cpp  messages that are not kept as a whole
// pg_control.cpp       what the router answers itself: transaction control and the like
// pg_settings.cpp      the session's parameters: SET, RESET, what the client is told of them
// pg_backend.cpp       lending, pinning, giving back
// pg_settle.cpp        moving answers, and what happens when the backend is lost
// pg_resend.cpp        holding back, and sending again, what meets a move of buckets
// pg_scatter.cpp       statements that all shards answer together
//
// States and codes are those of spec "routing"; where it is silent, PostgreSQL's own behaviour.
#pragma once

#include "plan/single_shard.h"
#include "server/pools.h"
#include "session/merged_rows.h"
#include "session/pg_exchange.h"
#include "session/pg_login.h"
#include "session/pg_shared.h"
#include "session/route_wait.h"
#include "session/scatter_budget.h"
#include "session/session.h"
#include "session/worker.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace interlock {

class PgClient final : public Client, private ExchangeOwner {
  public:
    /// Takes over a client that has logged in. `in` holds what it has sent already.
    PgClient(PgShared &shared, std::unique_ptr<Transport> transport, Buffer in, Login login);
    ~PgClient() override;

    /// Serves the client until it leaves or must go; it then ends itself.
    static void start(std::unique_ptr<PgClient> client);

    [[nodiscard]] PgShared::CancelKey cancel_key() const { return key_; }
    void stop_soon() override { wake_.set(); }
    /// A cancel request with this client's key has come.
    void cancel();

  private:
    /// How the backend in use is held.
    enum class Hold : std::uint8_t {
        none,
        any,     ///< for statements any shard can answer; can be changed for another
        single,  ///< an implicit transaction with data of this shard
        pinned,  ///< the explicit transaction's
    };

    struct Savepoint {
        std::string name;
        Parameters parameters;
        Parameters local;
        std::size_t prologue;  ///< statements of the prologue before it
    };
    /// An explicit transaction.
    struct Block {
        std::shared_ptr<const Routes> routes;
        std::string begin;                         ///< BEGIN with its options, as written
        std::vector<std::string> prologue;         ///< what was said before it was pinned, in order
        std::vector<std::string> characteristics;  ///< SET TRANSACTION ..., kept for AND CHAIN
        std::vector<Savepoint> savepoints;
        Parameters parameters;         ///< in force when it began
        Parameters local;              ///< what SET LOCAL has put over the session's parameters
        std::size_t revision = 0;      ///< of what an unpinned transaction would open with
        std::size_t opened = 0;        ///< the revision the backend in use was opened with
        bool ended_by_commit = false;  ///< the server has said COMMIT
    };

    /// A prepared statement of this client.
    struct Prepared {
        std::shared_ptr<const PgStatement> statement;
        std::shared_ptr<const sql::Facts> facts;
        std::shared_ptr<const RouteTable> table;  ///< the facts were found under
        std::uint32_t path = 0;                   ///< the same
        std::uint64_t id = 0;      ///< the statement's where it is shared, else its own
        std::uint64_t result = 0;  ///< fingerprint of the columns the client was told of; 0: none
        bool named = false;
        bool checked = false;  ///< on its way to a backend, or accepted by one
    };
    using PreparedPointer = std::shared_ptr<Prepared>;
    struct ScatterPortal;
    struct Portal {
        std::string name;
        PreparedPointer prepared;
        bool local = false;  ///< carried out by the router
        std::shared_ptr<ScatterPortal> scatter;
    };
    struct Extended {
        std::unordered_map<std::string, PreparedPointer> named;
        PreparedPointer unnamed;
        std::vector<Portal> portals;
        std::vector<PreparedPointer> unchecked;  ///< parsed in this round, not seen by a backend
    };
    /// Something to be done when an answer has come, or will not come.
    struct Note {
        enum class Kind : std::uint8_t {
            query,    ///< commands of a Query: facts in `commands_`
            execute,  ///< of `facts`
            parse,    ///< Parse or Close of `name`, answered by the router; `prepared` closed
            prepare,  ///< Parse of `prepared` on the backend in use
            columns,  ///< Describe of `prepared`
        } kind = Kind::query;
        std::shared_ptr<const sql::Facts> facts;
        std::string name;
        PreparedPointer prepared;
    };

    /// What it takes to carry out again what is being carried out: see pg_resend.cpp.
    struct Resend {
        bool possible = false;    ///< none of it was committed, none of its answers given
        bool bound = false;       ///< something on a backend depends on its messages
        std::size_t before = 0;   ///< bytes of out_ that are no answers of it
        std::string frames;       ///< of a round: its messages
        std::size_t last = 0;     ///< where in frames the message in hand is
        std::size_t charged = 0;  ///< of frames, in the worker's budget
        struct Change {
            std::string name;
            PreparedPointer before;
        };
        std::vector<Change> statements;  ///< prepared, replaced or closed, in order
        std::vector<Portal> portals;     ///< as they were
    };
    /// A refusal of a shard that the client was not told of.
    struct Refused {
        RouteRefusal kind;
        BackendError error;
        bool before_sending = false;  ///< it is our own
    };
    /// What has become of a statement.
    enum class Ran : std::uint8_t {
        done,
        failed,
        again,  ///< nothing: it is to be planned and carried out anew
    };

    /// What only a client needs that something is going on for.
    struct Work {
        std::unique_ptr<Exchange> exchange;
        std::unique_ptr<Resend> resend;
        std::vector<Note> notes;
        std::vector<std::shared_ptr<const sql::Facts>> commands;
    };

    // pg_client.cpp. What is rare is not inlined: the compiler would put the frames of all of them
    // into the one of serve().
    Detached run(bool fresh);
    Detached rest();
    [[nodiscard]] bool may_rest() const;
    [[nodiscard]] static std::vector<Work> &spare_work();
    void take_work();
    void give_work_back();
    [[nodiscard]] Task<bool> serve(bool fresh);
    [[nodiscard, gnu::noinline]] Task<bool> greet();
    [[nodiscard]] Task<std::optional<Refusal>> learn_defaults();
    [[nodiscard]] Task<std::optional<Refusal>> apply_startup();
    [[nodiscard]] Task<void> take_message(const wire::Frame &frame);
    [[nodiscard, gnu::noinline]] Task<void> relieve();
    [[nodiscard]] Task<bool> push_round();
    void round_stirred();
    [[nodiscard, gnu::noinline]] Task<void> say_goodbye();
    [[nodiscard]] Task<bool> idle();
    [[nodiscard]] Task<bool> flush();
    [[nodiscard]] bool try_write();
    [[nodiscard]] bool read_client();
    [[nodiscard]] bool within_budget();
    void answer_ready();
    void fatal_protocol(std::string_view message);
    static void client_stirred(void *self);

    // pg_long_message.cpp
    [[nodiscard, gnu::noinline]] Task<bool> take_long_message(char type, std::size_t size);
    [[nodiscard]] Task<bool> take_long_bind(std::size_t size);
    [[nodiscard]] Result<std::optional<Target>, Refusal>
    plan_long_bind(Prepared &prepared, const std::string &portal_name, wire::FieldReader fields,
                   std::size_t size);
    [[nodiscard]] Task<bool> read_at_least(std::size_t bytes);
    [[nodiscard]] Task<bool> pass_over(std::size_t size);

    // pg_query.cpp
    [[nodiscard]] Task<void> query(std::string_view text);
    [[nodiscard]] Task<Ran> judge_and_run(std::string_view text);
    [[nodiscard]] Task<Ran> run_one(const std::shared_ptr<const sql::Facts> &facts,
                                    std::string_view text, std::span<const sql::Literal> literals);
    [[nodiscard]] Task<void> run_many(std::string text, std::vector<sql::StatementFacts> list,
                                      std::vector<sql::Literal> literals);
    [[nodiscard]] Task<Ran> run_data(std::string_view text, std::optional<Target> target);
    [[nodiscard]] Task<Ran> finish_query();

    // pg_extended.cpp
    [[nodiscard]] Extended &extended();
    [[nodiscard]] Task<void> parse(std::string_view body);
    [[nodiscard]] Task<void> bind(std::string_view body);
    [[nodiscard]] Task<void> describe(std::string_view body);
    [[nodiscard]] Task<void> execute(std::string_view body);
    void close(std::string_view body);
    [[nodiscard]] Task<void> sync();
    [[nodiscard]] Task<void> finish_round();
    [[nodiscard]] Task<void> flush_request();
    [[nodiscard]] Task<void> check_parsed();
    [[nodiscard]] Task<void> end_round_early();
    void end_round();
    [[nodiscard]] std::optional<Refusal> refresh(Prepared &prepared);
    [[nodiscard]] PreparedPointer find_prepared(std::string_view name);
    [[nodiscard]] Portal *find_portal(std::string_view name);
    void remember_portal(std::string_view name, PreparedPointer prepared, bool local);
    void prepare_on_backend(const PreparedPointer &prepared);
    [[nodiscard]] bool result_agrees(const Prepared &prepared) const;
    [[nodiscard]] Task<std::optional<Refusal>> check_result(const PreparedPointer &prepared);
    [[nodiscard]] std::uint32_t note_columns(const PreparedPointer &prepared);
    void append_statement_message(char type, char what, const Prepared &prepared);
    [[nodiscard]] std::optional<Refusal> check_text(const sql::Shape &shape) const;
    /// Has the backend answer all that it was asked so far. Not at the end of a round only: a
    /// client may send rounds of any length.
    [[nodiscard]] Task<std::optional<Refusal>> settle_round();
    [[nodiscard]] static bool read_parameters(wire::FieldReader &fields,
                                              const std::vector<std::uint32_t> &types,
                                              std::vector<BoundParameter> &out);
    void describe_local(const sql::Facts &facts);
    [[nodiscard]] Task<std::optional<Refusal>> control_in_round(const sql::Facts &facts);
    [[nodiscard]] bool carried_out_here(const sql::Facts &facts) const;
    void fail_round(const Refusal &refusal);
    [[nodiscard]] std::uint32_t note(Note note);

    // pg_control.cpp: answers are put in the exchange's line; a refusal is for the caller to tell
    [[nodiscard]] Task<std::optional<Refusal>> control(const sql::Facts &facts);
    [[nodiscard]] std::optional<Refusal> begin(const sql::Facts &facts);
    void open_new_block(std::string begin);
    [[nodiscard]] Task<std::optional<Refusal>> end_transaction(const sql::Facts &facts);
    void leave_block(bool committed);
    [[nodiscard]] Task<std::optional<Refusal>> savepoint(const sql::Facts &facts);
    void statement_done(const sql::Facts &facts, std::string_view tag);
    [[nodiscard]] Task<std::optional<Refusal>> set(const sql::Facts &facts);
    [[nodiscard]] Task<std::optional<Refusal>> set_one(const TrackedParameter &parameter,
                                                       const std::string &value, bool local);
    [[nodiscard]] std::optional<Refusal> check_search_path(const std::string &value) const;
    void keep_setting(const TrackedParameter &parameter, const std::string &value, bool local);
    [[nodiscard]] Task<std::optional<Refusal>> reset(const sql::Facts &facts);
    [[nodiscard]] Task<std::optional<Refusal>> reset_one(const TrackedParameter &parameter);
    void use_parameters(Parameters parameters, Parameters local);
    void use_parameters(Parameters parameters);
    [[nodiscard]] const std::string *in_force(const TrackedParameter &parameter) const;
    void tell_status(const TrackedParameter &parameter, std::string_view value);
    void tell_changes();
    [[nodiscard]] const std::string &told_at_start(const TrackedParameter &parameter) const;
    [[nodiscard]] const std::string &told(const TrackedParameter &parameter) const;
    void note_told(const TrackedParameter &parameter, std::string_view value);
    [[nodiscard]] std::optional<Refusal> discard(const sql::Facts &facts);
    [[nodiscard]] std::optional<Refusal> deallocate(const sql::Facts &facts);
    void explain_route(const sql::Facts &facts, bool described);
    void answer_tag(std::string_view tag);
    void answer_warning(std::string_view sqlstate, std::string_view message);

    // pg_backend.cpp
    [[nodiscard]] const std::shared_ptr<const Routes> &routes_in_use() const;
    [[nodiscard]] Task<std::optional<Refusal>> ensure(const sql::Facts &facts,
                                                      std::optional<Target> target, bool settled);
    [[nodiscard]] Task<std::optional<Refusal>>
    lend(std::optional<ShardIndex> shard, bool settled = false, const sql::Facts *facts = nullptr);
    [[nodiscard]] Task<std::optional<Refusal>> lend_any(LoginPools &pools, std::int32_t version);
    [[nodiscard]] Task<std::optional<Refusal>> apply_parameters(Parameters wanted);
    [[nodiscard]] std::optional<Refusal> check_names(const sql::Facts &facts);
    void open_block();
    [[nodiscard]] std::int32_t version(bool settled) const;
    [[nodiscard]] bool outdated() const;
    void append_step(std::string_view sql, std::string_view portal = {});
    void append_query(std::string_view sql, Owed::To to, std::uint32_t note = 0);
    /// Moves answers until nothing is owed. A refusal: the backend was lost before the client had
    /// all its answers.
    [[nodiscard]] Task<std::optional<Refusal>> settle();
    /// The same, but only until the backend has taken what was to be sent, if `drained`.
    [[nodiscard]] Task<std::optional<Refusal>> settle_until(bool drained);
    /// The router's own question, in a Query; the row it is answered with is kept.
    [[nodiscard]] Task<std::optional<Refusal>> ask_backend(std::string_view sql);
    [[nodiscard]] std::optional<Refusal> backend_lost(AnswerEnd end);
    /// After ReadyForQuery: gives the backend back, or keeps it, as its state says.
    /// Returns whether the round failed.
    [[nodiscard]] Task<bool> after_ready();
    [[nodiscard]] Task<void> give_up_any();
    [[nodiscard]] Task<void> roll_back_now();
    [[nodiscard]] Task<void> roll_back_lease();
    [[nodiscard]] Task<void> fail_block(const Refusal *refusal);
    [[nodiscard]] Task<void> refuse(Refusal refusal);
    [[nodiscard]] std::optional<Refusal> failed_refusal();
    [[nodiscard]] std::optional<Refusal> take_lost();
    [[nodiscard]] Task<void> pinned_stirred();
    void release();
    void discard_backend();
    void raise_effect(const sql::Facts &facts);
    [[nodiscard]] bool meets_user_code(const sql::Facts &facts) const;
    [[nodiscard]] bool in_block() const { return block_ != nullptr; }

    // pg_resend.cpp
    [[nodiscard]] static bool buckets_known(const sql::Facts &facts);
    void use_newest_routes();
    void begin_request();
    void end_request();
    void forget_frames();
    void begin_resend();
    void keep_message(const wire::Frame &frame);
    void keep_statement(std::string_view name);
    void cannot_resend();
    void resend_from_here();
    void answers_given(std::size_t bytes);
    [[nodiscard]] bool answers_may_wait() const;
    [[nodiscard]] bool answers_may_come_again() const;
    [[nodiscard]] bool too_much_to_keep() const;
    void give_older_answers();
    [[nodiscard]] bool refused_for_routes(const wire::ErrorFields &error, Buffer &out);
    [[nodiscard]] bool must_go_back(const sql::Facts &facts, bool settled) const;
    [[nodiscard]] bool must_not_run_here(const sql::Facts &facts, std::optional<Target> target,
                                         bool settled) const;
    [[nodiscard]] Task<std::optional<Refusal>> go_back_before(const sql::Facts &facts);
    [[nodiscard]] Refusal bucket_on_the_move() const;
    void fail_round_for_move();
    void begin_patience();
    [[nodiscard]] std::optional<Refusal> waited_in_vain();
    [[nodiscard]] Task<bool> await_routes(Millis until, bool look_once);
    [[nodiscard]] Task<std::optional<Refusal>> hold_back(bool &again);
    [[nodiscard]] Task<std::optional<Refusal>> make_way(bool synced);
    [[nodiscard]] Task<std::optional<Refusal>> await_reason(const Refused &refused, bool &again);
    [[nodiscard]] Task<bool> end_refused(const Refused &refused);
    void take_back();
    [[nodiscard]] Task<void> take_behind_refused(const wire::Frame &frame);
    [[nodiscard]] Task<void> replay_round();

    // pg_scatter.cpp
    [[nodiscard]] Task<bool> run_scatter(const std::shared_ptr<const sql::Facts> &facts,
                                         std::string_view text,
                                         std::span<const sql::Literal> literals);
    [[nodiscard]] std::optional<Refusal> bind_scatter(std::string_view portal_name,
                                                      const PreparedPointer &prepared,
                                                      std::string_view values);
    [[nodiscard]] Task<void> describe_scatter(PreparedPointer prepared,
                                              std::shared_ptr<ScatterPortal> portal);
    [[nodiscard]] Task<void> execute_scatter(PreparedPointer prepared,
                                             std::shared_ptr<ScatterPortal> portal,
                                             std::uint32_t most);
    [[nodiscard]] Task<bool> start_portal(const PreparedPointer &prepared, ScatterPortal &portal);
    [[nodiscard]] Task<void> fetch_rest(ScatterPortal &portal);
    void park_scatter();
    [[nodiscard]] Task<std::optional<Refusal>> before_scatter(const sql::Facts &facts);
    [[nodiscard]] Task<std::optional<Refusal>> open_scatter(ScatterRequest request,
                                                            std::unique_ptr<MergedRows> &scatter,
                                                            SessionBudget::Bound &timeout_of);
    [[nodiscard]] Task<bool> pass_rows(MergedRows &scatter, std::uint64_t most,
                                       std::uint64_t &passed, std::optional<Refusal> &refused);
    [[nodiscard]] Task<bool> make_room();
    void answer_scatter_end(const std::optional<Refusal> &notice, std::uint64_t rows);
    void begin_listening();
    void stirred_while_scattering();
    [[nodiscard]] bool may_scatter(const sql::Facts &facts) const;
    [[nodiscard]] bool block_reads_committed() const;
    [[nodiscard]] std::string scatter_prologue() const;
    [[nodiscard]] Refusal refusal_here(Refusal refusal) const;
    [[nodiscard]] const std::string *session_value(std::string_view name) const;

    void completed(const Owed &owed, std::string_view tag) override;
    void described(const Owed &owed, std::string_view columns) override;
    void dropped(const Owed &owed, bool at_fault) override;
    bool status_changed(std::string_view name, std::string_view value, Owed::To to) override;
    bool error_arrived(const wire::ErrorFields &error, Owed::To to, Buffer &out) override;

    PgShared &shared_;
    Worker &worker_;
    std::unique_ptr<Transport> transport_;
    Buffer in_;
    Buffer out_;
    Event wake_;
    Event gave_up_;
    std::unique_ptr<Login> login_;  ///< until greeted
    std::string backend_login_;
    PgShared::CancelKey key_;

    std::shared_ptr<const LoginDefaults> defaults_;
    Parameters startup_;  ///< what RESET goes back to
    Parameters parameters_;
    std::shared_ptr<const SearchPath> path_;
    /// ParameterStatus values the client knows, where they are not those it started with.
    std::vector<std::pair<const TrackedParameter *, std::string>> told_;
    std::unique_ptr<Block> block_;
    std::unique_ptr<Extended> extended_;
    std::unique_ptr<Exchange> exchange_;  ///< null while it rests
    std::unique_ptr<Resend> resend_;      ///< the same
    std::unique_ptr<Refused> refused_;    ///< by a shard, and neither told nor overcome yet
    /// Of the statement or round in hand, outside a transaction block; null between two of them.
    std::shared_ptr<const Routes> request_routes_;
    Millis patience_ = 0;     ///< until when what is in hand waits for routes; 0: it has not begun
    Millis retry_delay_ = 0;  ///< before a fence is tried again
    std::vector<Note> notes_;
    std::vector<std::shared_ptr<const sql::Facts>> commands_;  ///< of the Query under way
    std::size_t command_ = 0;
    std::size_t charged_ = 0;  ///< of in_, in the worker's budget

    Lease lease_;
    ShardIndex shard_ = 0;
    std::optional<ShardIndex> any_shard_;  ///< of this route version's shards; see lend_any()
    Hold hold_ = Hold::none;
    Transaction transaction_ = Transaction::none;
    Effect effect_ = Effect::read;
    bool user_code_ = false;     ///< the lease may have run functions of users
    bool timed_out_ = false;     ///< the statement under way ran out of its time
    bool cancelled_ = false;     ///< a cancel was sent to the backend in use: never lent again
    bool waiting_ = false;       ///< in a pool's queue, or for the shards of a scatter
    bool scattering_ = false;    ///< the latter: what the client sends meanwhile is read
    bool scatter_open_ = false;  ///< a portal's, described and not executed yet
    bool stale_plans_ = false;   ///< the backend in use has plans of a table that has changed
    bool last_failed_ = false;   ///< a forwarded control statement was answered by an error
    bool skipping_ = false;      ///< up to the next Sync, after an error
    bool round_open_ = false;    ///< messages since the last Sync
    bool flush_wanted_ = false;  ///< the client waits for answers in the middle of a round
    bool patience_is_the_sessions_ = false;  ///< its statement_timeout ends it, not the router's
    bool patience_spent_ = false;  ///< it was sent again after that time, which happens once
    bool in_force_ = false;        ///< nothing of it runs under a version that is announced
    bool gone_ = false;            ///< the client has closed its end
    bool closing_ = false;         ///< the connection ends after what is in out_
    bool may_read_ahead_ = true;   ///< false while a view into in_ is in use
    bool utf8_ = true;
    bool hold_status_ = false;           ///< status changes are not told to the client for now
    std::optional<Code> round_refusal_;  ///< why the router itself failed the round
    std::unique_ptr<Refusal> lost_;      ///< why the pinned backend was lost, not yet told
};

/// A number for the types of a RowDescription's columns; never 0. Types made by users count as one.
[[nodiscard]] std::uint64_t result_fingerprint(std::string_view columns);

/// For a name no statement was prepared under.
[[nodiscard]] Refusal no_such_statement(std::string_view name);

/// R37 for a text longer than pg.max_statement.
[[nodiscard]] Refusal statement_too_long(std::size_t size, std::size_t most);

/// Accepts a client of the PostgreSQL listener: logs it in and serves it, carries out its cancel
/// request, or tells it why not.
void accept_pg_client(PgShared &shared, UniqueFd socket);

}  // namespace interlock
