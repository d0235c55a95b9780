// The library's entry point.
#include "pg.h"

#include "guc.h"
#include "route_version.h"

extern "C" {
PG_MODULE_MAGIC;
PGDLLEXPORT void _PG_init(void);
}

void _PG_init(void) {
    interlock::guc::define();
    interlock::install_route_version_check();
}
