#include "base/setting_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <memory>

#include <libpq-fe.h>

#include "base/log.h"

namespace interlock {

namespace {

constexpr std::int64_t second = 1000;
constexpr std::int64_t minute = 60 * second;
constexpr std::int64_t hour = 60 * minute;
constexpr std::int64_t day = 24 * hour;
constexpr std::int64_t kilobyte = 1024;
constexpr std::int64_t megabyte = 1024 * kilobyte;
constexpr std::int64_t gigabyte = 1024 * megabyte;

struct Section {
    std::string_view name;
    std::string_view title;
};

constexpr std::array<Section, 9> sections{{
    {"catalog", "Catalog, where the route table is read from"},
    {"line", "Line protocol listener"},
    {"pg", "PostgreSQL listener"},
    {"backend", "Connections to the shards"},
    {"pool", "Pool of connections, per shard"},
    {"routes", "While buckets change their shard"},
    {"scatter", "Statements that all shards answer together"},
    {"limits", "Limits of the process"},
    {"log", "Log"},
}};

using enum SettingKind;
using S = Settings;

const std::array<SettingSpec, 45> table{{
    {"catalog", "conninfo", conninfo, &S::catalog_conninfo, 0, 0, true,
     "connection string of the catalog database, as libpq reads it; required"},
    {"catalog", "poll_interval", duration, &S::catalog_poll_interval, 10, hour, false,
     "how often the catalog is asked for a new route version, besides its notifications"},
    {"catalog", "timeout", duration, &S::catalog_timeout, 10, 10 * minute, false,
     "one round trip to the catalog, connecting included"},

    {"line", "listen", address, &S::line_listen, 0, 0, true,
     "address of the line listener; empty for none"},
    {"line", "max_clients", count, &S::max_clients, 1, 1'000'000, false,
     "clients at a time; a further one is told why and closed"},
    {"line", "max_line", bytes, &S::max_line, 256, 256 * megabyte, false,
     "longest request line; a longer one is R02"},
    {"line", "max_parameters", count, &S::max_parameters, 1, 65535, false,
     "parameters of one statement; more are R02"},
    {"line", "line_timeout", duration, &S::line_timeout, 10, day, false,
     "time to finish a request line once begun"},
    {"line", "write_timeout", duration, &S::write_timeout, 10, day, false,
     "time to take the answers written to it; a slower client is closed"},
    {"line", "idle_transaction_timeout", duration, &S::idle_transaction_timeout, 10, day, false,
     "a transaction idle for this long is rolled back and its client closed"},

    {"pg", "listen", address, &S::pg_listen, 0, 0, true,
     "address of the PostgreSQL listener; empty for none"},
    {"pg", "auth", word, &S::pg_auth, 0, 0, false,
     "how clients prove who they are: scram-sha-256, cert or trust", "scram-sha-256|cert|trust"},
    {"pg", "auth_file", text, &S::pg_auth_file, 0, 0, false,
     "file of users and their SCRAM verifiers; empty: the catalog is asked"},
    {"pg", "tls", word, &S::pg_tls, 0, 0, false,
     "whether clients may or must use TLS: disable, allow or require", "disable|allow|require"},
    {"pg", "tls_cert_file", text, &S::pg_tls_cert_file, 0, 0, false,
     "the listener's certificate and its chain, PEM"},
    {"pg", "tls_key_file", text, &S::pg_tls_key_file, 0, 0, false,
     "the certificate's private key, PEM"},
    {"pg", "tls_ca_file", text, &S::pg_tls_ca_file, 0, 0, false,
     "authorities that client certificates are checked against, PEM"},
    {"pg", "database", text, &S::pg_database, 0, 0, false,
     "the database name clients must give; empty: any"},
    {"pg", "max_clients", count, &S::pg_max_clients, 1, 1'000'000, false,
     "clients at a time; a further one is told why and closed"},
    {"pg", "login_timeout", duration, &S::pg_login_timeout, 10, 10 * minute, false,
     "time to log in, TLS handshake included"},
    {"pg", "max_statement", bytes, &S::pg_max_statement, 256, 16 * megabyte, false,
     "shape of one statement (its text without literals) at most"},
    {"pg", "commit_in_failed", word, &S::pg_commit_in_failed, 0, 0, false,
     "COMMIT in a failed transaction: rollback, as PostgreSQL answers it, or error (R13)",
     "rollback|error"},
    {"pg", "max_packet", bytes, &S::pg_max_packet, 10'000, gigabyte, false,
     "one message that is kept in memory (Bind) at most"},
    {"pg", "write_timeout", duration, &S::pg_write_timeout, 10, day, false,
     "time to take the answers written to it; a slower client is closed"},
    {"pg", "idle_transaction_timeout", duration, &S::pg_idle_transaction_timeout, 10, day, false,
     "a transaction idle for this long is rolled back and its client closed"},
    {"pg", "max_prepared", count, &S::pg_max_prepared, 1, 1'000'000, false,
     "prepared statements a client may hold"},
    {"pg", "backend_prepared", count, &S::pg_backend_prepared, 1, 100'000, false,
     "prepared statements kept on one connection to a shard"},

    {"backend", "options", conninfo, &S::backend_options, 0, 0, true,
     "connection parameters added to each shard's own, for example: user=app"},

    {"pool", "size", count, &S::pool_size, 1, 10'000, false, "connections to a shard at most"},
    {"pool", "acquire_timeout", duration, &S::acquire_timeout, 1, day, false,
     "how long a statement waits for a connection"},
    {"pool", "max_waiting", count, &S::max_waiting, 0, 1'000'000, false,
     "statements waiting for a connection at most"},
    {"pool", "idle_check", duration, &S::idle_check, 0, day, false,
     "a connection idle for longer than this is validated before it is lent"},
    {"pool", "max_lifetime", duration, &S::max_lifetime, 0, 365 * day, false,
     "connections older than this are replaced; 0: never"},
    {"pool", "idle_timeout", duration, &S::idle_timeout, 0, 365 * day, false,
     "connections unused for this long are closed; 0: never"},
    {"pool", "connect_timeout", duration, &S::connect_timeout, 10, 10 * minute, false,
     "one attempt to connect, greeting included"},
    {"pool", "statement_timeout", duration, &S::statement_timeout, 1, day, false,
     "one statement; a longer one is cancelled"},

    {"routes", "wait", duration, &S::routes_wait, 0, hour, false,
     "how long a statement waits for the new shard of its bucket; 0: it fails at once"},

    {"scatter", "max_fan_out", count, &S::scatter_max_fan_out, 1, 1000, false,
     "shards of one statement at most"},
    {"scatter", "max_rows", count, &S::scatter_max_rows, 1, 1'000'000, false,
     "rows fetched from each shard at most: a page, or LIMIT and OFFSET together"},
    {"scatter", "max_groups", count, &S::scatter_max_groups, 1, 1'000'000, false,
     "groups of an aggregate at most"},
    {"scatter", "timeout", duration, &S::scatter_timeout, 1, day, false,
     "how long the shards together may take, waiting for connections included"},

    {"limits", "max_result_bytes", bytes, &S::max_result_bytes, 256, gigabyte, false,
     "one answer of the line listener at most (the other one streams)"},
    {"limits", "max_buffered_bytes", bytes, &S::max_buffered_bytes, 256, 1024 * gigabyte, false,
     "requests begun and answers not yet taken, over all clients"},
    {"limits", "shutdown_timeout", duration, &S::shutdown_timeout, 0, day, false,
     "how long SIGTERM lets transactions in progress finish"},

    {"log", "level", level, &S::log_level, 0, 0, false, "error, warning, info or debug"},
}};

struct Unit {
    std::string_view name;
    std::int64_t factor;
};

// Largest first, so that formatting takes the first that divides.
constexpr std::array<Unit, 5> duration_units{
    {{"d", day}, {"h", hour}, {"min", minute}, {"s", second}, {"ms", 1}}};
constexpr std::array<Unit, 5> byte_units{
    {{"TB", 1024 * gigabyte}, {"GB", gigabyte}, {"MB", megabyte}, {"kB", kilobyte}, {"B", 1}}};

std::string_view trim(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Splits "12 kB" into 12 and "kB"; nothing if it does not begin with a whole number that fits.
struct Quantity {
    std::int64_t number;
    std::string_view unit;
};
std::optional<Quantity> split_quantity(std::string_view text) {
    text = trim(text);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) return std::nullopt;
    return Quantity{number, trim(text.substr(static_cast<std::size_t>(end - text.data())))};
}

std::optional<std::int64_t> scale(const Quantity &quantity, std::span<const Unit> units) {
    if (quantity.unit.empty()) return quantity.number;
    for (const Unit &unit : units) {
        std::int64_t value = 0;
        if (unit.name == quantity.unit)
            return __builtin_mul_overflow(quantity.number, unit.factor, &value)
                       ? std::nullopt
                       : std::optional(value);
    }
    return std::nullopt;
}

std::string format_quantity(std::int64_t value, std::span<const Unit> units) {
    if (value != 0)
        for (const Unit &unit : units)
            if (value % unit.factor == 0)
                return std::to_string(value / unit.factor) + std::string(unit.name);
    return "0";
}

std::string format_number(SettingKind kind, std::int64_t value) {
    if (kind == duration) return format_duration(value);
    if (kind == bytes) return format_quantity(value, byte_units);
    return std::to_string(value);
}

/// The message for a number that could not be read at all.
std::string not_a_number(SettingKind kind, std::string_view text) {
    const std::string quoted = ", not \"" + std::string(text) + "\"";
    if (kind == duration)
        return "must be a whole number with a unit of us, ms, s, min, h or d (milliseconds if "
               "there "
               "is none)" +
               quoted;
    if (kind == bytes)
        return "must be a whole number with a unit of B, kB, MB, GB or TB (bytes if there is "
               "none)" +
               quoted;
    return "must be a whole number" + quoted;
}

std::string check_conninfo(std::string_view text) {
    char *error = nullptr;
    const std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> options(
        PQconninfoParse(std::string(text).c_str(), &error), &PQconninfoFree);
    const std::unique_ptr<char, decltype(&PQfreemem)> owned(error, &PQfreemem);
    if (options) return {};
    std::string why = error ? error : "out of memory";
    while (!why.empty() && why.back() == '\n')
        why.pop_back();
    return "is not a connection string: " + why;
}

std::string check_address(std::string_view text) {
    if (text.empty()) return {};
    const auto colon = text.rfind(':');
    if (colon == std::string_view::npos || colon == 0)
        return "must be HOST:PORT, not \"" + std::string(text) + "\"";
    const std::string_view host = text.substr(0, colon);
    const std::string_view port = text.substr(colon + 1);
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (!bracketed && host.find_first_of(":[]") != std::string_view::npos)
        return "must have an IPv6 address in brackets, as in [::1]:47210, not \"" +
               std::string(text) + "\"";
    int number = -1;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc{} || end != port.data() + port.size() || number < 0 || number > 65535)
        return "must have a port from 0 to 65535, not \"" + std::string(port) + "\"";
    return {};
}

std::string check_word(std::string_view text, std::string_view words) {
    std::string list;
    while (!words.empty()) {
        const std::size_t end = std::min(words.find('|'), words.size());
        const std::string_view candidate = words.substr(0, end);
        if (text == candidate) return {};
        words.remove_prefix(std::min(end + 1, words.size()));
        list += (list.empty() ? "" : words.empty() ? " or " : ", ") + std::string(candidate);
    }
    return "must be " + list + ", not \"" + std::string(text) + "\"";
}

std::string check_level(std::string_view text) {
    LogLevel unused{};
    if (parse_log_level(text, unused)) return {};
    return "must be error, warning, info or debug, not \"" + std::string(text) + "\"";
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j)
        row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
        }
    }
    return row[b.size()];
}

}  // namespace

std::string SettingSpec::name() const {
    return std::string(section) + "." + std::string(key);
}

std::string SettingSpec::flag() const {
    if (section == "catalog" && key == "conninfo") return "catalog";
    std::string flag = std::string(section) + "-" + std::string(key);
    std::replace(flag.begin(), flag.end(), '_', '-');
    return flag;
}

std::string_view SettingSpec::value_name() const {
    switch (kind) {
    case text: return "TEXT";
    case conninfo: return "CONNINFO";
    case address: return "HOST:PORT";
    case level: return "LEVEL";
    case word: return "WORD";
    case duration: return "DURATION";
    case bytes: return "SIZE";
    case count: return "N";
    }
    return "VALUE";
}

std::string SettingSpec::range() const {
    if (kind != duration && kind != bytes && kind != count) return {};
    return format_number(kind, min) + " to " + format_number(kind, max);
}

std::span<const SettingSpec> setting_table() {
    return table;
}

const SettingSpec *find_setting(std::string_view section, std::string_view key) {
    for (const SettingSpec &spec : setting_table())
        if (spec.section == section && spec.key == key) return &spec;
    return nullptr;
}

std::string_view section_title(std::string_view section) {
    for (const Section &known : sections)
        if (known.name == section) return known.title;
    return {};
}

std::vector<std::string_view> section_names() {
    std::vector<std::string_view> names;
    for (const Section &section : sections)
        names.push_back(section.name);
    return names;
}

std::string set_setting(const SettingSpec &spec, std::string_view value, Settings &settings) {
    value = trim(value);
    std::string problem;
    if (value.find('\0') != std::string_view::npos) return "must not contain a NUL byte";
    switch (spec.kind) {
    case text: break;
    case conninfo: problem = check_conninfo(value); break;
    case address: problem = check_address(value); break;
    case level: problem = check_level(value); break;
    case word: problem = check_word(value, spec.words); break;
    case duration:
    case bytes:
    case count: {
        std::optional<std::int64_t> number;
        if (spec.kind == duration)
            number = parse_duration(value);
        else if (const auto quantity = split_quantity(value))
            number = spec.kind == bytes       ? scale(*quantity, byte_units)
                     : quantity->unit.empty() ? std::optional(quantity->number)
                                              : std::nullopt;
        if (!number) return not_a_number(spec.kind, value);
        if (*number < spec.min || *number > spec.max)
            return "must be from " + spec.range() + ", not " + std::string(value);
        if (const auto *wide = std::get_if<std::int64_t Settings::*>(&spec.member))
            settings.*(*wide) = *number;
        else
            settings.*std::get<std::size_t Settings::*>(spec.member) =
                static_cast<std::size_t>(*number);
        return {};
    }
    }
    if (problem.empty())
        settings.*std::get<std::string Settings::*>(spec.member) = std::string(value);
    return problem;
}

std::string setting_text(const SettingSpec &spec, const Settings &settings) {
    if (const auto *string = std::get_if<std::string Settings::*>(&spec.member))
        return settings.*(*string);
    if (const auto *wide = std::get_if<std::int64_t Settings::*>(&spec.member))
        return format_number(spec.kind, settings.*(*wide));
    return format_number(spec.kind, static_cast<std::int64_t>(
                                        settings.*std::get<std::size_t Settings::*>(spec.member)));
}

std::optional<std::int64_t> parse_duration(std::string_view text) {
    const auto quantity = split_quantity(text);
    if (!quantity || quantity->number < 0) return std::nullopt;
    if (quantity->unit == "us")
        return quantity->number / 1000 + (quantity->number % 1000 != 0 ? 1 : 0);
    return scale(*quantity, duration_units);
}

std::string format_duration(std::int64_t milliseconds) {
    return format_quantity(milliseconds, duration_units);
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
    // A third of the name may differ: enough for a slip, too little for a guess.
    std::size_t best = std::max<std::size_t>(1, name.size() / 3) + 1;
    std::string nearest;
    for (const std::string &candidate : candidates) {
        const std::size_t distance = edit_distance(name, candidate);
        if (distance < best) {
            best = distance;
            nearest = candidate;
        }
    }
    return nearest;
}

}  // namespace interlock
