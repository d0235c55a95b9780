// The extension's settings.
#pragma once

namespace interlock::guc {

/// interlock.route_version: the route version this session works under; 0 = it did not come through
/// a router. In 0 .. INT_MAX.
extern int route_version;

/// interlock.allow_truncate: the session means its TRUNCATE of sharded tables.
extern bool allow_truncate;

/// interlock.moving_rows: the session is a mover's: it fills buckets that are importing and clears
/// what is left of others. Superusers only.
extern bool moving_rows;

/// interlock.scatter, interlock.partial_pages, interlock.max_fan_out, interlock.page_timeout: what
/// a session allows the router to do. A shard checks the values and does nothing by them.
extern bool scatter;
extern bool partial_pages;
extern int max_fan_out;
extern int page_timeout;

/// Defines the settings and reserves their prefix. Once per process.
void define();

}  // namespace interlock::guc
