// Moving buckets from one shard to another: what is asked for, what is recorded, the sessions of a
// move, and whom it tells how it goes on. Shared by the mover (move_*.cpp), the command and the
// checks that come first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/control.h"
#include "route/route_table.h"

namespace interlock {

/// When the two sides are compared: see MoveRequest::verify.
enum class MoveVerify : std::uint8_t { automatic, before, after };

/// A move as it is asked for. Times in milliseconds unless they say otherwise.
struct MoveRequest {
    std::string catalog;  ///< connection string of the catalog

    /// The move: one that is under way (`id`), or these buckets. An id may be given by its first
    /// characters (at least four); with it, what follows may be left empty.
    std::string id;
    std::string keyspace;
    std::vector<std::int32_t> buckets;  ///< sorted, each once
    std::string from;                   ///< empty: whoever owns them
    std::string to;

    std::int64_t max_pause = 3000;  ///< from the announcement to the decision, at most
    std::int64_t grace = 200;       ///< transactions that only read are waited for this long
    std::int64_t rate = 0;          ///< rows a second to copy, at most; 0: as many as it can
    int tries = 10;                 ///< to fence, before the move is given up without harm
    bool end_sessions = false;      ///< those that hold the fence up are ended

    /// before: the digests of both sides must be equal before the decision, writers wait meanwhile.
    /// after: of snapshots taken at the decision, compared when the bucket is open again.
    /// automatic: before, if that takes less than a third of max_pause.
    MoveVerify verify = MoveVerify::automatic;

    std::int64_t keep_source = 0;  ///< seconds to keep the rows at the source; -1: for ever; 0: no
    std::string source_conninfo;  ///< the source as the target's server reaches it; empty: as we do

    std::int64_t query_timeout = 5000;      ///< connecting, or a statement that reads little
    std::int64_t lock_timeout = 5000;       ///< a lock on a table
    std::int64_t scan_timeout = 3'600'000;  ///< a statement that may read whole tables
};

/// A move as the catalog has it (view interlock.moves).
struct Move {
    std::string id;
    std::string keyspace;
    std::vector<std::int32_t> buckets;
    std::string from, to;
    std::string step;                ///< the last that was recorded; see move_steps.h
    std::int32_t route_version = 0;  ///< reserved or published; 0: none
    bool announced = false;
    bool finished = false;
    std::string outcome;                ///< done, aborted; empty: under way
    std::string error;                  ///< what stopped it last; empty: nothing
    std::string progress;               ///< JSON; empty: none
    std::string options;                ///< JSON, as begin_move() was given them
    std::string began, changed, ended;  ///< UTC; empty: not yet
};

/// Of finished and unfinished moves, newest first. Throws ControlError.
[[nodiscard]] std::vector<Move> read_moves(ControlConnection &catalog, bool unfinished_only);

/// That move is over.
class MoveEnded : public ControlError {
  public:
    explicit MoveEnded(const Move &move);

    std::string id, outcome;
};

/// Of the unfinished moves the one that is asked for: by its id, or by keyspace, buckets and
/// target. nullopt: there is none. Throws MoveEnded, or ControlError if an id is ambiguous or
/// unknown.
[[nodiscard]] std::optional<Move> find_move(ControlConnection &catalog, const MoveRequest &request);

/// A table of the keyspace at the source, or an inheritance child of one.
struct MovedTable {
    std::string name;     ///< schema-qualified, quoted where PostgreSQL needs it
    std::string key;      ///< its key column, quoted likewise
    std::string columns;  ///< those that can be written (not the generated ones), "a, "b c""
    bool only = false;    ///< children are tables of their own in this list
    std::int64_t estimated_rows = 0;  ///< of all buckets, by the statistics; -1: there are none
    std::int64_t bytes = 0;           ///< of all buckets, on disk, indexes included
};

/// Sessions on catalog, source and target. Those on the shards work under no route version: they
/// are refused nothing for the shard's floor.
class MoveSession {
  public:
    /// Connects all three, proves who they are (as open_member() does), and finds out who owns the
    /// buckets if the request does not say. Throws ControlError; its message names the member.
    explicit MoveSession(const MoveRequest &request);

    /// Of a move that is recorded: its buckets, source and target count, not the request's.
    MoveSession(const MoveRequest &request, const Move &move);

    [[nodiscard]] ControlConnection &catalog() { return *catalog_; }
    [[nodiscard]] ControlConnection &source() { return *source_; }
    [[nodiscard]] ControlConnection &target() { return *target_; }

    [[nodiscard]] const RouteTable &routes() const { return *routes_; }
    [[nodiscard]] const Keyspace &keyspace() const { return routes_->keyspaces[keyspace_]; }
    [[nodiscard]] std::uint16_t keyspace_index() const { return keyspace_; }
    [[nodiscard]] const std::vector<std::int32_t> &buckets() const { return buckets_; }
    [[nodiscard]] const Shard &from() const { return routes_->shards[from_]; }
    [[nodiscard]] const Shard &to() const { return routes_->shards[to_]; }
    [[nodiscard]] ShardIndex from_index() const { return from_; }
    [[nodiscard]] ShardIndex to_index() const { return to_; }

    /// Further sessions of the same kind, with another limit for a statement in ms.
    [[nodiscard]] std::unique_ptr<ControlConnection> open_source(std::int64_t timeout) const;
    [[nodiscard]] std::unique_ptr<ControlConnection> open_target(std::int64_t timeout) const;
    /// Connects anew what is broken. Throws ControlError.
    void reconnect();

    /// Tables of the keyspace as the source guards them, in order of their names.
    [[nodiscard]] std::vector<MovedTable> tables();

    /// How the target's server connects to the source, for CREATE SUBSCRIPTION: the request's, or
    /// the catalog's with the user and database that we are there. May hold secrets.
    [[nodiscard]] std::string subscriber_conninfo();

  private:
    void connect_catalog();
    void find_members(const std::string &keyspace, const std::string &from, const std::string &to);
    void connect_shards();
    [[nodiscard]] std::unique_ptr<ControlConnection> open_shard(ShardIndex shard,
                                                                std::int64_t timeout) const;

    MoveRequest request_;
    std::shared_ptr<const RouteTable> routes_;
    std::uint16_t keyspace_ = 0;
    ShardIndex from_ = 0, to_ = 0;
    std::vector<std::int32_t> buckets_;
    std::unique_ptr<ControlConnection> catalog_, source_, target_;
};

/// A transaction that holds a fence up.
struct MoveHolder {
    std::int32_t pid = 0;  ///< 0: a prepared transaction
    std::string user, application, state;
    std::string since;       ///< when its transaction began, UTC
    std::string gid;         ///< of a prepared transaction
    std::int64_t began = 0;  ///< the same as `since`, to the microsecond

    [[nodiscard]] std::string described() const;
};

/// Something that stands in a move's way, or may become a surprise.
struct MoveFinding {
    enum class Severity : std::uint8_t { refuse, warn };
    Severity severity = Severity::refuse;
    std::string what;
    std::string detail;
    std::string mend;  ///< the statement or configuration line that mends it
};

/// Is told how a move goes on. Called by the thread that runs it.
class MoveObserver {
  public:
    virtual ~MoveObserver() = default;
    virtual void began(const Move & /*move*/, bool /*resumed*/) {}
    /// A step was recorded.
    virtual void step(const std::string & /*name*/) {}
    /// What the checks found, before anything is recorded. A refusal ends the move.
    virtual void found(const std::vector<MoveFinding> & /*findings*/) {}
    /// estimated_rows: -1: nobody knows.
    virtual void copying(const std::string & /*table*/, std::int64_t /*rows*/,
                         std::int64_t /*bytes*/, std::int64_t /*estimated_rows*/) {}
    virtual void following(std::int64_t /*lag_bytes*/, std::int64_t /*bytes_a_second*/) {}
    virtual void holding_up(const std::vector<MoveHolder> & /*holders*/) {}
    /// The target owns the buckets and it is published; how long their writers had to wait (-1: it
    /// is not known).
    virtual void switched(std::int32_t /*route_version*/, std::int64_t /*pause_ms*/) {}
    virtual void verified(std::int64_t /*rows*/) {}
    virtual void cleaning(std::int64_t /*rows*/) {}
    virtual void note(const std::string & /*text*/) {}
};

/// How a run ended; the exit status of `interlock move`.
enum class MoveResult : int { done = 0, failed = 1, given_up = 3 };

/// Carries the move out to its end, from where it stands: a new one is recorded first. given_up: it
/// could not be fenced in time, nothing has changed for anyone, and it can be gone on with. Throws
/// ControlError for whatever stops it; what was recorded says where.
MoveResult run_move(const MoveRequest &request, MoveObserver &observer);

/// Takes a move back that is not decided, and removes what was made for it. Throws ControlError if
/// it is decided (then only run_move() ends it).
MoveResult abort_move(const MoveRequest &request, MoveObserver &observer);

/// Cleans up after moves that kept the source's rows, those whose time has come; with an id in the
/// request that one, its time come or not. Returns how many.
std::size_t clean_moves(const MoveRequest &request, MoveObserver &observer);

/// For whoever is to publish: drives each move that has a number reserved to its publication if it
/// is decided, and gives its fence up if it is not. A mover that is at work is waited for. The
/// connection must not be in a transaction. Throws ControlError.
void finish_reserved_moves(const MoveRequest &access, MoveObserver &observer);

}  // namespace interlock
