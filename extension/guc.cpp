#include "pg.h"

#include "guc.h"

namespace interlock::guc {

int route_version = 0;
bool allow_truncate = false;

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
    MarkGUCPrefixReserved("interlock");
}

}  // namespace interlock::guc
