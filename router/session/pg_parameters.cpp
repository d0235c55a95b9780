#include "session/pg_parameters.h"

#include <algorithm>
#include <array>
#include <strings.h>

namespace interlock {

namespace {

// Left out on purpose: what changes how text is read (transform_null_equals), who the session is
// (role), what would end pooled connections (idle_session_timeout), and what only superusers may
// set. Reported: the GUC_REPORT parameters of PostgreSQL 15.
constexpr std::array tracked{
    TrackedParameter{"application_name", true},
    TrackedParameter{"client_encoding", true},
    TrackedParameter{"DateStyle", true},
    TrackedParameter{"IntervalStyle", true},
    TrackedParameter{"TimeZone", true},
    TrackedParameter{"default_transaction_read_only", true},
    TrackedParameter{"search_path"},
    TrackedParameter{"statement_timeout"},
    TrackedParameter{"lock_timeout"},
    TrackedParameter{"idle_in_transaction_session_timeout"},
    TrackedParameter{"default_transaction_isolation"},
    TrackedParameter{"default_transaction_deferrable"},
    TrackedParameter{"extra_float_digits"},
    TrackedParameter{"bytea_output"},
    TrackedParameter{"client_min_messages"},
    TrackedParameter{"synchronous_commit"},
    TrackedParameter{"row_security"},
    TrackedParameter{"default_text_search_config"},
    TrackedParameter{"array_nulls"},
    TrackedParameter{"xmlbinary"},
    TrackedParameter{"xmloption"},
    TrackedParameter{"lc_messages"},
    TrackedParameter{"lc_monetary"},
    TrackedParameter{"lc_numeric"},
    TrackedParameter{"lc_time"},
    TrackedParameter{"timezone_abbreviations"},
    TrackedParameter{"escape_string_warning"},
    TrackedParameter{"backslash_quote"},
    TrackedParameter{"quote_all_identifiers"},
    TrackedParameter{"check_function_bodies"},
    TrackedParameter{"gin_fuzzy_search_limit"},
    TrackedParameter{"work_mem"},
    TrackedParameter{"maintenance_work_mem"},
    TrackedParameter{"hash_mem_multiplier"},
    TrackedParameter{"plan_cache_mode"},
    TrackedParameter{"constraint_exclusion"},
    TrackedParameter{"cursor_tuple_fraction"},
    TrackedParameter{"from_collapse_limit"},
    TrackedParameter{"join_collapse_limit"},
    TrackedParameter{"geqo"},
    TrackedParameter{"geqo_threshold"},
    TrackedParameter{"jit"},
    TrackedParameter{"jit_above_cost"},
    TrackedParameter{"jit_inline_above_cost"},
    TrackedParameter{"jit_optimize_above_cost"},
    TrackedParameter{"seq_page_cost"},
    TrackedParameter{"random_page_cost"},
    TrackedParameter{"cpu_tuple_cost"},
    TrackedParameter{"cpu_index_tuple_cost"},
    TrackedParameter{"cpu_operator_cost"},
    TrackedParameter{"parallel_setup_cost"},
    TrackedParameter{"parallel_tuple_cost"},
    TrackedParameter{"effective_cache_size"},
    TrackedParameter{"effective_io_concurrency"},
    TrackedParameter{"max_parallel_workers_per_gather"},
    TrackedParameter{"max_parallel_workers"},
    TrackedParameter{"min_parallel_table_scan_size"},
    TrackedParameter{"min_parallel_index_scan_size"},
    TrackedParameter{"parallel_leader_participation"},
    TrackedParameter{"enable_async_append"},
    TrackedParameter{"enable_bitmapscan"},
    TrackedParameter{"enable_gathermerge"},
    TrackedParameter{"enable_hashagg"},
    TrackedParameter{"enable_hashjoin"},
    TrackedParameter{"enable_incremental_sort"},
    TrackedParameter{"enable_indexscan"},
    TrackedParameter{"enable_indexonlyscan"},
    TrackedParameter{"enable_material"},
    TrackedParameter{"enable_memoize"},
    TrackedParameter{"enable_mergejoin"},
    TrackedParameter{"enable_nestloop"},
    TrackedParameter{"enable_parallel_append"},
    TrackedParameter{"enable_parallel_hash"},
    TrackedParameter{"enable_partition_pruning"},
    TrackedParameter{"enable_partitionwise_aggregate"},
    TrackedParameter{"enable_partitionwise_join"},
    TrackedParameter{"enable_seqscan"},
    TrackedParameter{"enable_sort"},
    TrackedParameter{"enable_tidscan"},
    // The extension's own, for statements that go to all shards. The router goes by them.
    TrackedParameter{"interlock.max_fan_out"},
    TrackedParameter{"interlock.page_timeout"},
    TrackedParameter{"interlock.partial_pages"},
    TrackedParameter{"interlock.scatter"},
};

// Encodings a client may use and a server may not (PostgreSQL documentation, "Character Set
// Support", "Server?" = No): a second byte there can be a quote or a backslash.
constexpr std::array<std::string_view, 14> unsafe_encodings{
    "sjis",   "mskanji",    "shiftjis", "win932", "windows932", "shiftjis2004", "big5",
    "win950", "windows950", "gbk",      "win936", "windows936", "uhc",          "johab"};

// As PostgreSQL compares encoding names: case and everything but letters and digits ignored.
std::string clean_encoding_name(std::string_view name) {
    std::string clean;
    for (const char c : name) {
        if (c >= 'A' && c <= 'Z')
            clean += static_cast<char>(c - 'A' + 'a');
        else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            clean += c;
    }
    return clean;
}

std::string set_config_call(const ParameterSet::Value &value) {
    return "pg_catalog.set_config(" + quote_literal(value.parameter->name) + ", " +
           quote_literal(value.value) + ", false)";
}

constexpr std::size_t forget_at = 1024;
constexpr std::size_t most_pools = 1024;

}  // namespace

std::span<const TrackedParameter> tracked_parameters() {
    return tracked;
}

const TrackedParameter *find_tracked(std::string_view name) {
    for (const TrackedParameter &parameter : tracked)
        if (name.size() == parameter.name.size() &&
            ::strncasecmp(name.data(), parameter.name.data(), name.size()) == 0)
            return &parameter;
    return nullptr;
}

bool safe_client_encoding(std::string_view name) {
    const std::string clean = clean_encoding_name(name);
    if (clean == "gb18030" || clean == "win949" || clean == "windows949") return false;
    return std::find(unsafe_encodings.begin(), unsafe_encodings.end(), clean) ==
           unsafe_encodings.end();
}

const std::string *ParameterSet::find(const TrackedParameter *parameter) const {
    for (const Value &value : values)
        if (value.parameter == parameter) return &value.value;
    return nullptr;
}

bool ParameterSet::accepted_by(const void *pool) const {
    return std::find(accepted_by_.begin(), accepted_by_.end(), pool) != accepted_by_.end();
}

void ParameterSet::note_accepted(const void *pool) const {
    if (accepted_by_.size() >= most_pools) accepted_by_.clear();
    if (!accepted_by(pool)) accepted_by_.push_back(pool);
}

const std::string *value_in(const Parameters &set, const TrackedParameter *parameter) {
    return set ? set->find(parameter) : nullptr;
}

bool begins_with_word(std::string_view text, std::string_view word) {
    const std::size_t from = text.find_first_not_of(" \t\r\n\f");
    return from != std::string_view::npos && text.size() >= from + word.size() &&
           ::strncasecmp(text.data() + from, word.data(), word.size()) == 0;
}

std::string quote_literal(std::string_view text) {
    std::string quoted = "'";
    for (const char c : text) {
        if (c == '\'') quoted += '\'';
        quoted += c;
    }
    quoted += '\'';
    return quoted;
}

std::string quote_identifier(std::string_view name) {
    std::string quoted = "\"";
    for (const char c : name) {
        if (c == '"') quoted += '"';
        quoted += c;
    }
    quoted += '"';
    return quoted;
}

std::string change_parameters_sql(const Parameters &from, const Parameters &to) {
    std::string resets;
    std::string calls;
    if (from)
        for (const ParameterSet::Value &value : from->values)
            if (value_in(to, value.parameter) == nullptr)
                resets += "RESET " + std::string(value.parameter->name) + ";";
    if (to)
        for (const ParameterSet::Value &value : to->values) {
            const std::string *old = value_in(from, value.parameter);
            if (old != nullptr && *old == value.value) continue;
            calls += (calls.empty() ? "" : ", ") + set_config_call(value);
        }
    return calls.empty() ? resets : resets + "SELECT " + calls;
}

Parameters ParameterSets::with(const Parameters &set, const TrackedParameter *parameter,
                               std::string value) {
    ParameterSet changed;
    if (set) changed.values = set->values;
    auto at = changed.values.begin();
    while (at != changed.values.end() && at->parameter < parameter)
        ++at;
    if (at != changed.values.end() && at->parameter == parameter)
        at->value = std::move(value);
    else
        changed.values.insert(at, {parameter, std::move(value)});
    return intern(std::move(changed));
}

Parameters ParameterSets::without(const Parameters &set, const TrackedParameter *parameter) {
    if (value_in(set, parameter) == nullptr) return set;
    ParameterSet changed;
    changed.values = set->values;
    std::erase_if(changed.values, [&](const auto &value) { return value.parameter == parameter; });
    return changed.values.empty() ? nullptr : intern(std::move(changed));
}

Parameters ParameterSets::intern(ParameterSet set) {
    std::string key;
    for (const ParameterSet::Value &value : set.values) {
        key += value.parameter->name;
        key += '\0';
        key += value.value;
        key += '\0';
    }
    auto &known = sets_[key];
    if (auto shared = known.lock()) return shared;
    auto shared = std::make_shared<const ParameterSet>(std::move(set));
    known = shared;
    if (sets_.size() > forget_at)
        std::erase_if(sets_, [](const auto &entry) { return entry.second.expired(); });
    return shared;
}

}  // namespace interlock
