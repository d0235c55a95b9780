#include "session/scatter_budget.h"

#include "sql/raw_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <strings.h>

namespace interlock {

namespace {

struct Unit {
    std::string_view name;
    Millis millis;
};
constexpr std::array<Unit, 6> units{
    {{"", 1}, {"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000}}};

bool same(std::string_view word, std::string_view other) {
    return word.size() == other.size() &&
           ::strncasecmp(word.data(), other.data(), word.size()) == 0;
}

bool is_on(const std::string *value) {
    return value != nullptr && same(*value, "on");
}

Millis time_of(const std::string *value) {
    return value == nullptr ? 0 : shown_time(*value).value_or(0);
}

std::uint32_t number_of(const std::string *value) {
    std::uint32_t number = 0;
    if (value != nullptr) std::from_chars(value->data(), value->data() + value->size(), number);
    return number;
}

}  // namespace

std::optional<Millis> shown_time(std::string_view text) {
    std::int32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0) return std::nullopt;
    const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
    for (const Unit &unit : units)
        if (rest == unit.name) return number * unit.millis;
    return std::nullopt;
}

SessionBudget session_budget(const sql::Scatter &scatter, const Settings &settings,
                             const SessionValue &value) {
    using Bound = SessionBudget::Bound;
    SessionBudget found;
    const auto narrow = [&](Millis most, Bound bound) {
        if (most <= 0 || (found.budget.timeout > 0 && found.budget.timeout <= most)) return;
        found.budget.timeout = most;
        found.timeout_of = bound;
    };
    narrow(settings.scatter_timeout, Bound::page);
    narrow(time_of(value("interlock.page_timeout")), Bound::page);
    narrow(time_of(value("statement_timeout")), Bound::session);
    narrow(settings.statement_timeout, Bound::statement);

    found.budget.max_fan_out = static_cast<std::uint32_t>(settings.scatter_max_fan_out);
    const std::uint32_t fan_out = number_of(value("interlock.max_fan_out"));
    if (fan_out != 0 && (found.budget.max_fan_out == 0 || fan_out < found.budget.max_fan_out))
        found.budget.max_fan_out = fan_out;
    found.budget.max_rows = static_cast<std::uint32_t>(scatter.kind == sql::ScatterKind::aggregate
                                                           ? settings.scatter_max_groups
                                                           : settings.scatter_max_rows);
    // Only a page has columns that say it is incomplete.
    found.budget.partial = scatter.kind == sql::ScatterKind::keyset_page &&
                           (scatter.partial_by_hint || is_on(value("interlock.partial_pages")));
    return found;
}

bool scatter_allowed(const sql::Scatter &scatter, const SessionValue &value) {
    return !scatter.unless_allowed || is_on(value("interlock.scatter"));
}

Refusal told_session(Refusal refusal, const SessionValue &value) {
    if (!refusal.as_scatter || !is_on(value("interlock.scatter"))) return refusal;
    return *refusal.as_scatter;
}

namespace {

bool quotes(std::string_view token, std::string_view words) {
    return token.size() == words.size() + 2 && same(token.substr(1, words.size()), words);
}

}  // namespace

std::optional<bool> names_read_committed(std::string_view options) {
    // The last one named counts, as in PostgreSQL.
    std::optional<bool> found;
    sql::RawTokens tokens(options);
    for (sql::RawToken token = tokens.next(); token.kind != sql::RawToken::Kind::end;
         token = tokens.next()) {
        if (token.kind == sql::RawToken::Kind::quoted) {
            // SET transaction_isolation = '...'. What is not plainly one of the two is another.
            found = quotes(token.text, "read committed") || quotes(token.text, "read uncommitted");
            continue;
        }
        if (token.kind != sql::RawToken::Kind::word) continue;
        if (same(token.text, "committed") || same(token.text, "uncommitted")) found = true;
        if (same(token.text, "serializable") || same(token.text, "repeatable")) found = false;
    }
    return found;
}

}  // namespace interlock
