// Preflight: whether the target's disk has room for what comes.
//
// PostgreSQL tells sizes of relations, not of file systems. Where the server is on this machine we
// ask the system; elsewhere nobody can know from here.
#include <algorithm>
#include <fstream>
#include <iterator>

#include <sys/statvfs.h>

#include "tools/move_preflight_parts.h"

namespace interlock {

namespace {

std::string megabytes(std::int64_t bytes) {
    return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MB";
}

/// Whether a process of that number here is a server's. A tunnel or a container may make a server
/// that is elsewhere, with other file systems, look local.
bool is_here(const std::string &pid) {
    std::ifstream file("/proc/" + pid + "/cmdline");
    const std::string command{std::istreambuf_iterator<char>(file), {}};
    return command.find("postgres") != std::string::npos;
}

}  // namespace

void check_room(Preflight &check) {
    // A share of the tables as large as the buckets' share of what the source owns.
    const Rows owned = check.source.connection.query(
        "SELECT count(*) FROM interlock.bucket_state WHERE keyspace = $1 AND state = 'owned'",
        {Param::of_text(check.session.keyspace().name)});
    std::int64_t bytes = 0;
    for (const MovedTable &table : check.session.tables())
        bytes += table.bytes;
    const double share = static_cast<double>(check.session.buckets().size()) /
                         static_cast<double>(std::max<std::int64_t>(1, owned.int64(0, 0)));
    const auto needed = static_cast<std::int64_t>(static_cast<double>(bytes) * share);

    const Rows place = check.target.connection.query(
        "SELECT current_setting('data_directory'), coalesce(inet_server_addr() <<= ANY "
        "('{127.0.0.0/8, ::1/128}'::inet[]), true), pg_backend_pid()");
    if (!place.boolean(0, 1) || !is_here(place.text(0, 2))) return;
    struct statvfs room {};
    if (::statvfs(place.text(0, 0).c_str(), &room) != 0) return;
    const auto free =
        static_cast<std::int64_t>(room.f_bavail) * static_cast<std::int64_t>(room.f_frsize);
    if (needed <= free) return;
    check.refuse("the buckets do not fit on the disk of " + check.target.called(),
                 "They take about " + megabytes(needed) + "; in " + place.text(0, 0) +
                     " there are " + megabytes(free) + ".",
                 "Make room there, or move fewer buckets.");
}

}  // namespace interlock
