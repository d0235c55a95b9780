// Micro benchmark of the route decision and the route table. Prints one JSON object.
//
//   decision_ns   from a parsed request to the shard: shape-cache hit and plan(), per key type
//   request_ns    the same from the bytes of a request line (URL decoding included)
//   analysis_ns   the first analysis of a shape
//   shape_ns      single-shard profile: the shape of a text alone
//   single_shard_ns  the same from a text and its parameters to the shard: shape, cache hit, plan()
//   build_ms      RouteTable::build() for 65,536 buckets on 256 shards and 20 tables of 31 columns
//   memory_bytes  what that table says it holds; heap_bytes what the allocator says
//
// Each figure is CPU time, the median over batches, with the fastest batch beside it: other
// programs on the machine can only make a batch slower. route_bench [--quick]
#include "../unit/fixtures.h"
#include "plan/single_shard.h"
#include "session/line_format.h"
#include "sql/shape_cache.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <malloc.h>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace interlock;

int batches = 41;

struct Figure {
    double median = 0;
    double best = 0;
};

/// CPU time of this thread: what other programs take of the processor does not count.
double now_ns() {
    std::timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// Time of one call of `work(i)` in nanoseconds.
template <typename Work>
Figure measure(int calls, const Work &work) {
    std::vector<double> times;
    for (int batch = -2; batch < batches; ++batch) {  // two to warm up
        const double began = now_ns();
        for (int i = 0; i < calls; ++i)
            work(static_cast<std::size_t>(i));
        if (batch >= 0) times.push_back((now_ns() - began) / calls);
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times.front()};
}

[[noreturn]] void fail(const char *what) {
    std::fprintf(stderr, "route_bench: %s\n", what);
    std::exit(1);
}

/// Keeps the compiler from leaving the work out.
std::size_t checksum = 0;

std::string uuid_text(std::mt19937_64 &random) {
    char text[37];
    const unsigned long a = random();
    const unsigned long b = random();
    std::snprintf(text, sizeof text, "%08lx-%04lx-%04lx-%04lx-%012lx", a >> 32, a >> 16 & 0xFFFF,
                  a & 0xFFFF, b >> 48, b & 0xFFFFFFFFFFFFUL);
    return text;
}

struct Workload {
    const char *name;
    std::string sql;
    std::vector<std::vector<std::string>> values;  ///< many sets of parameters
};

std::vector<Workload> workloads() {
    std::mt19937_64 random(1);
    std::vector<Workload> all = {
        {"bigint", "UPDATE account SET balance = balance - ? WHERE account_id = ?", {}},
        {"uuid", "SELECT * FROM device WHERE device_id = ?", {}},
        {"text", "SELECT * FROM person WHERE name = ?", {}},
        {"bigint_in_10", "SELECT * FROM account WHERE account_id IN (?,?,?,?,?,?,?,?,?,?)", {}}};
    for (int i = 0; i < 4096; ++i) {
        all[0].values.push_back({"100", std::to_string(static_cast<std::int64_t>(random()))});
        all[1].values.push_back({uuid_text(random)});
        all[2].values.push_back({"customer-" + std::to_string(random() % 100000000) + "@example"});
        all[3].values.emplace_back(10, std::to_string(random() % 1000000));
    }
    return all;
}

/// A cache as a busy router has it: many shapes besides the ones asked for.
void fill(sql::ShapeCache &cache, const std::shared_ptr<const RouteTable> &routes,
          const std::string &sql) {
    auto statement = test::analyse(sql);
    if (!statement) fail(statement.error().message.c_str());
    cache.insert(sql, routes, std::make_shared<const sql::Statement>(std::move(*statement)));
}

ShardIndex decide(sql::ShapeCache &cache, const std::shared_ptr<const RouteTable> &routes,
                  std::string_view sql, std::span<const Parameter> parameters) {
    const auto statement = cache.find(sql, routes);
    if (!statement) fail("the cache forgot a shape");
    const auto shard = plan(*statement, parameters, *routes);
    if (!shard) fail(shard.error().message.c_str());
    return shard->shard;
}

void print(const char *name, const Figure &figure, const char *end) {
    std::printf("    \"%s\": {\"median\": %.1f, \"best\": %.1f}%s\n", name, figure.median,
                figure.best, end);
}

void decisions(const std::vector<Workload> &all) {
    const auto routes = test::reference_table();
    sql::ShapeCache cache;
    for (int i = 0; i < 500; ++i)
        fill(cache, routes,
             "SELECT * FROM account WHERE" + std::string(i, ' ') + " account_id = ?");
    for (const Workload &workload : all)
        fill(cache, routes, workload.sql);

    std::printf("  \"decision_ns\": {\n");
    for (const Workload &workload : all) {
        std::vector<std::vector<Parameter>> parameters;
        for (const auto &values : workload.values)
            parameters.emplace_back(values.begin(), values.end());
        const Figure figure = measure(100000, [&](std::size_t i) {
            checksum += decide(cache, routes, workload.sql, parameters[i % parameters.size()]);
        });
        print(workload.name, figure, &workload == &all.back() ? "" : ",");
    }
    std::printf("  },\n  \"request_ns\": {\n");
    for (const Workload &workload : all) {
        std::vector<std::string> lines;
        for (const auto &values : workload.values) {
            lines.push_back("Q\t" + percent_encoded(workload.sql));
            for (const std::string &value : values)
                lines.back() += "\t" + percent_encoded(value);
        }
        LineRequest request;
        std::string error;
        const Figure figure = measure(30000, [&](std::size_t i) {
            if (!parse_line(lines[i % lines.size()], 65535, request, error)) fail(error.c_str());
            checksum += decide(cache, routes, request.sql, request.parameters);
        });
        print(workload.name, figure, &workload == &all.back() ? "" : ",");
    }
    std::printf("  },\n  \"analysis_ns\": {\n");
    for (const Workload &workload : all) {
        const Figure figure = measure(
            5000, [&](std::size_t) { checksum += test::analyse(workload.sql)->text.size(); });
        print(workload.name, figure, &workload == &all.back() ? "" : ",");
    }
    std::printf("  },\n");
}

/// A statement of the single-shard profile, and what its analysis would say of its keys.
struct Text {
    const char *name;
    std::string first;   ///< before the literals' values
    std::string second;  ///< behind them
    std::vector<sql::KeySource> keys;
    std::vector<std::string> literals;  ///< many, put between first and second
    std::vector<std::string> parameters;
    bool binary = false;
    std::uint32_t type = 0;
};

sql::KeySource key(sql::KeySource::From from, std::uint32_t table, std::uint16_t index = 0) {
    sql::KeySource source;
    source.from = from;
    source.table = table;
    source.index = index;
    return source;
}

std::vector<Text> texts() {
    using From = sql::KeySource::From;
    std::mt19937_64 random(2);
    std::vector<Text> all = {
        {"literal",
         "SELECT balance FROM account WHERE account_id = ",
         ";",
         {key(From::literal, 0)},
         {},
         {}},
        {"update",
         "UPDATE account SET balance = balance + -1234 WHERE account_id = ",
         ";",
         {key(From::literal, 0, 1)},
         {},
         {}},
        {"insert",
         "INSERT INTO account (account_id, owner, balance, version) VALUES (",
         ", 'somebody', 100, 1)",
         {key(From::literal, 0)},
         {},
         {}},
        {"parameter_text",
         "SELECT balance FROM account WHERE account_id = $1",
         "",
         {key(From::parameter, 0)},
         {},
         {}},
        {"parameter_binary",
         "SELECT balance FROM account WHERE account_id = $1",
         "",
         {key(From::parameter, 0)},
         {},
         {},
         true,
         oid::int8},
        {"uuid",
         "SELECT label FROM device WHERE device_id = ",
         "",
         {key(From::literal, 1)},
         {},
         {}},
        {"in_10", "SELECT balance FROM account WHERE account_id IN (", ")", {}, {}, {}},
        {"array_10",
         "SELECT balance FROM account WHERE account_id = ANY ($1)",
         "",
         {key(From::array, 0)},
         {},
         {}}};
    for (std::uint16_t i = 0; i < 10; ++i)
        all[6].keys.push_back(key(From::literal, 0, i));
    for (int i = 0; i < 4096; ++i) {
        // Of one shape: integers that fit int4.
        const std::string number = std::to_string(1 + random() % 2000000000);
        for (Text *text : {&all[0], &all[1], &all[2]})
            text->literals.push_back(number);
        all[3].parameters.push_back(number);
        all[4].parameters.emplace_back();
        for (int byte = 0; byte < 8; ++byte)
            all[4].parameters.back() += static_cast<char>(random());
        all[5].literals.push_back("'" + uuid_text(random) + "'");
        std::string list = number;
        for (int k = 1; k < 10; ++k)
            list += ", " + number;
        all[6].literals.push_back(list);
        all[7].parameters.push_back("{" + list + "}");
    }
    return all;
}

void single_shard() {
    const auto routes = test::reference_table();
    const std::vector<Text> all = texts();
    sql::FactsCache cache;
    sql::Shape shape;
    const auto keep = [&](const std::string &text, const std::vector<sql::KeySource> &keys) {
        auto facts = std::make_shared<sql::Facts>();
        facts->keys = keys;
        sql::make_shape(text, shape);
        cache.insert(shape.text, routes, std::move(facts), 1);
    };
    for (int i = 0; i < 500; ++i)
        keep("SELECT * FROM account WHERE a" + std::to_string(i) + "b = 1", {});
    std::vector<std::vector<std::string>> made;
    for (const Text &text : all) {
        made.emplace_back();
        for (std::size_t i = 0; i < 4096; ++i)
            made.back().push_back(text.first + (text.literals.empty() ? "" : text.literals[i]) +
                                  text.second);
        keep(made.back().front(), text.keys);
    }

    std::printf("  \"shape_ns\": {\n");
    for (std::size_t at = 0; at < all.size(); ++at) {
        const Figure figure = measure(100000, [&](std::size_t i) {
            sql::make_shape(made[at][i % 4096], shape);
            checksum += shape.text.size();
        });
        print(all[at].name, figure, at + 1 == all.size() ? "" : ",");
    }
    std::printf("  },\n  \"single_shard_ns\": {\n");
    for (std::size_t at = 0; at < all.size(); ++at) {
        const Text &text = all[at];
        BoundParameter parameter{{}, text.binary, text.type};
        const Figure figure = measure(100000, [&](std::size_t i) {
            const std::string &sql = made[at][i % 4096];
            if (!text.parameters.empty()) parameter.bytes = text.parameters[i % 4096];
            sql::make_shape(sql, shape);
            const auto facts = cache.find(shape.text, routes, 1);
            if (!facts) fail("the cache forgot a shape");
            const auto target = plan(*facts, {sql, shape.literals, {&parameter, 1}, true}, *routes);
            if (!target) fail(target.error().message.c_str());
            if (!*target) fail("no key");
            checksum += (*target)->shard + 1U;
        });
        print(text.name, figure, at + 1 == all.size() ? "" : ",");
    }
    std::printf("  },\n");
}

void large_table() {
    CatalogRows rows;
    rows.cluster_id = "6ae3c2f0-0000-4000-8000-000000000001";
    rows.version = 1;
    for (std::int32_t i = 1; i <= 256; ++i)
        rows.shards.push_back({i, "shard" + std::to_string(i),
                               "host=shard" + std::to_string(i) + ".example dbname=app user=app"});
    rows.keyspaces = {{1, "main", "bigint", "splitmix64", 65536}};
    for (std::int32_t bucket = 0; bucket < 65536; ++bucket)
        rows.routes.push_back({1, bucket, 1 + bucket % 256});
    for (std::int32_t id = 1; id <= 20; ++id) {
        const std::string name = "table" + std::to_string(id);
        rows.tables.push_back({id, "public", name, "public." + name, 1, "id", ""});
        rows.columns.push_back({id, "id", "id", oid::int8});
        for (int column = 0; column < 30; ++column)
            rows.columns.push_back({id, "column" + std::to_string(column),
                                    "column" + std::to_string(column), oid::text});
    }
    const std::size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    const auto kept = RouteTable::build(rows);
    const std::size_t heap = ::mallinfo2().uordblks + ::mallinfo2().hblkhd - before;
    if (!kept) fail(kept.error().c_str());
    std::size_t memory = 0;
    const Figure figure = measure(1, [&](std::size_t) {
        const auto table = RouteTable::build(rows);
        if (!table) fail(table.error().c_str());
        memory = (*table)->memory();
    });
    std::printf("  \"buckets\": 65536,\n  \"shards\": 256,\n  \"tables\": 20,\n"
                "  \"build_ms\": {\"median\": %.2f, \"best\": %.2f},\n  \"memory_bytes\": %zu,\n"
                "  \"heap_bytes\": %zu\n",
                figure.median / 1e6, figure.best / 1e6, memory, heap);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc > 1 && std::strcmp(argv[1], "--quick") == 0) batches = 9;
    std::printf("{\n");
    decisions(workloads());
    single_shard();
    large_table();
    std::printf("}\n");
    return checksum == 0 ? 1 : 0;
}
