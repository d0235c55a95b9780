#include "tools/move_verify.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

namespace interlock {

MoveVerifier::MoveVerifier(const MoveRequest &request, MoveSession &session)
    : request_(request), session_(session) {}

MoveVerifier::~MoveVerifier() = default;

void MoveVerifier::open() {
    if (!source_ || source_->broken()) source_ = session_.open_source(request_.query_timeout);
    if (!target_ || target_->broken()) target_ = session_.open_target(request_.query_timeout);
    tables_.clear();
    const Rows rows =
        source_->query("SELECT g.relid::pg_catalog.regclass FROM interlock.guarded_table g "
                       "WHERE g.keyspace = $1 ORDER BY 1::text",
                       {Param::of_text(session_.keyspace().name)});
    for (int row = 0; row < rows.size(); ++row)
        tables_.push_back(rows.text(row, 0));
}

std::int64_t MoveVerifier::rehearse() {
    const auto began = std::chrono::steady_clock::now();
    (void)compare(request_.scan_timeout);
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 began)
        .count();
}

void MoveVerifier::take_snapshots() {
    for (ControlConnection *const side : {source_.get(), target_.get()}) {
        side->execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        side->execute("SELECT pg_catalog.pg_current_snapshot()");
    }
}

void MoveVerifier::release() noexcept {
    for (ControlConnection *const side : {source_.get(), target_.get()})
        if (side) side->rollback();
}

std::vector<MoveVerifier::Digest> MoveVerifier::digests(ControlConnection &side,
                                                        std::int64_t limit) const {
    using namespace std::chrono;
    const auto end = steady_clock::now() + milliseconds(limit);
    std::vector<Digest> all;
    for (const std::string &table : tables_) {
        const auto left = duration_cast<milliseconds>(end - steady_clock::now()).count();
        const Rows rows = side.query_within(
            std::max<std::int64_t>(1, left),
            "SELECT d.bucket, d.rows, d.digest FROM interlock.bucket_digests($1, $2, "
            "  $3::pg_catalog.regclass) d ORDER BY d.bucket",
            {Param::of_text(session_.keyspace().name), Param::of_int4_array(session_.buckets()),
             Param::of_text(table)});
        for (int row = 0; row < rows.size(); ++row)
            all.push_back({table, rows.int32(row, 0), rows.int64(row, 1), rows.text(row, 2)});
    }
    return all;
}

MoveComparison MoveVerifier::compare(std::int64_t limit) {
    std::vector<Digest> there;
    std::exception_ptr failed;
    std::thread other([&] {
        try {
            there = digests(*target_, limit);
        } catch (...) {
            failed = std::current_exception();
        }
    });
    std::vector<Digest> here;
    try {
        here = digests(*source_, limit);
    } catch (...) {
        other.join();
        release();
        throw;
    }
    other.join();
    release();
    if (failed) std::rethrow_exception(failed);

    MoveComparison result;
    for (std::size_t i = 0; i < here.size(); ++i) {
        result.rows += here[i].rows;
        if (i < there.size() && here[i].rows == there[i].rows && here[i].digest == there[i].digest)
            continue;
        if (!result.equal) continue;
        result.equal = false;
        result.difference =
            "Bucket " + std::to_string(here[i].bucket) + " of table " + here[i].table + ": " +
            std::to_string(here[i].rows) + " rows at the source, " +
            std::to_string(i < there.size() ? there[i].rows : 0) + " at the target" +
            (i < there.size() && here[i].rows == there[i].rows ? ", which are not the same." : ".");
    }
    return result;
}

}  // namespace interlock
