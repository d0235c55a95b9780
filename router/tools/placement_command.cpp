#include "tools/placement_command.h"

#include <charconv>
#include <iostream>
#include <map>
#include <sstream>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/startup_error.h"
#include "placement.h"
#include "route/key.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

const std::map<std::string, KeyType> &key_types() {
    static const std::map<std::string, KeyType> types{
        {"smallint", KeyType::int2}, {"int2", KeyType::int2},
        {"integer", KeyType::int4},  {"int", KeyType::int4},
        {"int4", KeyType::int4},     {"bigint", KeyType::int8},
        {"int8", KeyType::int8},     {"uuid", KeyType::uuid},
        {"text", KeyType::text},     {"varchar", KeyType::text},
        {"bytea", KeyType::bytea},   {"character varying", KeyType::text},
    };
    return types;
}

po::options_description placement_flags() {
    po::options_description flags("Options", 100, 50);
    flags.add_options()("key-type", po::value<std::string>()->value_name("TYPE"),
                        "smallint, integer, bigint, uuid, text, varchar or bytea; required")(
        "buckets", po::value<std::string>()->value_name("N"),
        "number of buckets, 1 to 65536; required")("help,h", "this text");
    return flags;
}

}  // namespace

int run_placement(const std::vector<std::string> &args) {
    const po::variables_map given = parse_flags(args, placement_flags());
    for (const char *flag : {"key-type", "buckets"})
        if (!given.count(flag))
            throw StartupError(std::string("option \"--") + flag + "\" is missing");
    const std::string type_name = given["key-type"].as<std::string>();
    const auto type = key_types().find(type_name);
    if (type == key_types().end())
        throw StartupError("\"" + type_name + "\" is no type of a key",
                           "Use smallint, integer, bigint, uuid, text, varchar or bytea.");
    const std::string text = given["buckets"].as<std::string>();
    std::int32_t buckets = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), buckets);
    if (error != std::errc{} || end != text.data() + text.size() ||
        buckets < placement::min_buckets || buckets > placement::max_buckets)
        throw StartupError("option \"--buckets\" must be from 1 to 65536, not \"" + text + "\"");

    std::ios::sync_with_stdio(false);
    std::cin.tie(nullptr);
    std::string line;
    for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
        const std::optional<Key> key = parse_key(type->second, line);
        if (!key) {
            std::cout.flush();
            std::cerr << "ERROR:  line " << number << " is no key of type " << type_name << '\n';
            return 1;
        }
        std::cout << placement::bucket_of_hash(key->hash, buckets) << '\n';
    }
    std::cout.flush();
    if (std::cin.bad() || !std::cout) {
        std::cerr << "ERROR:  could not read or write\n";
        return 1;
    }
    return 0;
}

std::string placement_help() {
    std::ostringstream out;
    out << "Usage: interlock placement --key-type TYPE --buckets N < KEYS\n"
           "\n"
           "Reads one key a line, in the type's text form, and prints its bucket: the same number\n"
           "that interlock.bucket_of() gives on a shard.\n"
           "\n"
        << placement_flags()
        << "\nExit status: 0 done, 1 a line is no key of that type, 2 the "
           "command line is wrong.\n";
    return out.str();
}

}  // namespace interlock
