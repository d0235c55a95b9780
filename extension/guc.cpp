#include "pg.h"

#include "guc.h"

namespace interlock::guc {

int route_version = 0;
bool allow_truncate = false;
bool moving_rows = false;
bool scatter = false;
bool partial_pages = false;
int max_fan_out = 0;
int page_timeout = 0;

void define() {
    DefineCustomIntVariable(
        "interlock.route_version", "Route version under which this session works.",
        "Set by a router. Statements on sharded tables are refused when it is below the shard's "
        "floor. "
        "0 means that the session did not come through a router.",
        &route_version, 0, 0, INT_MAX, PGC_USERSET, GUC_NOT_IN_SAMPLE, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable(
        "interlock.allow_truncate", "Allows TRUNCATE of sharded tables in this session.",
        "TRUNCATE removes the rows of every bucket at once, so the session has to say that it "
        "means it.",
        &allow_truncate, false, PGC_USERSET, GUC_NOT_IN_SAMPLE, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable(
        "interlock.moving_rows",
        "Lets this session write to importing buckets, and delete from buckets that are not here.",
        "For movers of buckets, which copy rows and clear them away.", &moving_rows, false,
        PGC_SUSET, GUC_NOT_IN_SAMPLE, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable(
        "interlock.scatter", "Allows the router to put a SELECT without a shard key to all shards.",
        "Has an effect only in a session that came through a router.", &scatter, false, PGC_USERSET,
        GUC_NOT_IN_SAMPLE, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable(
        "interlock.partial_pages",
        "Allows the router to give pages in which shards are missing that did not answer in time.",
        "Such a page says so, names the shards, and has no cursors.", &partial_pages, false,
        PGC_USERSET, GUC_NOT_IN_SAMPLE, nullptr, nullptr, nullptr);
    DefineCustomIntVariable(
        "interlock.max_fan_out",
        "Number of shards that one statement of this session may be put to by the router.",
        "0 means as many as the router allows; more than that is never allowed.", &max_fan_out, 0,
        0, 1000, PGC_USERSET, GUC_NOT_IN_SAMPLE, nullptr, nullptr, nullptr);
    DefineCustomIntVariable(
        "interlock.page_timeout",
        "Time in which all shards must have answered a statement that the router put to them.",
        "0 means as long as the router allows; longer than that is never allowed.", &page_timeout,
        0, 0, INT_MAX, PGC_USERSET, GUC_NOT_IN_SAMPLE | GUC_UNIT_MS, nullptr, nullptr, nullptr);
    MarkGUCPrefixReserved("interlock");
}

}  // namespace interlock::guc
