#include "wire/startup.h"

#include "base/log.h"
#include "wire/frame.h"

#include <algorithm>
#include <array>

namespace interlock::wire {

namespace {

constexpr std::uint32_t cancel_code = 1234U << 16U | 5678U;
constexpr std::uint32_t tls_code = 1234U << 16U | 5679U;
constexpr std::uint32_t gssenc_code = 1234U << 16U | 5680U;
constexpr std::size_t length_size = 4;
constexpr std::size_t cancel_packet = 16;
constexpr std::size_t max_name = 63;
// Switches of a server process that PostgreSQL takes from a client as well.
constexpr std::string_view known_switches = "BbCDdEeFfhijklNnOPprSsTtvW";

bool refuse(Fatal &fatal, std::string_view sqlstate, std::string message, std::string hint = {}) {
    fatal = {std::string(sqlstate), std::move(message), {}, std::move(hint)};
    return false;
}

bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Whether `word` is PostgreSQL's spelling of a boolean with one of these meanings: an
/// abbreviation, in any case, that leaves no doubt.
bool abbreviates(std::string_view word, std::string_view whole, std::size_t least) {
    return word.size() >= least && word.size() <= whole.size() &&
           std::equal(word.begin(), word.end(), whole.begin(),
                      [](char a, char b) { return lower(a) == b; });
}

/// "name=value" of -c or --. Names may be written with hyphens.
bool take_setting(std::string_view text, std::string_view prefix, Startup &out, Fatal &fatal) {
    const std::size_t equals = text.find('=');
    std::string name(text.substr(0, equals));
    if (equals == std::string_view::npos)
        return refuse(fatal, "42601", std::string(prefix) + name + " requires a value");
    std::replace(name.begin(), name.end(), '-', '_');
    out.parameters.emplace_back(std::move(name), std::string(text.substr(equals + 1)));
    return true;
}

bool take_options(std::string_view options, Startup &out, Fatal &fatal) {
    const std::vector<std::string> words = split_options(options);
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string_view word = words[i];
        if (word.size() > 2 && word.starts_with("--")) {
            if (!take_setting(word.substr(2), "--", out, fatal)) return false;
        } else if (word.size() > 2 && word.starts_with("-c")) {
            if (!take_setting(word.substr(2), "-c ", out, fatal)) return false;
        } else if (word == "-c" && i + 1 < words.size()) {
            if (!take_setting(words[++i], "-c ", out, fatal)) return false;
        } else if (word.size() > 1 && word[0] == '-' &&
                   known_switches.find(word[1]) != std::string_view::npos) {
            return refuse(fatal, "0A000",
                          "switch " + std::string(word.substr(0, 2)) +
                              " of a server process is not supported",
                          "Settings are given as -c name=value.");
        } else {
            return refuse(fatal, "42601",
                          "invalid command-line argument for server process: " + std::string(word));
        }
    }
    return true;
}

bool check_replication(std::string_view value, Fatal &fatal) {
    if (value == "0" || abbreviates(value, "false", 1) || abbreviates(value, "no", 1) ||
        abbreviates(value, "off", 2))
        return true;
    return refuse(fatal, "0A000", "replication connections are not supported",
                  "Connect to the shard itself.");
}

std::string name_of(std::string_view value) {
    return std::string(value.substr(0, max_name));
}

bool take_login(std::string_view body, Startup &out, Fatal &fatal) {
    FieldReader fields(body);
    std::string options;
    std::vector<std::pair<std::string, std::string>> settings;
    bool terminated = false;
    while (fields.ok() && !fields.at_end()) {
        const std::string_view name = fields.string();
        if (!fields.ok()) break;
        if (name.empty()) {
            terminated = fields.at_end();
            break;
        }
        const std::string_view value = fields.string();
        if (!fields.ok()) break;
        if (name == "user")
            out.user = name_of(value);
        else if (name == "database")
            out.database = name_of(value);
        else if (name == "options")
            options = value;
        else if (name == "replication") {
            if (!check_replication(value, fatal)) return false;
        } else if (name.starts_with("_pq_."))
            out.unknown_extensions.emplace_back(name);
        else
            settings.emplace_back(name, value);
    }
    if (!terminated)
        return refuse(fatal, "08P01",
                      "invalid startup packet layout: expected terminator as last byte");
    if (out.user.empty())
        return refuse(fatal, "28000", "no PostgreSQL user name specified in startup packet");
    if (out.database.empty()) out.database = out.user;
    if (!take_options(options, out, fatal)) return false;
    std::move(settings.begin(), settings.end(), std::back_inserter(out.parameters));
    return true;
}

bool take_packet(std::string_view packet, bool may_encrypt, bool may_gss, Startup &out,
                 Fatal &fatal) {
    const std::uint32_t code = load32(packet.data());
    const std::string_view body = packet.substr(4);
    if (code == cancel_code) {
        if (packet.size() + length_size != cancel_packet)
            return refuse(fatal, "08P01", "invalid length of query cancel packet");
        out.kind = Startup::Kind::cancel;
        out.cancel_pid = load32(body.data());
        out.cancel_secret = load32(body.data() + 4);
        return true;
    }
    if ((code == tls_code && may_encrypt) || (code == gssenc_code && may_gss)) {
        if (!body.empty()) return refuse(fatal, "08P01", "invalid length of startup packet");
        out.kind = code == tls_code ? Startup::Kind::tls : Startup::Kind::gssenc;
        return true;
    }
    const std::uint32_t major = code >> 16U;
    const std::uint32_t minor = code & 0xFFFFU;
    if (major != protocol_version >> 16U)
        return refuse(fatal, "0A000",
                      format("unsupported frontend protocol %u.%u: server supports 3.0 to 3.0",
                             major, minor));
    out.minor_version = static_cast<std::uint16_t>(minor);
    return take_login(body, out, fatal);
}

}  // namespace

StartupState parse_startup(std::string_view input, bool may_encrypt, bool may_gss, Startup &out,
                           Fatal &fatal) {
    out = Startup();
    if (input.size() < length_size) return StartupState::need_more;
    const std::uint32_t length = load32(input.data());
    if (length < length_size + 4 || length > length_size + max_startup_packet) {
        (void)refuse(fatal, "08P01", "invalid length of startup packet");
        return StartupState::refused;
    }
    if (input.size() < length) return StartupState::need_more;
    out.size = length;
    return take_packet(input.substr(length_size, length - length_size), may_encrypt, may_gss, out,
                       fatal)
               ? StartupState::ready
               : StartupState::refused;
}

void append_negotiation(Buffer &out, const Startup &startup) {
    FrameWriter frame(out, 'v');
    frame.int32(protocol_version)
        .int32(static_cast<std::uint32_t>(startup.unknown_extensions.size()));
    for (const std::string &name : startup.unknown_extensions)
        frame.string(name);
}

void append_fatal(Buffer &out, const Fatal &fatal) {
    FrameWriter frame(out, 'E');
    frame.bytes("S").string("FATAL").bytes("V").string("FATAL");
    frame.bytes("C").string(fatal.sqlstate).bytes("M").string(fatal.message);
    if (!fatal.detail.empty()) frame.bytes("D").string(fatal.detail);
    if (!fatal.hint.empty()) frame.bytes("H").string(fatal.hint);
    frame.bytes(std::string_view("\0", 1));
}

std::vector<std::string> split_options(std::string_view options) {
    std::vector<std::string> words;
    std::size_t at = 0;
    for (;;) {
        while (at < options.size() && is_space(options[at]))
            ++at;
        if (at == options.size()) return words;
        std::string &word = words.emplace_back();
        for (bool escaped = false; at < options.size(); ++at) {
            const char c = options[at];
            if (!escaped && is_space(c)) break;
            if (!escaped && c == '\\') {
                escaped = true;
            } else {
                word += c;
                escaped = false;
            }
        }
    }
}

}  // namespace interlock::wire
