#include "session/index_entries.h"

#include "base/log.h"
#include "wire/frame.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace interlock {

namespace {

constexpr std::uint32_t null_length = 0xFFFFFFFFU;
// Where nothing of a round was alive, the next one asks for this many at least.
constexpr std::uint64_t over_stale_ones = 100;

Refusal malformed() {
    return make_refusal(Code::shards_disagree, "the index's answer is not one of an index");
}

bool holds(const std::vector<ShardIndex> &shards, ShardIndex shard) {
    return std::find(shards.begin(), shards.end(), shard) != shards.end();
}

void insert(std::vector<ShardIndex> &shards, ShardIndex shard) {
    const auto at = std::lower_bound(shards.begin(), shards.end(), shard);
    if (at == shards.end() || *at != shard) shards.insert(at, shard);
}

}  // namespace

// The first round asks for the page and one entry more. What the rounds before have found says how
// many entries the missing rows are likely to take; twice that, so that a third round is rare. The
// rounds after that are there to get over many stale entries.
std::uint64_t entries_to_ask(unsigned round, std::uint64_t need, std::uint64_t before,
                             std::uint64_t judged, std::uint64_t live, std::uint64_t most) {
    std::uint64_t size = need;
    if (round > 1 && live == 0) size = std::max({need, over_stale_ones, 4 * before});
    if (round > 1 && live > 0) size = 2 * ((need * judged + live - 1) / live);
    if (round > 2) size = std::max(size, 4 * before);
    return std::min(size, std::max(most, need)) + 1;
}

std::optional<Refusal> EntryBatch::add(std::string_view row, std::string_view key) {
    wire::FieldReader fields(row);
    (void)fields.int16();
    const std::uint32_t hash_length = fields.int32();
    if (hash_length == null_length) return malformed();
    const std::string_view text = fields.bytes(hash_length);
    const std::uint32_t cursor_length = fields.int32();
    if (cursor_length == null_length) return malformed();
    const std::string_view cursor = fields.bytes(cursor_length);
    std::int64_t hash = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash);
    if (!fields.ok() || error != std::errc() || end != text.data() + text.size() ||
        cursor.empty() || key.size() < keyset_digest_digits)
        return malformed();
    const bool later =
        entries_.empty() || (entries_.back().key <= key && key.starts_with(digest()));
    if (!later)
        return make_refusal(Code::shards_disagree,
                            "the entries of the index are not sorted by their sort keys",
                            "Its own index may be damaged, or collations changed since it was "
                            "built: see REINDEX.");
    entries_.push_back({std::string(key), std::string(cursor), keyspace_->shard_of(Key{hash})});
    bytes_ += key.size() + cursor.size() + sizeof(IndexEntry);
    return std::nullopt;
}

void EntryBatch::close(std::uint64_t asked) {
    first_ = 0;
    end_ = entries_.size();
    exhausted_ = entries_.size() < asked;
    if (exhausted_) return;
    const std::size_t extra = backward_ ? 0 : end_ - 1;
    while (first_ < end_ &&
           (backward_ ? entries_[first_] : entries_[end_ - 1]).key == entries_[extra].key)
        backward_ ? ++first_ : --end_;
}

bool EntryBatch::cut(std::size_t most, std::vector<ShardIndex> &shards) {
    std::vector<ShardIndex> all = shards;
    std::size_t judged = 0;
    const auto at = [&](std::size_t i) -> const IndexEntry & {
        return entries_[backward_ ? end_ - 1 - i : first_ + i];
    };
    const std::size_t count = end_ - first_;
    while (judged < count) {
        const ShardIndex shard = at(judged).shard;
        if (!holds(all, shard) && all.size() >= most) break;
        insert(all, shard);
        ++judged;
    }
    const bool left_out = judged < count;
    // Entries at one place are judged together.
    if (left_out)
        while (judged > 0 && at(judged - 1).key == at(judged).key)
            --judged;
    (backward_ ? first_ : end_) = backward_ ? end_ - judged : first_ + judged;
    add_shards(shards);
    return left_out;
}

void EntryBatch::add_shards(std::vector<ShardIndex> &shards) const {
    for (std::size_t i = first_; i < end_; ++i)
        insert(shards, entries_[i].shard);
}

std::vector<ShardEntries> EntryBatch::by_shard() const {
    std::vector<ShardIndex> shards;
    add_shards(shards);
    std::vector<ShardEntries> found;
    for (const ShardIndex shard : shards)
        found.push_back({shard, {}, {}});
    for (std::size_t i = first_; i < end_; ++i) {
        const auto at = std::lower_bound(shards.begin(), shards.end(), entries_[i].shard);
        ShardEntries &of = found[static_cast<std::size_t>(at - shards.begin())];
        if (!of.entries.empty() && entries_[of.entries.back()].key == entries_[i].key) continue;
        of.entries.push_back(i);
        of.cursors.push_back(entries_[i].cursor);
    }
    return found;
}

std::size_t EntryBatch::walked(std::size_t i) const {
    const std::string &place = entries_[i].key;
    if (backward_) {
        while (i > first_ && entries_[i - 1].key == place)
            --i;
        return end_ - i;
    }
    while (i + 1 < end_ && entries_[i + 1].key == place)
        ++i;
    return i + 1 - first_;
}

std::string_view EntryBatch::digest() const {
    if (entries_.empty()) return {};
    return std::string_view(entries_[0].key).substr(0, keyset_digest_digits);
}

}  // namespace interlock
