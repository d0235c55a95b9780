// The file of users (pg.auth_file): one a line, "user" "verifier" and optionally "role on the
// shards".
//
// The form of PgBouncer's userlist.txt: fields in double quotes, a quote inside is doubled; empty
// lines and those that begin with ; or # are skipped. The verifier is PostgreSQL's (pg_authid.
// rolpassword); an empty one is for users who log in by certificate. Passwords and md5 hashes, with
// which one could log in elsewhere, are refused.
#pragma once

#include "base/result.h"
#include "wire/scram.h"

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace interlock {

/// What there is to know of a user who wants to come in.
struct ClientUser {
    std::optional<wire::ScramVerifier> verifier;  ///< nothing: no password fits
    std::string backend_login;                    ///< role on the shards
};

using UserList = std::unordered_map<std::string, ClientUser>;

/// The error is one line and begins with `path` and the line's number; it never repeats a field
/// other than the user's name.
[[nodiscard]] Result<UserList, std::string> parse_auth_file(std::string_view text,
                                                            const std::string &path);
[[nodiscard]] Result<UserList, std::string> read_auth_file(const std::string &path);

}  // namespace interlock
