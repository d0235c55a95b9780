// Control connections: what the tools and the catalog watcher talk through.
//
// A thin owner of a libpq connection. Errors are exceptions that keep what PostgreSQL said; every
// query has a deadline, kept by the server (statement_timeout) and, should the server not answer at
// all, by us; values travel as typed parameters, never spliced into SQL.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <libpq-fe.h>

namespace interlock {

/// An error of a control connection: the server's, libpq's, or a deadline that passed.
class ControlError : public std::runtime_error {
  public:
    ControlError(std::string sqlstate_, const std::string &message, std::string detail_ = {},
                 std::string hint_ = {}, std::string context_ = {})
        : std::runtime_error(message), sqlstate(std::move(sqlstate_)), detail(std::move(detail_)),
          hint(std::move(hint_)), context(std::move(context_)) {}

    std::string sqlstate;  ///< 08006 when the connection is gone, 57014 when a deadline passed
    std::string detail;
    std::string hint;
    std::string context;
};

/// A parameter with its type. A null pointer of a text is SQL NULL.
struct Param {
    Oid type;
    std::optional<std::string> text;

    static Param of_text(std::string_view value);
    static Param of_name(std::string_view value);
    static Param of_int4(std::int32_t value);
    static Param of_int8(std::int64_t value);
    static Param of_oid(std::uint32_t value);
    static Param of_bool(bool value);
    static Param of_uuid(std::string_view value);
    static Param of_int4_array(const std::vector<std::int32_t> &values);
    static Param of_oid_array(const std::vector<std::uint32_t> &values);
    static Param of_bool_array(const std::vector<bool> &values);
    static Param of_text_array(const std::vector<std::string> &values);
    static Param null_text();
};

/// The rows of one answer. Columns are taken by position.
class Rows {
  public:
    explicit Rows(PGresult *result) : result_(result) {}

    int size() const { return PQntuples(result_.get()); }
    bool empty() const { return size() == 0; }
    /// The command tag: "COMMIT", "SELECT 2".
    std::string_view tag() const;
    bool is_null(int row, int column) const { return PQgetisnull(result_.get(), row, column) != 0; }
    /// Empty for NULL.
    std::string text(int row, int column) const;
    std::string_view view(int row, int column) const;
    bool boolean(int row, int column) const { return view(row, column) == "t"; }
    /// Throws ControlError if the value is NULL or no number of that size.
    std::int64_t int64(int row, int column) const;
    std::int32_t int32(int row, int column) const;
    std::uint32_t oid(int row, int column) const;

  private:
    struct Clear {
        void operator()(PGresult *result) const { PQclear(result); }
    };
    std::unique_ptr<PGresult, Clear> result_;
};

class ControlConnection {
  public:
    /// Connects within `timeout` ms. The session reads in UTF-8 under search_path pg_catalog, is
    /// not subject to the login's own defaults for read-only, time-outs and row security, and its
    /// server process notices when we are gone. Throws ControlError.
    ControlConnection(const std::string &conninfo, const std::string &application_name,
                      std::int64_t timeout);

    ControlConnection(const ControlConnection &) = delete;
    ControlConnection &operator=(const ControlConnection &) = delete;

    /// Runs one statement with the usual timeout of this connection, or with `timeout` ms.
    Rows query(const std::string &sql, const std::vector<Param> &params = {});
    Rows query_within(std::int64_t timeout, const std::string &sql,
                      const std::vector<Param> &params = {});

    /// A statement without parameters whose rows do not matter: BEGIN, SET ...
    void execute(const std::string &sql) { (void)query(sql); }

    /// Ends the transaction in progress, if any, and gives up silently if the connection is gone.
    void rollback() noexcept;

    /// Takes back what was done since a savepoint, also after an error; gives up as rollback().
    void rollback_to(const std::string &savepoint) noexcept;

    /// Waits at most `timeout` ms for a notification of a channel listened to, or until the
    /// descriptor `interrupt` is readable. True if one or more came (all are taken). Throws
    /// ControlError when the connection is lost.
    bool wait_notification(std::int64_t timeout, int interrupt);

    bool broken() const { return PQstatus(connection_.get()) != CONNECTION_OK; }
    int backend_pid() const { return PQbackendPID(connection_.get()); }
    int server_version() const { return PQserverVersion(connection_.get()); }

    /// The user and database of the session, as libpq has resolved them.
    std::string user() const { return PQuser(connection_.get()); }
    std::string database() const { return PQdb(connection_.get()); }

  private:
    friend class CopyStream;  ///< control_copy.h
    friend std::int64_t copy_rows(ControlConnection &from, const std::string &copy_out,
                                  ControlConnection &to, const std::string &copy_in,
                                  std::int64_t silence, std::int64_t commit_every,
                                  const std::function<void(std::int64_t, std::int64_t)> &progress);

    struct Finish {
        void operator()(PGconn *connection) const { PQfinish(connection); }
    };

    static ControlError error_of(const PGresult *result);
    void prepare_session();
    void take_back(const std::string &sql) noexcept;
    Rows run(std::int64_t timeout, const std::string &sql, const std::vector<Param> &params);
    void wait(bool for_write, std::int64_t deadline);
    [[noreturn]] void lost();

    std::unique_ptr<PGconn, Finish> connection_;
    std::int64_t timeout_;
    std::int64_t server_timeout_ = -1;  ///< statement_timeout as the server has it; -1: not known
};

/// A transaction that is rolled back unless committed.
class ControlTransaction {
  public:
    /// `mode` is what follows BEGIN, for example "ISOLATION LEVEL REPEATABLE READ READ ONLY".
    explicit ControlTransaction(ControlConnection &connection, const std::string &mode = {});
    ~ControlTransaction();
    ControlTransaction(const ControlTransaction &) = delete;
    ControlTransaction &operator=(const ControlTransaction &) = delete;

    void commit();

  private:
    ControlConnection &connection_;
    bool open_ = true;
};

}  // namespace interlock
