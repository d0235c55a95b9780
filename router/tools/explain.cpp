#include "tools/explain.h"

#include <iostream>
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

po::options_description explain_flags() {
    po::options_description flags = judging_flags();
    flags.add_options()("file,f", po::value<std::string>()->value_name("FILE"),
                        "explain each statement of a file; - is standard input")(
        "param", po::value<std::vector<std::string>>()->value_name("VALUE")->composing(),
        "value of $1, the next one of $2, and so on");
    return flags;
}

}  // namespace

int run_explain(const std::vector<std::string> &args) {
    std::vector<std::string> statements;
    const po::variables_map given = parse_flags(args, explain_flags(), &statements);
    if (given.count("file") != 0 ? !statements.empty() : statements.size() != 1)
        throw StartupError("one statement, or a file of statements, must be given",
                           "Quote the statement as one argument, or use -f FILE.");
    std::vector<BoundParameter> parameters;
    std::vector<std::string> values;
    if (given.count("param")) values = given["param"].as<std::vector<std::string>>();
    for (const std::string &value : values)
        parameters.push_back({value, false, 0});
    const std::vector<std::string> path = search_path_of(given);
    if (given.count("file")) {
        const std::string text = read_text(given["file"].as<std::string>());
        for (const sql::TextPart &part : sql::split_statements(text))
            statements.push_back(text.substr(part.offset, part.length));
    }
    const auto routes = read_route_table(given);

    bool refused = false;
    for (std::size_t i = 0; i < statements.size(); ++i) {
        const RouteDescription found =
            explain_route(statements[i], {*routes, path}, parameters, true);
        if (i > 0) std::cout << '\n';
        if (given.count("file")) std::cout << "statement: " << statements[i] << '\n';
        for (const std::string &line : found.lines)
            std::cout << line << '\n';
        if (!found.refusal) continue;
        refused = true;
        if (found.refusal->position > 0)
            std::cout << show_place(statements[i],
                                    static_cast<std::size_t>(found.refusal->position), "    ");
    }
    return refused ? 1 : 0;
}

std::string explain_help() {
    std::ostringstream out;
    out << "Usage: interlock explain [OPTION]... STATEMENT\n"
           "       interlock explain [OPTION]... -f FILE\n"
           "\n"
           "Tells what the router would do with a statement on its PostgreSQL listener: the plan,\n"
           "the shard and the bucket, and where the shard key comes from; or why it refuses the\n"
           "statement, and how to write it. Nothing is run; only the catalog is read.\n"
           "\n"
        << explain_flags()
        << "\nExit status: 0 accepted, 1 refused (or the catalog cannot be read), 2 the command\n"
           "line is wrong.\n";
    return out.str();
}

}  // namespace interlock
