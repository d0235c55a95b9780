#include "tools/repair_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <thread>

#include "base/startup_error.h"

namespace interlock {

namespace {

// Candidates that are looked up together. Each look reads the outboxes from end to end (they have
// no index), so a few thousand keys at a time.
constexpr std::size_t looked_up_together = 4000;
// Candidates wait for company at most this long, so that a run that is killed loses little.
constexpr std::chrono::seconds longest_wait{2};
// How often a key that is being changed is looked at before it is put off until the end.
constexpr int rounds = 4;
constexpr std::chrono::milliseconds between_rounds{20};
// Keys put off that are kept for the end; more are counted only.
constexpr std::size_t put_off_at_most = 100'000;
constexpr std::chrono::milliseconds between_last_looks{200};

std::string joined(const std::vector<std::string> &names) {
    std::string text;
    for (const std::string &name : names)
        text += (text.empty() ? "" : ", ") + name;
    return text;
}

}  // namespace

RepairCommand::RepairCommand(const RepairRequest &request)
    : request_(request),
      cluster_(request.catalog, request.index, request.timeouts, request.scope.empty()),
      sql_(cluster_.model(), scope_), check_(cluster_, sql_),
      report_(run_, request.json, request.verbose) {
    run_.index = request.index;
    run_.apply = request.apply;
    take_scope();
    check_shard();
    prepare_sessions();
    position_ = std::make_unique<RepairPosition>(cluster_.database(), run_, cluster_.servers());
}

/// The scope is JSON; its members are columns of the index's scope, its values are read by the
/// types of those.
void RepairCommand::take_scope() {
    if (request_.scope.empty()) return;
    ControlConnection &database = cluster_.database();
    const IndexModel &model = cluster_.model();
    const auto wrong = [](const std::string &what, const std::string &hint) {
        throw StartupError("option \"--scope\": " + what, hint);
    };
    const std::string form = "Give an object of scope columns, for example --scope '{\"" +
                             (model.scope.empty() ? "a" : model.scope.front()) + "\": 1}'.";
    try {
        const Rows kind = database.query(
            "SELECT pg_catalog.json_typeof($1::pg_catalog.json), $1::pg_catalog.jsonb::text",
            {Param::of_text(request_.scope)});
        if (kind.view(0, 0) != "object") wrong("a JSON object is wanted", form);
        run_.scope = scope_.json = kind.text(0, 1);
        const Rows members = database.query(
            "SELECT m.key, pg_catalog.bool_or(m.value IS NULL), pg_catalog.count(*) "
            "FROM pg_catalog.json_each_text($1::pg_catalog.json) AS m GROUP BY 1 ORDER BY 1",
            {Param::of_text(request_.scope)});
        if (members.empty()) wrong("it names no column", form);
        for (int i = 0; i < members.size(); ++i) {
            const std::string name = members.text(i, 0);
            if (std::find(model.scope.begin(), model.scope.end(), name) == model.scope.end())
                wrong("\"" + name + "\" is not a scope column of index \"" + model.name + "\"",
                      model.scope.empty() ? "The index has no scope."
                                          : "Its scope columns: " + joined(model.scope) + ".");
            if (members.int64(i, 2) > 1) wrong("\"" + name + "\" is named twice", form);
            const std::vector<std::string> names = model.column_names();
            const auto column = static_cast<std::size_t>(
                std::find(names.begin(), names.end(), name) - names.begin());
            (members.boolean(i, 1) ? scope_.nulls : scope_.columns).push_back(column);
        }
        if (!scope_.columns.empty())
            database.query(sql_.check_scope(), {Param::of_text(scope_.json)});
    } catch (const ControlError &error) {
        if (error.sqlstate.substr(0, 2) != "22") throw;
        wrong(error.detail.empty() ? std::string(error.what())
                                   : std::string(error.what()) + ": " + error.detail,
              form);
    }
}

void RepairCommand::check_shard() {
    run_.shard = request_.shard;
    std::vector<std::string> names;
    for (std::size_t s = 0; s < cluster_.model().shards.size(); ++s)
        names.push_back(cluster_.shard_name(s));
    if (!run_.shard.empty() && std::find(names.begin(), names.end(), run_.shard) == names.end())
        throw StartupError("option \"--shard\": there is no shard \"" + run_.shard + "\"",
                           "The shards: " + joined(names) + ".");
}

void RepairCommand::prepare_sessions() {
    const std::string &name = cluster_.model().name;
    ControlConnection &database = cluster_.database();
    if (!database.query("SELECT interlock.index_try_repair($1)", {Param::of_text(name)})
             .boolean(0, 0))
        throw ControlError("55006",
                           "another \"interlock repair\" of index \"" + name + "\" is running", {},
                           "Wait until it has ended.");
    // See repair_check.h. Purging tombstones is waited for, which takes a moment.
    database.query_within(request_.timeouts.scan, "SELECT interlock.index_hold_tombstones($1)",
                          {Param::of_text(name)});
}

/// The key behind which to begin.
std::string RepairCommand::resume() {
    std::string key;
    if (request_.restart) {
        position_->forget();
        return key;
    }
    const std::optional<InterruptedRun> interrupted = position_->load();
    if (!interrupted) return key;
    if (!interrupted->outdated.empty()) {
        position_->forget();
        report_.tell("begins anew, and does not go on with the run that began at " +
                     interrupted->begun + ": " + interrupted->outdated);
        return key;
    }
    run_.resumed = true;
    counts_ = interrupted->counts;
    left_ = interrupted->left;
    // The keys themselves were not kept.
    not_kept_ = counts_.pending;
    parked_not_kept_ = counts_.parked;
    report_.tell("goes on with the run that began at " + interrupted->begun + ", behind " +
                 interrupted->key + " (--restart begins anew)");
    return interrupted->key;
}

void RepairCommand::estimate() {
    if (!request_.scope.empty()) return;
    for (std::size_t s = 0; s < cluster_.model().shards.size(); ++s) {
        if (!run_.shard.empty() && cluster_.shard_name(s) != run_.shard) continue;
        estimate_ += cluster_.shard(s)
                         .query("SELECT COALESCE(pg_catalog.sum(GREATEST(c.reltuples, 0)), 0)"
                                "::pg_catalog.int8 FROM pg_catalog.pg_partition_tree($1::text"
                                "::pg_catalog.regclass) t JOIN pg_catalog.pg_class c "
                                "ON c.oid = t.relid WHERE t.isleaf",
                                {Param::of_text(cluster_.model().table->sql_name)})
                         .int64(0, 0);
    }
}

template <typename Action>
auto RepairCommand::under_current_routes(Action action) {
    for (;;) {
        try {
            return action();
        } catch (const ControlError &error) {
            if (error.sqlstate != "IL102") throw;
        }
        cluster_.await_routes();
    }
}

RepairCounts RepairCommand::counts() const {
    RepairCounts counts = counts_;
    counts.pending = static_cast<std::int64_t>(put_off_.size()) + not_kept_;
    counts.parked = parked_ + parked_not_kept_;
    return counts;
}

int RepairCommand::run() {
    if (!cluster_.model().ready)
        report_.tell("index \"" + run_.index +
                     "\" is not ready: what its backfill has not filled yet is missing");
    RepairWalk walk(cluster_, sql_, scope_, run_.shard, resume());
    estimate();
    this->walk(walk);
    look_at_the_end();
    position_->forget();
    report_.finish(counts(), left_);
    return left_ > 0 ? 3 : 0;
}

void RepairCommand::walk(RepairWalk &walk) {
    std::vector<Candidate> candidates;
    Clock::time_point settled = Clock::now();
    const std::int32_t size =
        request_.rate == 0 ? request_.chunk
                           : static_cast<std::int32_t>(
                                 std::clamp<std::int64_t>(request_.rate / 5, 1, request_.chunk));
    while (!walk.ended()) {
        const WalkedRange range = under_current_routes([&] { return walk.next(size); });
        counts_.rows += range.rows;
        counts_.entries += range.entries;
        counts_.elsewhere += range.elsewhere;
        compared_ += std::max(range.rows, range.entries);
        for (const std::string &key : range.candidates)
            candidates.push_back({key});
        if (walk.ended() || candidates.size() >= looked_up_together ||
            Clock::now() - settled >= longest_wait) {
            settle(std::move(candidates));
            candidates.clear();
            if (!walk.ended()) position_->save(walk.position(), counts(), left_);
            settled = Clock::now();
        }
        report_.progress(counts(), estimate_);
        pace();
    }
}

void RepairCommand::pace() {
    if (request_.rate == 0) return;
    const auto due = begun_ + std::chrono::microseconds(compared_ * 1'000'000 / request_.rate);
    std::this_thread::sleep_until(due);
}

void RepairCommand::settle(std::vector<Candidate> candidates) {
    for (std::size_t first = 0; first < candidates.size(); first += looked_up_together) {
        const std::size_t last = std::min(first + looked_up_together, candidates.size());
        std::vector<Candidate> batch(
            std::make_move_iterator(candidates.begin() + static_cast<std::ptrdiff_t>(first)),
            std::make_move_iterator(candidates.begin() + static_cast<std::ptrdiff_t>(last)));
        for (int round = 0; round < rounds && !batch.empty(); ++round) {
            if (round > 0) std::this_thread::sleep_for(between_rounds);
            batch = settle_once(batch);
        }
        for (Candidate &candidate : batch)
            put_off(std::move(candidate), false);
    }
}

/// Returns those to look at again at once.
std::vector<RepairCommand::Candidate>
RepairCommand::settle_once(const std::vector<Candidate> &candidates) {
    std::vector<std::string> keys;
    for (const Candidate &candidate : candidates)
        keys.push_back(candidate.key);
    const std::vector<Judged> judged = under_current_routes([&] { return check_.look(keys); });

    std::vector<Candidate> again;
    std::vector<Judged> wrong;
    std::vector<Candidate> to_mend;
    bool moving = false;
    for (std::size_t i = 0; i < judged.size(); ++i) {
        const Judged &one = judged[i];
        if (!run_.shard.empty() && cluster_.shard_name(one.owner) != run_.shard)
            continue;  // its bucket has gone to another shard
        Candidate candidate = candidates[i];
        if (one.verdict == Verdict::pending || one.verdict == Verdict::parked) {
            put_off(std::move(candidate), one.verdict == Verdict::parked);
        } else if (one.verdict == Verdict::moving) {
            moving = true;
            again.push_back(std::move(candidate));
        } else if (one.wrong()) {
            if (!candidate.told) {
                ++(one.verdict == Verdict::missing ? counts_.missing : counts_.stale);
                ++left_;
                report_.difference(one, cluster_.shard_name(one.owner));
                candidate.told = true;
            }
            wrong.push_back(one);
            to_mend.push_back(std::move(candidate));
        } else if (candidate.told) {
            --left_;
        }
    }
    if (request_.apply && !wrong.empty()) {
        const Mended mended = check_.mend(wrong);
        counts_.mended += mended.count;
        for (const Mended::Refusal &refusal : mended.refusals)
            report_.refused(refusal);
        const auto done = static_cast<std::size_t>(mended.count) + mended.refusals.size();
        if (done == wrong.size())
            left_ -= mended.count;
        else  // some entries were written meanwhile: which, another look tells
            std::move(to_mend.begin(), to_mend.end(), std::back_inserter(again));
    }
    if (moving) renew_routes();
    return again;
}

/// Most keys that are being changed have not moved, so the catalog may be away: what has moved is
/// put off, and pending if the routes are not known by the end.
void RepairCommand::renew_routes() {
    std::string why;
    const bool answered = cluster_.try_renew_routes(why);
    if (!answered && catalog_answers_)
        report_.tell("the catalog does not answer; going on with the routes that are known: " +
                     why);
    catalog_answers_ = answered;
}

void RepairCommand::put_off(Candidate candidate, bool parked) {
    if (put_off_.size() >= put_off_at_most) {
        ++not_kept_;
        if (parked) ++parked_not_kept_;
        return;
    }
    if (parked) ++parked_;
    put_off_.push_back(std::move(candidate));
}

/// What was on its way then may have arrived.
void RepairCommand::look_at_the_end() {
    const auto deadline = Clock::now() + std::chrono::milliseconds(request_.wait);
    while (!put_off_.empty()) {
        std::vector<Candidate> candidates = std::move(put_off_);
        put_off_.clear();
        parked_ = 0;
        settle(std::move(candidates));
        if (put_off_.empty() || parked_ == static_cast<std::int64_t>(put_off_.size()) ||
            Clock::now() >= deadline)
            break;
        report_.progress(counts(), estimate_);
        std::this_thread::sleep_for(between_last_looks);
    }
}

}  // namespace interlock
