// Settings of `interlock serve`: one plain struct, filled from the configuration file and flags.
//
// Durations are in milliseconds, sizes in bytes. Defaults are here and nowhere else. Those marked
// (restart) are read once; the others take effect on SIGHUP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace interlock {

struct Settings {
    // [catalog]
    std::string catalog_conninfo;              ///< libpq connection string (restart)
    std::int64_t catalog_poll_interval = 200;  ///< how often the version is asked for
    std::int64_t catalog_timeout = 5000;       ///< one catalog round trip, connecting included

    // [line]
    std::string line_listen =
        "127.0.0.1:47210";               ///< HOST:PORT of the line listener; empty: none (restart)
    std::size_t max_clients = 4000;      ///< further clients are told why and closed
    std::size_t max_line = 1 << 20;      ///< a longer request line is R02
    std::size_t max_parameters = 65535;  ///< PostgreSQL's own bound per statement
    std::int64_t line_timeout = 30000;   ///< to finish a line once begun
    std::int64_t write_timeout = 30000;  ///< to take what is written; a slower client is closed
    std::int64_t idle_transaction_timeout =
        600000;  ///< an idle transaction is rolled back, client closed

    // [pg]
    std::string pg_listen;  ///< HOST:PORT of the PostgreSQL listener; empty: none (restart)
    std::string pg_auth = "scram-sha-256";     ///< scram-sha-256, cert or trust
    std::string pg_auth_file;                  ///< users and verifiers; empty: the catalog has them
    std::string pg_tls = "disable";            ///< disable, allow or require
    std::string pg_tls_cert_file;              ///< certificate, with its chain (PEM)
    std::string pg_tls_key_file;               ///< its private key (PEM)
    std::string pg_tls_ca_file;                ///< authorities of client certificates (PEM)
    std::string pg_database;                   ///< the database clients name; empty: any name
    std::size_t pg_max_clients = 10000;        ///< further clients are told why and closed
    std::int64_t pg_login_timeout = 60000;     ///< from accepting to AuthenticationOk
    std::size_t pg_max_statement = 256 << 10;  ///< a statement's text without its literals
    std::string pg_commit_in_failed = "rollback";  ///< COMMIT in a failed block: rollback or error
    std::size_t pg_max_packet = 16 << 20;          ///< a message kept in memory: Bind and its like
    std::int64_t pg_write_timeout = 30000;         ///< to take what is written
    std::int64_t pg_idle_transaction_timeout =
        600000;                             ///< an idle transaction is rolled back, client closed
    std::size_t pg_max_prepared = 1000;     ///< prepared statements a client may hold
    std::size_t pg_backend_prepared = 200;  ///< prepared statements kept on one backend

    // [backend]
    std::string backend_options;  ///< appended to each shard's conninfo, e.g. user=app (restart)

    // [pool]  (per shard)
    std::size_t pool_size = 4;               ///< connections at most
    std::int64_t acquire_timeout = 5000;     ///< waiting for a connection, then R33
    std::size_t max_waiting = 4000;          ///< waiters at most, then R34
    std::int64_t idle_check = 500;           ///< idle longer than this: validated before lending
    std::int64_t max_lifetime = 3600000;     ///< older connections are replaced (less up to 10 %)
    std::int64_t idle_timeout = 600000;      ///< unused ones are closed
    std::int64_t connect_timeout = 5000;     ///< one connection attempt, greeting included
    std::int64_t statement_timeout = 60000;  ///< one statement; then cancelled, R36

    // [routes]  (while buckets change their shard)
    std::int64_t routes_wait = 5000;  ///< a statement waits so long for its bucket's new shard

    // [scatter]  (statements that all shards answer together)
    std::size_t scatter_max_fan_out = 64;  ///< shards of one statement
    std::size_t scatter_max_rows = 10000;  ///< rows fetched from each shard: a page, LIMIT + OFFSET
    std::size_t scatter_max_groups = 10000;  ///< groups of an aggregate
    std::int64_t scatter_timeout =
        5000;  ///< for all shards together; the client's time not counted

    // [limits]
    std::size_t max_result_bytes = 4 << 20;  ///< an answer in lines; more is R37
    /// requests begun and answers not yet taken, over all clients; more is R37, R34 or 53200
    std::size_t max_buffered_bytes = 256 << 20;
    std::int64_t shutdown_timeout = 30000;  ///< SIGTERM: transactions get this long to finish

    // [log]
    std::string log_level = "info";  ///< error, warning, info or debug
};

}  // namespace interlock
