#include "tools/repair_check.h"

namespace interlock {

namespace {

/// An array of texts that are JSON already; an empty one is null.
std::string json_array(const std::vector<std::string> &items) {
    std::string text = "[";
    for (const std::string &item : items) {
        if (text.size() > 1) text += ',';
        text += item.empty() ? "null" : item;
    }
    return text + "]";
}

Verdict compare(bool live, bool equal, bool has_row) {
    if (!has_row) return live ? Verdict::gone : Verdict::equal;
    if (!live) return Verdict::missing;
    return equal ? Verdict::equal : Verdict::differs;
}

/// As index_mend() takes it.
std::string entry_to_write(const Judged &judged) {
    const bool gone = judged.verdict == Verdict::gone;
    const std::string &version = judged.version;
    return "{" + (version.empty() ? "\"v\": null, \"s\": null" : version) +
           ", \"r\": " + (gone ? judged.entry : judged.row) +
           ", \"deleted\": " + (gone ? "true" : "false") + "}";
}

/// A value that a type, a constraint or an index does not take. Anything else would be so again.
bool about_values(const ControlError &error) {
    const std::string kind = error.sqlstate.substr(0, 2);
    return kind == "22" || kind == "23" || error.sqlstate == "54000";
}

}  // namespace

std::vector<RepairCheck::Entry> RepairCheck::find_entries(const std::vector<std::string> &keys,
                                                          const std::vector<Row> &rows) {
    std::vector<std::string> expected;
    for (const Row &row : rows)
        expected.push_back(row.values);
    const Rows found = cluster_.database().query_within(
        cluster_.timeouts().scan, sql_.find_entries(),
        {Param::of_text(json_array(keys)), Param::of_text(json_array(expected))});
    std::vector<Entry> entries;
    for (int i = 0; i < found.size(); ++i) {
        Entry entry;
        entry.hash = found.int64(i, 0);
        if (!found.is_null(i, 1)) {
            entry.xmin = found.text(i, 1);
            entry.version = "\"v\": " + found.text(i, 2) + ", \"s\": " + found.text(i, 3);
            entry.deleted = found.boolean(i, 4);
            entry.values = found.text(i, 5);
            entry.equal = found.boolean(i, 6);
        }
        entries.push_back(std::move(entry));
    }
    return entries;
}

std::vector<RepairCheck::Row> RepairCheck::find_rows(const std::vector<std::string> &keys,
                                                     const std::vector<Entry> &entries) {
    std::vector<std::vector<std::size_t>> by_shard(cluster_.model().shards.size());
    for (std::size_t i = 0; i < keys.size(); ++i)
        by_shard[cluster_.owner(entries[i].hash)].push_back(i);
    std::vector<Row> rows(keys.size());
    for (std::size_t shard = 0; shard < by_shard.size(); ++shard) {
        if (by_shard[shard].empty()) continue;
        std::vector<std::string> asked;
        for (const std::size_t i : by_shard[shard])
            asked.push_back(keys[i]);
        const Rows found = cluster_.shard(shard).query_within(
            cluster_.timeouts().scan, sql_.find_rows(), {Param::of_text(json_array(asked))});
        for (std::size_t i = 0; i < by_shard[shard].size(); ++i)
            rows[by_shard[shard][i]] = {found.boolean(static_cast<int>(i), 0),
                                        found.text(static_cast<int>(i), 1)};
    }
    return rows;
}

/// Of each key: pending, parked, or (no change) equal.
std::vector<Verdict> RepairCheck::find_changes(const std::vector<std::string> &keys) {
    std::vector<Verdict> verdicts(keys.size(), Verdict::equal);
    for (std::size_t shard = 0; shard < cluster_.model().shards.size(); ++shard) {
        const Rows found = cluster_.shard(shard).query_within(
            cluster_.timeouts().scan,
            "SELECT h.n, h.parked FROM interlock.outbox_holds($1, $2::pg_catalog.jsonb) AS h",
            {Param::of_text(cluster_.model().name), Param::of_text(json_array(keys))});
        for (int i = 0; i < found.size(); ++i) {
            Verdict &verdict = verdicts[static_cast<std::size_t>(found.int64(i, 0) - 1)];
            if (verdict != Verdict::parked)
                verdict = found.boolean(i, 1) ? Verdict::parked : Verdict::pending;
        }
    }
    return verdicts;
}

std::vector<Judged> RepairCheck::look(const std::vector<std::string> &keys) {
    const std::vector<Entry> before = find_entries(keys, std::vector<Row>(keys.size()));
    const std::vector<Row> rows = find_rows(keys, before);
    const std::vector<Verdict> changes = find_changes(keys);
    std::vector<Entry> after = find_entries(keys, rows);

    std::vector<Judged> judged;
    for (std::size_t i = 0; i < keys.size(); ++i) {
        Judged one;
        one.key = keys[i];
        one.owner = cluster_.owner(before[i].hash);
        if (changes[i] != Verdict::equal) {
            one.verdict = changes[i];
        } else if (rows[i].answered && before[i].xmin == after[i].xmin) {
            const bool live = !after[i].xmin.empty() && !after[i].deleted;
            one.verdict = compare(live, after[i].equal, !rows[i].values.empty());
        }
        one.row = rows[i].values;
        one.entry = std::move(after[i].values);
        one.version = std::move(after[i].version);
        judged.push_back(std::move(one));
    }
    return judged;
}

Mended RepairCheck::mend(const std::vector<Judged> &judged) {
    std::vector<std::vector<const Judged *>> by_shard(cluster_.model().shards.size());
    for (const Judged &one : judged)
        if (one.wrong()) by_shard[one.owner].push_back(&one);
    Mended result;
    for (std::size_t shard = 0; shard < by_shard.size(); ++shard)
        if (!by_shard[shard].empty()) mend_all(shard, by_shard[shard], result);
    return result;
}

/// One entry that the index database refuses must not keep the others from being mended: it is
/// found by halves.
void RepairCheck::mend_all(std::size_t shard, std::span<const Judged *const> wrong,
                           Mended &result) {
    std::vector<std::string> entries;
    for (const Judged *one : wrong)
        entries.push_back(entry_to_write(*one));
    const std::vector<Param> values{Param::of_text(cluster_.model().name),
                                    Param::of_text(cluster_.shard_name(shard)),
                                    Param::of_text(json_array(entries))};
    try {
        result.count += cluster_.without_walking([&] {
            return cluster_.database()
                .query_within(cluster_.timeouts().scan,
                              "SELECT interlock.index_mend($1, $2, $3::pg_catalog.jsonb)", values)
                .int64(0, 0);
        });
        return;
    } catch (const ControlError &error) {
        // A deadlock with a consumer that writes the same entries: index_mend() takes absent ones
        // first. Nothing was mended, so they are looked at again.
        if (error.sqlstate == "40P01") return;
        if (!about_values(error)) throw;
        if (wrong.size() == 1) {
            result.refusals.push_back({wrong.front()->key, error.what()});
            return;
        }
    }
    mend_all(shard, wrong.first(wrong.size() / 2), result);
    mend_all(shard, wrong.subspan(wrong.size() / 2), result);
}

}  // namespace interlock
