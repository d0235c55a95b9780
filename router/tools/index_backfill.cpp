#include "tools/index_backfill.h"

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "tools/index_batch.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int most_attempts = 40;  // with the pauses between them: some three minutes
constexpr std::int64_t backoff_first = 100;
constexpr std::int64_t backoff_cap = 5000;

ShardIndex member_named(const IndexModel &model, const std::string &name) {
    for (const ShardIndex shard : model.shards)
        if (model.member(shard).name == name) return shard;
    throw ControlError("42704", "\"" + name + "\" is no shard of the cluster any more");
}

std::string quoted_literal(const std::string &text) {
    std::string out = "'";
    for (const char c : text) {
        if (c == '\'') out += '\'';
        out += c;
    }
    return out + "'";
}

}  // namespace

steady_clock::time_point Throttle::reserve(std::size_t rows) {
    const std::lock_guard lock(mutex_);
    const steady_clock::time_point now = steady_clock::now();
    if (rate_ == 0) return now;
    next_ = std::max(now, next_) +
            std::chrono::microseconds(static_cast<std::int64_t>(rows) * 1'000'000 / rate_);
    return next_;
}

void ShardBackfill::wait_until(steady_clock::time_point time) {
    while (!counters_.stop && steady_clock::now() < time)
        std::this_thread::sleep_until(std::min(time, steady_clock::now() + milliseconds(50)));
}

bool ShardBackfill::run() {
    std::int64_t backoff = backoff_first;
    int attempts = 0;
    while (!counters_.stop) {
        try {
            if (!shard_) connect();
            if (finished_ || step()) return true;
            attempts = 0;
            backoff = backoff_first;
        } catch (const ControlError &error) {
            // IL102: the shard has given buckets away since the routes were read. A broken session
            // on the index database held the tombstones: what was read under it must not be
            // entered.
            disconnect();
            if (is_data_error(error) || ++attempts == most_attempts)
                throw ControlError(error.sqlstate,
                                   "backfill of index " + index_ + " from shard " + shard_name_ +
                                       ": " + error.what(),
                                   error.detail, error.hint, error.context);
            log_warning("backfill of index %s, shard %s: %s; trying again", index_.c_str(),
                        shard_name_.c_str(), error.what());
            wait_until(steady_clock::now() + milliseconds(backoff));
            backoff = std::min(backoff * 2, backoff_cap);
        }
    }
    return false;
}

void ShardBackfill::disconnect() {
    shard_.reset();
    database_.reset();
}

void ShardBackfill::connect() {
    const std::shared_ptr<const RouteTable> routes = access_.routes();
    const GlobalIndex &declared = require_published(*routes, index_);
    database_ = open_member(*routes, declared.database, "interlock index", access_.timeout);
    model_.emplace(read_index_model(routes, index_, *database_));
    // Before anything is read: see the head of index_backfill.h.
    database_->query("SELECT interlock.index_hold_tombstones($1)", {Param::of_text(index_)});
    shard_ = open_member(*routes, member_named(*model_, shard_name_), "interlock index",
                         access_.timeout);
    begin();
}

/// What is read is made good by the changes that follow, so they must be recorded by now.
void ShardBackfill::require_recording() {
    const Rows recorded = shard_->query(
        "SELECT COALESCE(t.columns OPERATOR(pg_catalog.||) t.key OPERATOR(pg_catalog.@>) $3, "
        "true) FROM interlock.outbox_table t "
        "WHERE t.relid OPERATOR(pg_catalog.=) $1::pg_catalog.regclass AND t.stream "
        "OPERATOR(pg_catalog.=) $2",
        {Param::of_text(model_->table->sql_name), Param::of_text(index_),
         Param::of_text_array(model_->column_names())});
    if (!recorded.empty() && recorded.boolean(0, 0)) return;
    throw ControlError("42704",
                       std::string(recorded.empty() ? "changes" : "not all columns") +
                           " of table " + model_->table->sql_name + " are " +
                           (recorded.empty() ? "not " : "") + "recorded for index \"" + index_ +
                           "\"",
                       {}, "Run \"interlock apply\" first.");
}

void ShardBackfill::begin() {
    const std::string table = model_->table->sql_name;
    // Comparing keys takes the operators of their types, which may be in other schemas.
    shard_->query(
        "SELECT pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', 'pg_catalog', "
        "  'pg_temp', pg_catalog.string_agg(DISTINCT pg_catalog.quote_ident(n.nspname), ', ')), "
        "  false) "
        "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
        "  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace "
        "WHERE a.attrelid = $1::pg_catalog.regclass AND a.attnum > 0 AND NOT a.attisdropped "
        "  AND n.nspname NOT IN ('pg_catalog', 'pg_temp')",
        {Param::of_text(table)});

    require_recording();
    const std::string order = model_->key_list("t.");
    const std::string start =
        "SELECT interlock.row_values(t, $2), interlock.row_values(t, $3) FROM " + table +
        " AS t WHERE interlock.owned(" + quoted_literal(model_->keyspace().name) + ", t." +
        model_->shard_key_sql() + ")";
    const std::string end = " ORDER BY " + order + " LIMIT $4";
    // A comparison with a sub-select, not a join: it reads the index from that key on.
    first_query_ = start + " AND $1::pg_catalog.text IS NULL" + end;
    next_query_ = start + " AND (" + order + ") > (SELECT " + model_->key_list("p.") +
                  " FROM pg_catalog.jsonb_populate_record(NULL::" + table +
                  ", $1::pg_catalog.jsonb) AS p)" + end;

    const std::int64_t estimate =
        shard_
            ->query("SELECT COALESCE(pg_catalog.sum(GREATEST(c.reltuples, 0))::bigint, 0) "
                    "FROM pg_catalog.pg_partition_tree($1::pg_catalog.regclass) p "
                    "JOIN pg_catalog.pg_class c ON c.oid = p.relid WHERE p.isleaf",
                    {Param::of_text(table)})
            .int64(0, 0);
    const Rows state = database_->query(
        "SELECT b.position, b.rows, b.finished IS NOT NULL "
        "FROM interlock.index_backfill_begin($1, $2, $3, $4, $5) b",
        {Param::of_text(index_), Param::of_text(shard_name_), Param::of_int8(estimate),
         Param::of_int4(model_->routes->version), Param::of_bool(restart_)});
    restart_ = false;  // once is enough, however often the connection breaks
    position_.reset();
    if (!state.is_null(0, 0)) position_ = state.text(0, 0);
    finished_ = state.boolean(0, 2);
    if (!counted_) {
        counters_.before += state.int64(0, 1);
        counters_.estimate += std::max(estimate, state.int64(0, 1));
        counted_ = true;
    }
}

/// One chunk; whether it was the last.
bool ShardBackfill::step() {
    std::vector<std::string> key;
    for (const std::size_t position : model_->key)
        key.push_back(model_->columns[position].name);
    Param after = Param::null_text();
    after.text = position_;
    const Rows rows = shard_->query(position_ ? next_query_ : first_query_,
                                    {after, Param::of_text_array(model_->column_names()),
                                     Param::of_text_array(key), Param::of_int4(chunk_)});
    std::string json = "[";
    for (int row = 0; row < rows.size(); ++row) {
        if (row > 0) json += ',';
        json += rows.view(row, 0);
    }
    json += ']';
    Param last = Param::null_text();
    const bool more = rows.size() == chunk_;
    if (!rows.empty()) last.text = rows.text(rows.size() - 1, 1);
    const auto enter = [&](const std::string &entries, const Param &position) {
        Param behind = Param::null_text();
        behind.text = position_;
        return database_
            ->query("SELECT interlock.index_backfill_step($1, $2, $3::pg_catalog.jsonb, "
                    "$4::pg_catalog.jsonb, $5::pg_catalog.jsonb)",
                    {Param::of_text(index_), Param::of_text(shard_name_), Param::of_text(entries),
                     position, behind})
            .int32(0, 0);
    };
    if (!rows.empty()) {
        counters_.entered += enter(json, last);
        position_ = last.text;
        counters_.read += rows.size();
    }
    if (!more) {
        (void)enter("[]", Param::null_text());
        return true;
    }
    wait_until(throttle_.reserve(static_cast<std::size_t>(rows.size())));
    return false;
}

}  // namespace interlock
