// What the clients of the PostgreSQL listener share: analysed shapes, statements by text, sets of
// parameters, search paths, cancel keys.
#pragma once

#include "base/result.h"
#include "session/pg_parameters.h"
#include "session/worker.h"
#include "sql/analysis.h"
#include "sql/facts.h"
#include "sql/shape.h"
#include "sql/shape_cache.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace interlock {

class PgClient;

/// A search_path as it is in force, taken apart once.
struct SearchPath {
    std::uint32_t id = 0;  ///< part of the key of what was analysed under it
    std::vector<std::string> schemas;
};

/// A statement of the extended protocol: its text and the parameter types its client declared.
/// Clients that send the same share one, and so do the backends it is prepared on.
struct PgStatement {
    std::uint64_t id = 0;
    std::string text;
    std::vector<std::uint32_t> types;
    std::vector<sql::Literal> literals;  ///< of the text
};

class PgShared {
  public:
    explicit PgShared(Worker &worker) : worker_(worker) {}

    [[nodiscard]] Worker &worker() { return worker_; }
    [[nodiscard]] ParameterSets &parameters() { return parameters_; }

    /// The facts of a text that is one statement; `shape` is the text's. Through the cache.
    [[nodiscard]] Result<std::shared_ptr<const sql::Facts>, Refusal>
    analyse_one(std::string_view text, const sql::Shape &shape, const SearchPath &path,
                const std::shared_ptr<const RouteTable> &table);
    /// The cached facts alone, or null.
    [[nodiscard]] std::shared_ptr<const sql::Facts>
    find(std::string_view text, const sql::Shape &shape, const SearchPath &path,
         const std::shared_ptr<const RouteTable> &table) {
        if (auto known = facts_.find(shape.text, table, path.id)) return known;
        if (auto known = scatters_.find(text, table, path.id)) return known;
        return find_page(text, shape, path, table);
    }
    void keep(std::string_view text, const sql::Shape &shape, const SearchPath &path,
              const std::shared_ptr<const RouteTable> &table,
              std::shared_ptr<const sql::Facts> facts);

    /// The statement of this text and these types, shared with whoever else uses it.
    [[nodiscard]] std::shared_ptr<const PgStatement>
    statement(std::string_view text, std::vector<std::uint32_t> types, const SearchPath &path);
    /// Statements parsed from now on are new ones, whatever their text: prepared afresh everywhere.
    void forget_statements() { statements_.clear(); }
    /// A number for a statement that is not shared.
    [[nodiscard]] std::uint64_t next_id() { return ++last_id_; }

    /// The path a setting of search_path means for a login. A malformed one has no schemas.
    [[nodiscard]] std::shared_ptr<const SearchPath> search_path(std::string_view value,
                                                                std::string_view login);

    // Cancel keys. A key names one client while it is connected.
    struct CancelKey {
        std::uint32_t pid = 0;
        std::uint32_t secret = 0;
    };
    [[nodiscard]] CancelKey add_cancel_key(PgClient *client);
    void remove_cancel_key(CancelKey key);
    /// The client a cancel request is for; null for a wrong key.
    [[nodiscard]] PgClient *find_client(std::uint32_t pid, std::uint32_t secret) const;

    /// Settings of start-up packets that a backend has accepted, by what the packet said.
    std::unordered_map<std::string, Parameters> accepted_startups;

  private:
    [[nodiscard]] std::shared_ptr<const sql::Facts>
    find_page(std::string_view text, const sql::Shape &shape, const SearchPath &path,
              const std::shared_ptr<const RouteTable> &table);

    Worker &worker_;
    ParameterSets parameters_;
    sql::FactsCache facts_;     ///< by shape
    sql::FactsCache scatters_;  ///< by exact text: their facts say what is put where in it
    sql::FactsCache pages_;     ///< of keyset pages with literals, by skeleton
    std::unordered_map<std::string, std::weak_ptr<const PgStatement>> statements_;
    std::unordered_map<std::string, std::shared_ptr<const SearchPath>> paths_;
    std::vector<PgClient *> by_slot_;  ///< the low bits of a key's pid say where; null: free
    std::vector<std::uint32_t> free_slots_;
    std::uint64_t last_id_ = 0;
    std::uint32_t last_path_ = 0;
};

}  // namespace interlock
