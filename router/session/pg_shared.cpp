#include "session/pg_shared.h"

#include "session/pg_client.h"
#include "sql/scatter_skeleton.h"

#include <openssl/rand.h>

namespace interlock {

namespace {

// Of a cancel key's pid, those that say where its client is found: far more than there are
// descriptors.
constexpr std::uint32_t slot_bits = 24;
constexpr std::uint32_t slot_mask = (1U << slot_bits) - 1;

// Statements nobody uses any more are forgotten when this many are known.
constexpr std::size_t forget_statements_at = 4096;
constexpr std::size_t most_paths = 1024;

std::uint32_t random32() {
    std::uint32_t value = 0;
    if (RAND_bytes(reinterpret_cast<unsigned char *>(&value), sizeof value) != 1) std::abort();
    return value;
}

}  // namespace

void PgShared::keep(std::string_view text, const sql::Shape &shape, const SearchPath &path,
                    const std::shared_ptr<const RouteTable> &table,
                    std::shared_ptr<const sql::Facts> facts) {
    // A transaction may still work under an older table; the cache holds shapes of the newest.
    const auto &routes = worker_.routes();
    if (!routes || routes->table != table) return;
    if (facts->cacheable) {
        facts_.insert(shape.text, table, std::move(facts), path.id);
        return;
    }
    if (!facts->scatter) return;
    if (!shape.literals.empty()) {
        if (auto page = sql::keepable_page(*facts, shape)) {
            pages_.insert(sql::skeleton(text, shape), table, std::move(page), path.id);
            return;
        }
    }
    scatters_.insert(text, table, std::move(facts), path.id);
}

std::shared_ptr<const sql::Facts>
PgShared::find_page(std::string_view text, const sql::Shape &shape, const SearchPath &path,
                    const std::shared_ptr<const RouteTable> &table) {
    if (shape.literals.empty() || pages_.size() == 0) return nullptr;
    const auto kept = pages_.find(sql::skeleton(text, shape), table, path.id);
    return kept ? sql::page_facts(*kept, shape) : nullptr;
}

Result<std::shared_ptr<const sql::Facts>, Refusal>
PgShared::analyse_one(std::string_view text, const sql::Shape &shape, const SearchPath &path,
                      const std::shared_ptr<const RouteTable> &table) {
    if (auto known = find(text, shape, path, table)) return known;
    auto analysed = sql::analyse(text, shape, {*table, path.schemas});
    if (!analysed) return std::move(analysed.error());
    if (analysed->size() > 1) {
        Refusal several =
            make_refusal(Code::R22, "cannot insert multiple commands into a prepared statement");
        several.sqlstate = "42601";
        return several;
    }
    auto facts = std::make_shared<const sql::Facts>(analysed->empty()
                                                        ? sql::Facts{.action = sql::Action::empty}
                                                        : std::move((*analysed)[0].facts));
    keep(text, shape, path, table, facts);
    return facts;
}

std::shared_ptr<const PgStatement> PgShared::statement(std::string_view text,
                                                       std::vector<std::uint32_t> types,
                                                       const SearchPath &path) {
    std::string key(reinterpret_cast<const char *>(&path.id), sizeof path.id);
    key.append(reinterpret_cast<const char *>(types.data()), types.size() * sizeof types[0]);
    key += '\0';
    key += text;
    auto &known = statements_[key];
    if (auto shared = known.lock()) return shared;
    auto made = std::make_shared<PgStatement>();
    made->id = next_id();
    made->text = text;
    made->types = std::move(types);
    sql::Shape shape;
    sql::make_shape(text, shape);
    made->literals = std::move(shape.literals);
    known = made;
    if (statements_.size() > forget_statements_at)
        std::erase_if(statements_, [](const auto &entry) { return entry.second.expired(); });
    return made;
}

std::shared_ptr<const SearchPath> PgShared::search_path(std::string_view value,
                                                        std::string_view login) {
    std::string key(login);
    key += '\0';
    key += value;
    const auto it = paths_.find(key);
    if (it != paths_.end()) return it->second;
    if (paths_.size() >= most_paths) paths_.clear();  // clients hold the ones they use
    auto path = std::make_shared<SearchPath>();
    path->id = ++last_path_;
    if (auto schemas = sql::split_search_path(value, login)) path->schemas = std::move(*schemas);
    paths_.emplace(std::move(key), path);
    return path;
}

PgShared::CancelKey PgShared::add_cancel_key(PgClient *client) {
    if (free_slots_.empty()) {
        free_slots_.push_back(static_cast<std::uint32_t>(by_slot_.size()));
        by_slot_.push_back(nullptr);
    }
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    by_slot_[slot] = client;
    CancelKey key;
    do {
        // 31 bits: drivers read it as a signed number.
        key.pid = (random32() << slot_bits & 0x7FFFFFFF) | (slot & slot_mask);
    } while (key.pid == 0);
    key.secret = random32();
    return key;
}

void PgShared::remove_cancel_key(CancelKey key) {
    const std::uint32_t slot = key.pid & slot_mask;
    by_slot_[slot] = nullptr;
    free_slots_.push_back(slot);
}

PgClient *PgShared::find_client(std::uint32_t pid, std::uint32_t secret) const {
    const std::uint32_t slot = pid & slot_mask;
    if (slot >= by_slot_.size() || by_slot_[slot] == nullptr) return nullptr;
    const CancelKey key = by_slot_[slot]->cancel_key();
    return key.pid == pid && key.secret == secret ? by_slot_[slot] : nullptr;
}

}  // namespace interlock
