// What else a database holds beside the declared tables and functions, as far as it could change
// what a statement means or does there.
//
// The router reads names as those of the catalog's tables and of PostgreSQL's own functions and
// operators. A shard may have others of the same name, which a search_path would find; and a
// declared table may have triggers, defaults or policies that run code of users. A backend asks for
// both when it is greeted (and lives for pool.max_lifetime, so what it knows is not older). What a
// statement over all shards is checked against is asked with it, and again when it does not fit:
// the keysets, the unique keys of declared tables, and how texts are sorted.
#pragma once

#include "route/route_table.h"
#include "sql/facts.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace interlock {

/// What a route table declares, and the query that asks for its surroundings. Shared by all
/// backends; one that was asked about another value is out of date.
struct Declared {
    struct Name {
        std::string schema;
        std::string name;
        auto operator<=>(const Name &) const = default;
    };
    std::vector<Name> tables;     ///< sorted
    std::vector<Name> functions;  ///< sorted
    std::string query;            ///< one statement; rows of (kind, schema, name, detail)
    std::string keysets_query;    ///< the part of it that tells of keysets, keys and collations

    [[nodiscard]] bool has_table(std::string_view schema, std::string_view name) const;

    /// `before` again if the table declares the same as it.
    [[nodiscard]] static std::shared_ptr<const Declared>
    of(const RouteTable &table, const std::shared_ptr<const Declared> &before);
};

/// A keyset that is declared on a shard.
struct KnownKeyset {
    std::string name;
    std::string digest;  ///< hex; equal where the declarations are
    std::uint32_t max_page = 0;
    std::uint32_t default_page = 0;
    bool scatter = false;  ///< its rows can be merged with those of other shards
    std::string table;     ///< for messages
};

/// The surroundings one backend was told of.
class Surroundings {
  public:
    explicit Surroundings(std::shared_ptr<const Declared> declared)
        : declared_(std::move(declared)) {}

    /// Takes a row of the query. False if it is not one.
    [[nodiscard]] bool take(const std::vector<std::string> &row);

    [[nodiscard]] const std::shared_ptr<const Declared> &declared() const { return declared_; }

    /// Nothing that could change a statement's meaning, and no code of users: the normal case.
    [[nodiscard]] bool quiet() const { return !ambiguous() && user_code_.empty(); }

    /// Why a name that the statement leaves unqualified could mean something else here, under a
    /// search_path of these schemas in order ("$user" replaced, pg_catalog only where it is named);
    /// nothing if none could.
    [[nodiscard]] std::optional<std::string>
    conflict(const sql::Facts &facts, const std::vector<std::string> &search_path) const;

    /// Whether a statement on the table may run code that users wrote: triggers, rules, defaults,
    /// constraints, policies, index expressions; its own or those of what foreign keys reach from
    /// it. What such code leaves in the session must be cleaned away.
    [[nodiscard]] bool runs_user_code(const Table &table) const {
        return !user_code_.empty() && in_user_code(table.schema, table.name);
    }

    /// Null: the shard has none of this name.
    [[nodiscard]] const KnownKeyset *find_keyset(std::string_view name) const;
    /// Whether these columns of the table hold all of a valid, immediate unique key over NOT NULL
    /// columns: rows can then not be equal in them.
    [[nodiscard]] bool unique_within(const Table &table,
                                     const std::vector<std::string> &columns) const;
    /// Two shards with the same fingerprint sort texts and enums alike, under whatever collation.
    [[nodiscard]] const std::string &collations() const { return collations_; }
    /// Before the answer to `keysets_query` is taken.
    void forget_keysets();

  private:
    struct UniqueKey {
        std::string schema;
        std::string table;
        std::vector<std::string> columns;
    };
    [[nodiscard]] bool take_keyset(const std::string &name, std::string_view detail);
    struct Other {
        std::string schema;
        std::string name;
        std::string detail;  ///< the whole name as PostgreSQL writes it
    };
    [[nodiscard]] bool ambiguous() const {
        return !relations_.empty() || !functions_.empty() || !operators_.empty();
    }
    [[nodiscard]] bool in_user_code(std::string_view schema, std::string_view name) const;
    [[nodiscard]] static const Other *find(const std::vector<Other> &others, std::string_view name,
                                           const std::vector<std::string> &search_path);

    std::shared_ptr<const Declared> declared_;
    std::vector<Other> relations_;
    std::vector<Other> functions_;
    std::vector<Other> operators_;
    std::vector<Declared::Name> user_code_;
    std::vector<KnownKeyset> keysets_;
    std::vector<UniqueKey> unique_keys_;
    std::string collations_;
};

}  // namespace interlock
