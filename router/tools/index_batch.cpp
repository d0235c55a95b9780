#include "tools/index_batch.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

#include <unistd.h>

#include "base/log.h"

namespace interlock {

namespace {

/// For tests: INTERLOCK_TEST_STOP names a point at which this thread stays until it is killed.
void stop_for_test(const char *point) {
    static const char *const wanted = std::getenv("INTERLOCK_TEST_STOP");
    if (wanted == nullptr || std::strcmp(wanted, point) != 0) return;
    log_info("stopped at %s, as INTERLOCK_TEST_STOP says", point);
    for (;;)
        ::pause();
}

class Batch {
  public:
    Batch(ControlConnection &shard, ControlConnection &database, const BatchRequest &request)
        : shard_(shard), database_(database), request_(request) {}

    BatchOutcome run() {
        ControlTransaction outbox(shard_);
        take();
        stop_for_test("after-take");
        if (!records_.empty()) {
            park_behind();
            std::vector<std::size_t> all;
            for (std::size_t i = 0; i < records_.size(); ++i)
                if (!records_[i].parked) all.push_back(i);
            apply(all.data(), all.data() + all.size());
            stop_for_test("after-index-commit");
            for (FailedRecord &failed : outcome_.failed)
                failed.parked = shard_
                                    .query("SELECT interlock.outbox_failed($1, $2, $3)",
                                           {int8(failed.seq), Param::of_text(failed.error),
                                            Param::of_int4(request_.max_tries)})
                                    .boolean(0, 0);
        }
        outbox.commit();
        return std::move(outcome_);
    }

  private:
    struct Record {
        std::string seq, key, json;
        bool parked;
    };

    static Param int8(const std::string &value) {
        Param param = Param::of_int8(0);
        param.text = value;
        return param;
    }

    void take() {
        const Rows rows = shard_.query(
            "SELECT t.seq, t.route_version, t.op, COALESCE(t.new, t.old), t.key, t.parked "
            "FROM interlock.outbox_take($1, $2) t",
            {Param::of_int4(request_.max_records), Param::of_text(request_.index)});
        records_.reserve(static_cast<std::size_t>(rows.size()));
        for (int row = 0; row < rows.size(); ++row) {
            Record record{rows.text(row, 0), rows.text(row, 4), {}, rows.boolean(row, 5)};
            record.json.reserve(rows.view(row, 3).size() + 64);
            record.json += "{\"s\":";
            record.json += record.seq;
            record.json += ",\"v\":";
            record.json += rows.view(row, 1);
            record.json += ",\"op\":\"";
            record.json += rows.view(row, 2);
            record.json += "\",\"r\":";
            record.json += rows.view(row, 3);
            record.json += '}';
            records_.push_back(std::move(record));
        }
        outcome_.taken = records_.size();
    }

    /// Later changes of a key whose change is set aside wait there with it. If that one has been
    /// put back meanwhile, they are left for the next batch.
    void park_behind() {
        std::string seqs;
        std::size_t count = 0;
        for (const Record &record : records_)
            if (record.parked) append_seq(seqs, record, ++count);
        if (count == 0) return;
        outcome_.parked_behind = static_cast<std::size_t>(
            shard_
                .query("SELECT interlock.outbox_park($1::pg_catalog.int8[], NULL)",
                       {Param::of_text(seqs + "}")})
                .int32(0, 0));
    }

    static void append_seq(std::string &list, const Record &record, std::size_t nth) {
        list += nth == 1 ? '{' : ',';
        list += record.seq;
    }

    /// Applies these records, halving where the index database refuses what they say. In their own
    /// order, so that an earlier change of a key is found before a later one is applied.
    void apply(const std::size_t *begin, const std::size_t *end) {
        std::vector<std::size_t> wanted;
        for (const std::size_t *at = begin; at != end; ++at)
            if (!blocked_.contains(records_[*at].key)) wanted.push_back(*at);
        if (wanted.empty()) return;
        try {
            apply_once(wanted);
            outcome_.applied += wanted.size();
            return;
        } catch (const ControlError &error) {
            if (!is_data_error(error)) throw;
            database_.rollback();
            require_sound_index();
        }
        if (wanted.size() == 1) {
            apply_alone(wanted);
            return;
        }
        const std::size_t half = wanted.size() / 2;
        apply(wanted.data(), wanted.data() + half);
        apply(wanted.data() + half, wanted.data() + wanted.size());
    }

    /// Once more, now that the index is known to be sound: what was wrong with it when the record
    /// failed may have been mended in between.
    void apply_alone(const std::vector<std::size_t> &wanted) {
        try {
            apply_once(wanted);
            ++outcome_.applied;
        } catch (const ControlError &error) {
            if (!is_data_error(error)) throw;
            database_.rollback();
            require_sound_index();
            const Record &record = records_[wanted.front()];
            blocked_.insert(record.key);
            std::string text = error.what();
            if (!error.detail.empty()) text += "; DETAIL: " + error.detail;
            outcome_.failed.push_back({record.seq, record.key, error.sqlstate + ": " + text});
        }
    }

    void apply_once(const std::vector<std::size_t> &wanted) {
        std::size_t size = 2;
        for (const std::size_t i : wanted)
            size += records_[i].json.size() + 1;
        std::string json, seqs;
        json.reserve(size);
        for (std::size_t n = 0; n < wanted.size(); ++n) {
            json += n == 0 ? '[' : ',';
            json += records_[wanted[n]].json;
            append_seq(seqs, records_[wanted[n]], n + 1);
        }
        json += ']';
        seqs += '}';

        ControlTransaction entries(database_);
        apply_json(std::move(json));
        // Not a matter of what the records say, whatever the code of an error is.
        try {
            shard_.query("SELECT interlock.outbox_done($1::pg_catalog.int8[])",
                         {Param::of_text(seqs)});
        } catch (const ControlError &error) {
            throw ControlError("40000", std::string("outbox: ") + error.what(), error.detail,
                               error.hint, error.context);
        }
        stop_for_test("before-index-commit");
        entries.commit();
    }

    void apply_json(std::string json) {
        std::vector<Param> params{Param::of_text(request_.index), Param::of_text(request_.shard),
                                  Param::null_text()};
        params[2].text = std::move(json);
        database_.query("SELECT interlock.index_apply($1, $2, $3::pg_catalog.jsonb)", params);
    }

    /// No records at all are applied without an error unless something is wrong with the index
    /// itself, for which no record is to blame.
    void require_sound_index() {
        try {
            apply_json("[]");
        } catch (const ControlError &error) {
            throw ControlError("55000", std::string("index: ") + error.what(), error.detail,
                               error.hint, error.context);
        }
    }

    ControlConnection &shard_;
    ControlConnection &database_;
    const BatchRequest &request_;
    std::vector<Record> records_;
    std::set<std::string> blocked_;  ///< keys of which a change has failed in this batch
    BatchOutcome outcome_;
};

}  // namespace

bool is_data_error(const ControlError &error) {
    // cardinality, data, constraint, syntax or access (an unknown type), not supported, limits (a
    // value too long for an index), a check's own RAISE
    static constexpr std::array<std::string_view, 7> classes{"21", "22", "23", "42",
                                                             "0A", "54", "P0"};
    const std::string_view state = error.sqlstate;
    return state.size() == 5 &&
           std::find(classes.begin(), classes.end(), state.substr(0, 2)) != classes.end();
}

BatchOutcome drain_batch(ControlConnection &shard, ControlConnection &database,
                         const BatchRequest &request) {
    return Batch(shard, database, request).run();
}

}  // namespace interlock
