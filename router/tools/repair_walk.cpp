#include "tools/repair_walk.h"

#include <future>
#include <string_view>
#include <unordered_map>

namespace interlock {

namespace {

Param json(const std::string &text) {
    return text.empty() ? Param::null_text() : Param::of_text(text);
}

}  // namespace

RepairWalk::RepairWalk(RepairCluster &cluster, const RepairSql &sql, const RepairScope &scope,
                       std::string only, std::string position)
    : cluster_(cluster), sql_(sql), scope_(scope), only_(std::move(only)),
      position_(std::move(position)) {}

std::vector<Param> RepairWalk::params(const std::string &upper, std::int32_t limit) const {
    return {json(position_), json(upper), Param::of_int4(limit), json(scope_.json)};
}

/// The shards work at the same time.
std::vector<Rows> RepairWalk::read_rows(const std::string &upper, std::int32_t limit) {
    const std::string sql = sql_.rows({!position_.empty(), !upper.empty()});
    const std::vector<Param> values = params(upper, limit);
    const auto read = [&](std::size_t shard) {
        return cluster_.shard(shard).query_within(cluster_.timeouts().scan, sql, values);
    };
    // An error must not leave the others running: the futures wait for them.
    std::vector<std::future<Rows>> answers;
    for (std::size_t shard = 0; shard < cluster_.model().shards.size(); ++shard)
        if (compared(shard)) answers.push_back(std::async(std::launch::async, read, shard));
    std::vector<Rows> rows;
    for (std::future<Rows> &answer : answers)
        rows.push_back(answer.get());
    return rows;
}

/// The index gives the range its end. Where shards have many rows there that the index does not
/// have, the end is drawn nearer, until no source has more than its share.
RepairWalk::Range RepairWalk::read(std::int32_t size) {
    const std::int32_t most = 2 * size;
    std::string upper;
    const std::size_t attempts = 4 + 2 * cluster_.model().shards.size();
    for (std::size_t attempt = 0; attempt < attempts; ++attempt) {
        Range range;
        range.entries = cluster_.database().query_within(
            cluster_.timeouts().scan, sql_.entries({!position_.empty(), !upper.empty()}),
            params(upper, size));
        if (range.entries->size() == size) upper = range.entries->text(size - 1, 0);
        range.rows = read_rows(upper, most);
        range.upper = upper;
        for (const Rows &rows : range.rows)
            if (rows.size() == most && rows.view(most - 1, 0) != upper)
                range.upper = rows.text(most - 1, 0);
        if (range.upper == upper) return range;
        upper = range.upper;
    }
    throw ControlError("55000", "too many rows come in while they are read", {},
                       "Two servers may sort the key's text differently: compare the versions of "
                       "their collations.");
}

WalkedRange RepairWalk::compare(const Range &range) const {
    WalkedRange found;
    const Rows &entries = *range.entries;
    std::unordered_map<std::string_view, int> by_key;
    by_key.reserve(static_cast<std::size_t>(entries.size()));
    std::vector<bool> settled(static_cast<std::size_t>(entries.size()));
    for (int e = 0; e < entries.size(); ++e) {
        const std::size_t owner = cluster_.owner(entries.int64(e, 2));
        if (!compared(owner)) {
            settled[static_cast<std::size_t>(e)] = true;
            continue;
        }
        ++found.entries;
        if (entries.view(e, 3) != cluster_.shard_name(owner)) ++found.elsewhere;
        by_key.emplace(entries.view(e, 0), e);
    }
    for (const Rows &rows : range.rows) {
        found.rows += rows.size();
        for (int r = 0; r < rows.size(); ++r) {
            const auto entry = by_key.find(rows.view(r, 0));
            if (entry != by_key.end()) settled[static_cast<std::size_t>(entry->second)] = true;
            if (entry == by_key.end() || entries.view(entry->second, 1) != rows.view(r, 1))
                found.candidates.push_back(rows.text(r, 0));
        }
    }
    for (int e = 0; e < entries.size(); ++e)
        if (!settled[static_cast<std::size_t>(e)]) found.candidates.push_back(entries.text(e, 0));
    return found;
}

WalkedRange RepairWalk::next(std::int32_t size) {
    const Range range = read(size);
    WalkedRange found = compare(range);
    if (range.upper.empty())
        ended_ = true;
    else
        position_ = range.upper;
    return found;
}

}  // namespace interlock
