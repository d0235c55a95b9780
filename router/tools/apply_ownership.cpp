// Who owns which bucket, who shall, and what must not be done about it.
#include "tools/apply_plan.h"

#include <algorithm>
#include <tuple>

#include "tools/bucket_set.h"

namespace interlock {

namespace {

/// All that is known about one bucket, over all shards.
struct BucketView {
    std::int32_t owner = no_shard;
    std::int32_t second_owner = no_shard;
    std::int32_t in_transit = no_shard;  ///< a shard where it is fenced or importing
    std::int32_t transit_state = 0;      ///< the BucketOwnership it has there
    std::int32_t released_version = 0;   ///< of the published owner's `moved` row; 0: it has none
    bool released_to_staged = false;     ///< that row names the staged owner
    bool any_row = false;
    const DesiredMove *move = nullptr;  ///< that it is part of
};

enum class Fault {
    unassigned,
    two_owners,
    in_transit,
    wrong_owner,
    lost,
    released,
    decided,
};

/// Buckets with the same fault on the same shards are reported together.
using FaultKey = std::tuple<Fault, std::int32_t, std::int32_t, std::int32_t, std::int32_t>;

class Judge {
  public:
    Judge(const DesiredState &desired, std::size_t keyspace, const std::vector<ShardState> &shards)
        : desired_(desired), keyspace_(desired.keyspaces[keyspace]), index_(keyspace),
          shards_(shards), views_(static_cast<std::size_t>(keyspace_.buckets)) {
        for (const DesiredMove &move : desired.moves)
            if (move.keyspace == keyspace)
                for (const std::int32_t bucket : move.buckets)
                    views_[static_cast<std::size_t>(bucket)].move = &move;
        for (std::size_t s = 0; s < shards.size(); ++s)
            for (const BucketRow &row : shards[s].keyspaces[keyspace].rows)
                note(static_cast<std::int32_t>(s), row);
    }

    OwnershipChange judge(std::vector<Finding> &problems) {
        const bool anything = std::any_of(views_.begin(), views_.end(),
                                          [](const BucketView &view) { return view.any_row; });
        for (std::int32_t bucket = 0; bucket < keyspace_.buckets; ++bucket)
            judge_bucket(bucket, anything);
        for (const auto &[key, buckets] : faults_)
            problems.push_back(describe(key, buckets));
        return std::move(change_);
    }

  private:
    void note(std::int32_t shard, const BucketRow &row) {
        if (row.bucket < 0 || row.bucket >= keyspace_.buckets)
            return;  // the definitions differ, which is reported elsewhere
        BucketView &view = views_[static_cast<std::size_t>(row.bucket)];
        view.any_row = true;
        switch (row.state) {
        case BucketOwnership::owned:
            (view.owner == no_shard ? view.owner : view.second_owner) = shard;
            break;
        case BucketOwnership::fenced:
        case BucketOwnership::importing:
            // A move that the catalog knows of goes on beside this, or is gone on with.
            if (view.move && row.state == BucketOwnership::importing && shard == view.move->to)
                break;
            if (view.move && row.state == BucketOwnership::fenced && shard == view.move->from) {
                (view.owner == no_shard ? view.owner : view.second_owner) = shard;
                break;
            }
            view.in_transit = shard;
            view.transit_state = static_cast<std::int32_t>(row.state);
            break;
        case BucketOwnership::moved:
            if (shard == published(row.bucket)) {
                const std::int32_t target = staged(row.bucket);
                view.released_version = row.version;
                view.released_to_staged = target != no_shard && row.peer == name(target);
            }
            break;
        }
    }

    void judge_bucket(std::int32_t bucket, bool anything) {
        const BucketView &view = views_[static_cast<std::size_t>(bucket)];
        const std::int32_t from = published(bucket);
        const std::int32_t to = staged(bucket);
        const auto fault = [&](Fault what, std::int32_t a = no_shard, std::int32_t b = no_shard,
                               std::int32_t c = 0, std::int32_t d = 0) {
            faults_[{what, a, b, c, d}].push_back(bucket);
        };
        if (view.second_owner != no_shard)
            return fault(Fault::two_owners, view.owner, view.second_owner);
        if (view.in_transit != no_shard)
            return fault(Fault::in_transit, view.in_transit, no_shard, view.transit_state);
        if (to == no_shard) return fault(Fault::unassigned);
        // A decided move has its number reserved, and is carried out first: otherwise the catalog
        // has lost that. The rows are on their way, or there.
        if (view.move && view.released_version > desired_.version &&
            view.move->id != desired_.reserved_move)
            return fault(Fault::decided, from, view.move->to, view.released_version,
                         static_cast<std::int32_t>(view.move - desired_.moves.data()));

        const bool must_release = from != no_shard && from != to;
        // Released under the version still to be published: an earlier run got that far.
        const bool released =
            must_release && view.released_version > desired_.version && view.released_to_staged;
        if (view.owner == to) {
            if (must_release && !released) change_.move[{from, to}].push_back(bucket);
        } else if (view.owner != no_shard) {
            if (view.owner != from) return fault(Fault::wrong_owner, view.owner, to, from);
            change_.move[{from, to}].push_back(bucket);
        } else if (from == no_shard) {
            change_.take[to].push_back(bucket);
        } else if (view.released_version > desired_.version) {
            // An earlier run got that far; meanwhile the bucket may have been assigned back.
            if (must_release)
                change_.move[{from, to}].push_back(bucket);
            else
                change_.take[to].push_back(bucket);
        } else if (view.released_version > 0) {
            fault(Fault::released, from, no_shard, view.released_version);
        } else if (!anything || knows_keyspace(from)) {
            // Published before it was applied. A shard that lost its database instead has lost its
            // identity and keyspaces with it, while the others have theirs.
            if (must_release)
                change_.move[{from, to}].push_back(bucket);
            else
                change_.take[to].push_back(bucket);
        } else {
            fault(Fault::lost, from);
        }
    }

    Finding describe(const FaultKey &key, const std::vector<std::int32_t> &buckets) const {
        const auto &[fault, a, b, c, d] = key;
        const bool one = buckets.size() == 1;
        const std::string what =
            buckets_phrase(buckets) + " of keyspace \"" + keyspace_.name + "\"";
        const std::string is = one ? " is " : " are ";
        const std::string them = one ? "it" : "them";
        switch (fault) {
        case Fault::unassigned:
            return {what + is + "not assigned to a shard", {}, "Use interlock.assign()."};
        case Fault::two_owners:
            return {what + is + "owned by both shard " + quoted(a) + " and shard " + quoted(b),
                    {},
                    "Find out which of them has the right rows, remove those of the other, and run "
                    "interlock.release_buckets() there."};
        case Fault::in_transit:
            return {what + is + "being handed over: " +
                        (c == static_cast<std::int32_t>(BucketOwnership::fenced) ? "fenced"
                                                                                 : "importing") +
                        " on shard " + quoted(a),
                    {},
                    "Let the move finish first."};
        case Fault::wrong_owner: {
            const std::string published = c == no_shard
                                              ? "Nothing is published for " + them + " yet."
                                              : "The published owner is " + quoted(c) + ".";
            return {what + is + "owned by shard " + quoted(a) + ", but assigned to " + quoted(b),
                    published,
                    "To keep the shard as it is, assign " + them + " to " + quoted(a) +
                        " and run \"interlock apply\"."};
        }
        case Fault::lost:
            return {what + is + "published as owned by shard " + quoted(a) +
                        ", but that database knows nothing of " + them,
                    "It has neither the identity nor the keyspace: it may be an empty database in "
                    "place of the shard.",
                    "Restore the shard. If " + std::string(one ? "its" : "their") +
                        " rows are really gone, run interlock.set_identity(), "
                        "interlock.define_keyspace() and interlock.accept_buckets() there."};
        case Fault::released:
            return {what + is + "published as owned by shard " + quoted(a) + ", which gave " +
                        them + " up under route version " + std::to_string(c),
                    "The current route version is " + std::to_string(desired_.version) +
                        ", and no shard owns " + them + ".",
                    "Find the rows, then run interlock.accept_buckets() on the shard that has "
                    "them."};
        case Fault::decided:
            return {what + is + "given by shard " + quoted(a) + " to shard " + quoted(b) +
                        " under route version " + std::to_string(c),
                    "That is the decision of a move of which the catalog has lost the rest: it may "
                    "be a standby that was promoted, or an older copy.",
                    "Run interlock move --resume " +
                        desired_.moves[static_cast<std::size_t>(d)].id + "."};
        }
        return {};
    }

    std::int32_t staged(std::int32_t bucket) const {
        return keyspace_.staged[static_cast<std::size_t>(bucket)];
    }
    std::int32_t published(std::int32_t bucket) const {
        return keyspace_.published[static_cast<std::size_t>(bucket)];
    }
    bool knows_keyspace(std::int32_t shard) const {
        const ShardState &state = shards_[static_cast<std::size_t>(shard)];
        return state.has_identity && state.keyspaces[index_].known;
    }
    const std::string &name(std::int32_t shard) const {
        return desired_.shards[static_cast<std::size_t>(shard)].name;
    }
    std::string quoted(std::int32_t shard) const { return "\"" + name(shard) + "\""; }

    const DesiredState &desired_;
    const DesiredKeyspace &keyspace_;
    std::size_t index_;
    const std::vector<ShardState> &shards_;
    std::vector<BucketView> views_;
    std::map<FaultKey, std::vector<std::int32_t>> faults_;
    OwnershipChange change_;
};

}  // namespace

OwnershipChange check_ownership(const DesiredState &desired, std::size_t keyspace,
                                const std::vector<ShardState> &shards,
                                std::vector<Finding> &problems) {
    return Judge(desired, keyspace, shards).judge(problems);
}

std::vector<bool> owned_afterwards(const DesiredKeyspace &keyspace, std::int32_t shard) {
    std::vector<bool> owned(static_cast<std::size_t>(keyspace.buckets));
    for (std::size_t bucket = 0; bucket < owned.size(); ++bucket)
        owned[bucket] = keyspace.staged[bucket] == shard;
    return owned;
}

bool floor_ahead(const DesiredState &desired, const std::vector<ShardState> &shards) {
    return std::any_of(shards.begin(), shards.end(), [&desired](const ShardState &shard) {
        return shard.floor > desired.version;
    });
}

}  // namespace interlock
