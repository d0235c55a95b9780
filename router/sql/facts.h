// What the analysis of the `single-shard` profile found out about one statement: the facts a plan
// is made from.
//
// Facts belong to a shape: they never depend on the value of a literal, only on its kind. Where a
// value matters (a shard key, the value of a SET) they say which literal or parameter holds it.
#pragma once

#include "route/route_table.h"
#include "sql/scatter.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace interlock::sql {

enum class Action : std::uint8_t {
    empty,            ///< no statement at all
    query,            ///< SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES, TABLE, EXPLAIN of one
    copy_out,         ///< COPY (query) TO STDOUT
    declare_cursor,   ///< DECLARE name CURSOR FOR query, without HOLD
    cursor,           ///< FETCH, MOVE, CLOSE: runs where the transaction is pinned
    begin,            ///< BEGIN, START TRANSACTION; `text` holds it as written
    commit,           ///< COMMIT, END; `chain`
    rollback,         ///< ROLLBACK, ABORT; `chain`
    savepoint,        ///< `name`
    release,          ///< `name`
    rollback_to,      ///< `name`
    set,              ///< SET [SESSION] name = value; `name`, `value`; SET TIME ZONE and the like
                      ///< too, under the parameter's own name
    set_local,        ///< SET LOCAL name = value
    set_transaction,  ///< SET TRANSACTION ...: `text` as written
    set_session_characteristics,  ///< `settings`: default_transaction_* names and values
    reset,                        ///< RESET name (or SET name TO DEFAULT); `name`
    reset_all,                    ///< RESET ALL
    show,                         ///< SHOW name, SHOW ALL; `name` ("all")
    discard_all,                  ///< DISCARD ALL
    discard_some,                 ///< DISCARD PLANS | SEQUENCES | TEMP: `name`
    deallocate,                   ///< DEALLOCATE name, or "" for ALL; `name`
    explain_route,                ///< EXPLAIN ROUTE statement: `text` is the statement
};

/// Where a shard key's value comes from.
struct KeySource {
    enum class From : std::uint8_t {
        literal,     ///< literal `index` of the shape
        parameter,   ///< parameter $(index + 1)
        array,       ///< each element of the array in parameter $(index + 1)
        array_text,  ///< each element of the array spelled by literal `index`, as '{1,2}'
        null,        ///< the word NULL
    };
    From from = From::literal;
    bool negative = false;     ///< of a number literal with a minus sign before it
    bool typed = false;        ///< a parameter that must be declared with a type: elsewhere in the
                               ///< statement it could take another one than the key's
    bool assigned = false;     ///< SET key = value: must be the value the key has
    std::uint32_t index = 0;   ///< from 0
    std::uint32_t cast = 0;    ///< OID of the type it is cast to (of an array: its elements'); 0:
                               ///< none, it takes the column's
    std::uint32_t table = 0;   ///< position in RouteTable::tables, whose key it is compared with
    std::uint32_t offset = 0;  ///< bytes from the statement's start, for messages; of the text
                               ///< that was analysed
};

/// A parameter's name and value, as SQL expression text ready to stand after "SET name = ".
struct Assignment {
    std::string name;   ///< folded to lower case
    std::string value;  ///< e.g. 'UTC', 100, a, 'b c'
};

struct Facts {
    Action action = Action::query;
    bool locks = false;   ///< FOR UPDATE / SHARE: locks rows
    bool writes = false;  ///< may change rows (data-modifying CTEs and EXPLAIN ANALYZE included)
    bool returns_rows = false;
    bool user_code = false;             ///< calls functions of users, declared in the catalog
    bool chain = false;                 ///< COMMIT / ROLLBACK AND CHAIN
    bool cacheable = true;              ///< false: the value of a literal was looked at
    std::vector<KeySource> keys;        ///< all must lead to one shard; empty: any shard will do
    std::vector<std::uint32_t> tables;  ///< sharded tables mentioned, positions in the route table

    /// Names that were looked up along the search path: a shard where one of them could mean
    /// something else refuses the statement (server/backend.h, Surroundings).
    std::vector<std::string> relation_names;  ///< of sharded tables
    std::vector<std::string> function_names;
    std::vector<std::string> operator_names;

    /// Not null: no key leads to one shard, all of them answer together.
    std::shared_ptr<const Scatter> scatter;

    std::string name;
    std::string value;
    std::string text;
    std::vector<Assignment> settings;

    /// What the statement did with the keys, for EXPLAIN ROUTE: one line each.
    [[nodiscard]] bool any_shard() const { return keys.empty(); }
    [[nodiscard]] bool transaction_control() const {
        return action >= Action::begin && action <= Action::rollback_to;
    }
};

/// One statement of a text, and where it is.
struct StatementFacts {
    Facts facts;
    std::size_t offset = 0;  ///< bytes
    std::size_t length = 0;
};

}  // namespace interlock::sql
