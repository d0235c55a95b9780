#include "session/auth_file.h"

#include "base/log.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sys/stat.h>
#include <vector>

namespace interlock {

namespace {

constexpr std::size_t max_file_size = 64 << 20;

void skip_blanks(std::string_view &rest) {
    while (!rest.empty() && (rest.front() == ' ' || rest.front() == '\t' || rest.front() == '\r'))
        rest.remove_prefix(1);
}

/// Takes "..." off the front.
bool take_quoted(std::string_view &rest, std::string &field) {
    if (!rest.starts_with('"')) return false;
    rest.remove_prefix(1);
    for (;;) {
        const std::size_t quote = rest.find('"');
        if (quote == std::string_view::npos) return false;
        field.append(rest.substr(0, quote));
        rest.remove_prefix(quote + 1);
        if (!rest.starts_with('"')) return true;
        field += '"';
        rest.remove_prefix(1);
    }
}

/// What is wrong with the line, or nothing.
std::string take_line(std::string_view line, UserList &users) {
    std::vector<std::string> fields;
    while (skip_blanks(line), !line.empty())
        if (!take_quoted(line, fields.emplace_back()))
            return R"(expected "user" "verifier" and optionally "role", in double quotes)";
    if (fields.size() < 2 || fields.size() > 3)
        return R"(expected "user" "verifier" and optionally "role")";
    const std::string &name = fields[0];
    if (name.empty() || name.size() > 63) return "a user's name has 1 to 63 bytes";
    ClientUser user;
    if (!fields[1].empty()) {
        user.verifier = wire::parse_verifier(fields[1]);
        if (!user.verifier)
            return "the second field of user \"" + name +
                   "\" is not a SCRAM verifier (SCRAM-SHA-256$..., from pg_authid.rolpassword)";
    }
    user.backend_login = fields.size() == 3 ? fields[2] : name;
    if (user.backend_login.empty()) return "the role of user \"" + name + "\" is empty";
    if (!users.emplace(name, std::move(user)).second) return "user \"" + name + "\" is there twice";
    return {};
}

}  // namespace

Result<UserList, std::string> parse_auth_file(std::string_view text, const std::string &path) {
    UserList users;
    for (std::size_t number = 1; !text.empty(); ++number) {
        const std::size_t end = text.find('\n');
        std::string_view line = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        skip_blanks(line);
        if (line.empty() || line.front() == ';' || line.front() == '#') continue;
        if (line.find('\0') != std::string_view::npos)
            return format("%s:%zu: a zero byte", path.c_str(), number);
        const std::string problem = take_line(line, users);
        if (!problem.empty()) return format("%s:%zu: %s", path.c_str(), number, problem.c_str());
    }
    return users;
}

Result<UserList, std::string> read_auth_file(const std::string &path) {
    const auto fail = [&path](const char *why) {
        return format("could not read file of users \"%s\": %s", path.c_str(), why);
    };
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return fail(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) return fail("it is not a regular file");
    if (status.st_size > static_cast<off_t>(max_file_size)) return fail("it is larger than 64 MB");
    std::ifstream file(path, std::ios::binary);
    if (!file) return fail(std::strerror(errno));
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (file.bad()) return fail("read error");
    text.resize(static_cast<std::size_t>(file.gcount()));
    return parse_auth_file(text, path);
}

}  // namespace interlock
