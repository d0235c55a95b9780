#include "tools/lint.h"

#include <iostream>
#include <map>
#include <sstream>

#include <boost/program_options.hpp>

#include "base/command_line.h"
#include "base/startup_error.h"
#include "plan/describe.h"
#include "sql/raw_tokens.h"
#include "tools/route_source.h"

namespace po = boost::program_options;

namespace interlock {

namespace {

po::options_description lint_flags() {
    po::options_description flags = judging_flags();
    flags.add_options()("quiet,q", "print the summary only");
    return flags;
}

/// psql's own commands (\\set, \\connect) become blanks, so that all places stay what they are.
void blank_psql_commands(std::string &text) {
    bool between = true;  // statements
    sql::RawTokens tokens(text);
    std::vector<std::size_t> commands;
    for (auto token = tokens.next(); token.kind != sql::RawToken::Kind::end;
         token = tokens.next()) {
        if (token.kind == sql::RawToken::Kind::comment) continue;
        if (between && token.text == "\\") {
            commands.push_back(token.offset);
            const std::size_t end = std::min(text.find('\n', token.offset), text.size());
            for (std::size_t i = token.offset; i < end; ++i)
                text[i] = ' ';
            // The scanner goes on behind the blanks: it reads the same text.
            continue;
        }
        between = token.text == ";";
    }
}

/// The schemas of SET search_path's value as the analysis gives it: 'a', 'B'.
std::string unquoted_list(const std::string &value) {
    std::string list;
    for (std::size_t i = 0; i < value.size(); ++i) {
        if (value[i] != '\'') {
            list += value[i];
            continue;
        }
        list += '"';
        for (++i; i < value.size(); ++i) {
            if (value[i] == '\'') {
                if (i + 1 >= value.size() || value[i + 1] != '\'') break;
                ++i;
            }
            if (value[i] == '"') list += '"';
            list += value[i];
        }
        list += '"';
    }
    return list;
}

/// A file's SET search_path counts for what follows it.
void follow_search_path(const std::string &statement, const RouteTable &routes,
                        const po::variables_map &given, std::vector<std::string> &path) {
    sql::Shape shape;
    sql::make_shape(statement, shape);
    const auto analysed = sql::analyse(statement, shape, {routes, path});
    if (!analysed) return;
    for (const sql::StatementFacts &each : *analysed) {
        const sql::Facts &facts = each.facts;
        if (facts.name != "search_path") continue;
        const std::string user = given.count("user") ? given["user"].as<std::string>() : "";
        if (facts.action == sql::Action::reset) path = search_path_of(given);
        if (facts.action != sql::Action::set && facts.action != sql::Action::set_local) continue;
        if (auto schemas = sql::split_search_path(unquoted_list(facts.value), user))
            path = std::move(*schemas);
    }
}

void print_refusal(const std::string &file, const std::string &text, std::size_t offset,
                   std::string_view statement, const Refusal &refusal) {
    const auto position = static_cast<std::size_t>(std::max(refusal.position, 1));
    // Characters before the statement, then those in it.
    std::size_t before = 0;
    for (std::size_t i = 0; i < offset; ++i)
        before += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 ? 1 : 0;
    const Place place = place_of(text, before + position);
    std::cout << file << ':' << place.line << ':' << place.column << ": "
              << code_entry(refusal.code).name << " (" << refusal.state()
              << "): " << refusal.message << '\n'
              << show_place(statement, position, "    ");
    if (!refusal.detail.empty()) std::cout << "    DETAIL:  " << refusal.detail << '\n';
    if (!refusal.hint.empty()) std::cout << "    HINT:  " << refusal.hint << '\n';
}

}  // namespace

int run_lint(const std::vector<std::string> &args) {
    std::vector<std::string> files;
    const po::variables_map given = parse_flags(args, lint_flags(), &files);
    if (files.empty())
        throw StartupError("no file is given", "Use interlock lint FILE; - is standard input.");
    const bool quiet = given.count("quiet") != 0;
    const std::vector<std::string> first_path = search_path_of(given);
    std::vector<std::string> texts;
    for (const std::string &file : files)
        texts.push_back(read_text(file));
    const auto routes = read_route_table(given);

    std::size_t accepted = 0;
    std::size_t refused = 0;
    std::size_t all_shards = 0;
    std::map<std::string, std::size_t> by_code;
    for (std::size_t i = 0; i < files.size(); ++i) {
        std::string &text = texts[i];
        std::vector<std::string> path = first_path;
        blank_psql_commands(text);
        for (const sql::TextPart &part : sql::split_statements(text)) {
            const std::string statement = text.substr(part.offset, part.length);
            const RouteDescription found = explain_route(statement, {*routes, path}, {}, true);
            if (!found.refusal) {
                ++accepted;
                if (found.all_shards) ++all_shards;
                follow_search_path(statement, *routes, given, path);
                continue;
            }
            ++refused;
            ++by_code[std::string(code_entry(found.refusal->code).name)];
            if (!quiet) print_refusal(files[i], text, part.offset, statement, *found.refusal);
        }
    }
    std::cout << accepted + refused << (accepted + refused == 1 ? " statement: " : " statements: ")
              << accepted << " accepted, " << refused << " refused\n";
    if (all_shards > 0) std::cout << "    on all shards  " << all_shards << '\n';
    for (const auto &[code, count] : by_code)
        std::cout << "    " << code << "  " << count << '\n';
    return refused > 0 ? 1 : 0;
}

std::string lint_help() {
    std::ostringstream out;
    out << "Usage: interlock lint [OPTION]... FILE...\n"
           "\n"
           "Judges every statement of the files as the router's PostgreSQL listener would, prints\n"
           "each one that is refused with its place, its code and the rewrite, and a summary by\n"
           "code. Values of parameters ($1) are not needed. psql's own commands (lines that begin\n"
           "with a backslash) are skipped; SET search_path counts for what follows it. Nothing is\n"
           "run; only the catalog is read.\n"
           "\n"
        << lint_flags()
        << "\nExit status: 0 all accepted, 1 some refused (or a file or the catalog cannot be\n"
           "read), 2 the command line is wrong.\n";
    return out.str();
}

}  // namespace interlock
