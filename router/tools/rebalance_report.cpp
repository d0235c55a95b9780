// How a plan of `interlock rebalance` is told.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "tools/bucket_set.h"
#include "tools/index_options.h"
#include "tools/rebalance_options.h"

namespace interlock {

namespace {

std::string count_of(std::size_t number, const std::string &what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

std::string plain(double number) {
    std::ostringstream out;
    out << std::setprecision(12) << number;
    return out.str();
}

std::string percent(double part) {
    std::ostringstream out;
    out << std::fixed << std::setprecision(1) << part * 100 << " %";
    return out.str();
}

std::string unit(BalanceBy by, std::int64_t number) {
    switch (by) {
    case BalanceBy::rows: return number == 1 ? "row" : "rows";
    case BalanceBy::bytes: return number == 1 ? "byte" : "bytes";
    case BalanceBy::load: break;
    }
    return number == 1 ? "write" : "writes";
}

void table(std::ostream &out, const std::vector<std::vector<std::string>> &rows) {
    std::vector<std::size_t> width(rows.front().size());
    for (const auto &row : rows)
        for (std::size_t c = 0; c < row.size(); ++c)
            width[c] = std::max(width[c], row[c].size());
    for (const auto &row : rows) {
        std::string line;
        for (std::size_t c = 0; c < row.size(); ++c) {
            const std::string gap(width[c] - row[c].size(), ' ');
            line += (c == 0 ? row[c] + gap : "  " + gap + row[c]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out << line << '\n';
    }
}

std::string verdict(const RebalanceOptions &options, const Rebalance &rebalance) {
    const BalancePlan &plan = rebalance.plan;
    const std::string within = percent(options.tolerance);
    if (plan.moves.empty() && plan.even)
        return "nothing to do: every shard is within " + within + " of its share";
    std::string text;
    if (!plan.moves.empty()) {
        std::int64_t size = 0;
        for (const RebalanceMove &move : rebalance.moves)
            size += move.size;
        text = count_of(plan.moves.size(), "bucket") + " to move, " + std::to_string(size) + " " +
               unit(options.request.by, size) + ", in " + count_of(rebalance.moves.size(), "move") +
               "; ";
        text += plan.fewest ? "no plan with fewer buckets does as well"
                            : "a plan as good needs at least " + std::to_string(plan.at_least);
        text += '\n';
    }
    text += plan.even ? "every shard will be within " + within + " of its share"
                      : "not every shard can be brought within " + within +
                            " of its share: this is the nearest that was found";
    return text;
}

}  // namespace

std::string_view name_of(BalanceBy by) {
    return by == BalanceBy::rows ? "rows" : by == BalanceBy::bytes ? "bytes" : "load";
}

std::string rebalance_text(const RebalanceOptions &options, const Rebalance &rebalance) {
    const BalancePlan &plan = rebalance.plan;
    const std::string what = unit(options.request.by, 0);
    double total = 0;
    for (const std::int64_t size : plan.before)
        total += static_cast<double>(size);
    const auto part = [total](auto size) {
        return total > 0 ? percent(static_cast<double>(size) / total) : std::string("-");
    };
    std::vector<std::vector<std::string>> rows{{"shard", "weight", "share", "buckets", what, "part",
                                                "buckets then", what + " then", "part"}};
    for (std::size_t s = 0; s < rebalance.shards.size(); ++s) {
        const RebalancedShard &shard = rebalance.shards[s];
        rows.push_back({shard.name, plain(shard.weight), part(plan.share[s]),
                        std::to_string(shard.buckets_before), std::to_string(plan.before[s]),
                        part(plan.before[s]), std::to_string(shard.buckets_after),
                        std::to_string(plan.after[s]), part(plan.after[s])});
    }
    std::ostringstream out;
    table(out, rows);
    out << verdict(options, rebalance) << '\n';
    for (const std::string &note : rebalance.notes)
        out << "note: " << note << '\n';
    if (!rebalance.moves.empty()) out << '\n';
    for (const RebalanceMove &move : rebalance.moves)
        out << move.command << '\n';
    return out.str();
}

std::string rebalance_json(const RebalanceOptions &options, const Rebalance &rebalance) {
    const BalancePlan &plan = rebalance.plan;
    std::ostringstream out;
    out << "{\"by\": \"" << name_of(options.request.by)
        << "\", \"tolerance\": " << plain(options.tolerance)
        << ", \"even\": " << (plan.even ? "true" : "false")
        << ", \"fewest\": " << (plan.fewest ? "true" : "false")
        << ", \"at_least\": " << plan.at_least << ", \"shards\": [";
    for (std::size_t s = 0; s < rebalance.shards.size(); ++s) {
        const RebalancedShard &shard = rebalance.shards[s];
        out << (s == 0 ? "" : ", ") << "{\"name\": " << json_string(shard.name)
            << ", \"weight\": " << plain(shard.weight)
            << ", \"share\": " << plain(std::round(plan.share[s] * 10) / 10)
            << ", \"before\": " << plan.before[s] << ", \"after\": " << plan.after[s]
            << ", \"buckets_before\": " << shard.buckets_before
            << ", \"buckets_after\": " << shard.buckets_after << '}';
    }
    out << "], \"moves\": [";
    for (std::size_t m = 0; m < rebalance.moves.size(); ++m) {
        const RebalanceMove &move = rebalance.moves[m];
        out << (m == 0 ? "" : ", ") << "{\"keyspace\": " << json_string(move.keyspace)
            << ", \"from\": " << json_string(move.from) << ", \"to\": " << json_string(move.to)
            << ", \"buckets\": [";
        for (std::size_t b = 0; b < move.buckets.size(); ++b)
            out << (b == 0 ? "" : ", ") << move.buckets[b];
        out << "], \"size\": " << move.size << ", \"command\": " << json_string(move.command)
            << '}';
    }
    out << "], \"notes\": [";
    for (std::size_t n = 0; n < rebalance.notes.size(); ++n)
        out << (n == 0 ? "" : ", ") << json_string(rebalance.notes[n]);
    out << "]}\n";
    return out.str();
}

}  // namespace interlock
