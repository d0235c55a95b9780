// Fuzz target: the input is a statement's text. Whatever it is, the strict profile refuses it with
// a code and a place in the text, or accepts it and writes SQL made of known words alone.
#include "../unit/fixtures.h"
#include "check.h"
#include "sql/strict.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace interlock;

std::size_t characters(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }));
}

/// Every word that generated SQL may hold: the grammar's and the names of the statement's table.
std::vector<std::string> vocabulary(const Table &table) {
    std::vector<std::string> words = {"select", "from",   "where",    "and",        "any",
                                      "array",  "update", "set",      "delete",     "insert",
                                      "into",   "values", "operator", "pg_catalog."};
    words.push_back(table.sql_name);
    for (const Column &column : table.columns)
        words.push_back(column.sql_name);
    return words;
}

bool punctuation(char c) {
    return std::string_view(" *,()[]=+-").find(c) != std::string_view::npos;
}

/// Takes the generated SQL apart without the scanner: known words between punctuation, and $1, $2,
/// ... in this order.
void check_generated(const sql::Statement &statement) {
    const std::vector<std::string> words = vocabulary(*statement.table);
    std::string_view rest = statement.text;
    std::size_t parameters = 0;
    while (!rest.empty()) {
        if (punctuation(rest.front())) {
            HOLDS(!rest.starts_with("--"));
            rest.remove_prefix(1);
            continue;
        }
        std::size_t end = 0;
        while (end < rest.size() && !punctuation(rest[end]))
            ++end;
        const std::string_view word = rest.substr(0, end);
        if (word.front() == '$')
            HOLDS(word == "$" + std::to_string(++parameters));
        else
            HOLDS(std::find(words.begin(), words.end(), word) != words.end());
        rest.remove_prefix(end);
    }
    HOLDS(parameters == statement.parameters.size());
}

void check_accepted(std::string_view text, const sql::Statement &statement) {
    // Nothing that could carry a value, a comment or a second statement is in what is accepted.
    HOLDS(text.find_first_of("'\";\\$") == std::string_view::npos);
    HOLDS(text.find("--") == std::string_view::npos);
    HOLDS(text.find("/*") == std::string_view::npos);
    if (statement.transaction_control()) {
        HOLDS(statement.table == nullptr && statement.text.empty());
        HOLDS(statement.parameters.empty() && statement.keys.empty());
        return;
    }
    HOLDS(statement.table != nullptr);
    const auto marks = static_cast<std::size_t>(std::count(text.begin(), text.end(), '?'));
    HOLDS(statement.parameters.size() == marks);
    for (const auto &parameter : statement.parameters)
        HOLDS(parameter.column < statement.table->columns.size());
    HOLDS(!statement.keys.empty());
    HOLDS(std::is_sorted(statement.keys.begin(), statement.keys.end()));
    for (const std::uint16_t key : statement.keys) {
        HOLDS(key < statement.parameters.size());
        HOLDS(statement.parameters[key].column == statement.table->key_column);
        HOLDS(!statement.parameters[key].operand);
    }
    check_generated(statement);
    HOLDS(statement.writes() == !statement.text.starts_with("select"));
}

bool same(const sql::Statement &a, const sql::Statement &b) {
    return a.kind == b.kind && a.table == b.table && a.text == b.text && a.keys == b.keys &&
           a.parameters.size() == b.parameters.size();
}

std::string replaced(std::string text, const std::string &what, const std::string &by) {
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
        text.replace(at, what.size(), by);
    return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char *>(data), size);
    const auto statement = test::analyse(text);
    const auto again = test::analyse(text);
    HOLDS(statement.ok() == again.ok());
    if (!statement) {
        const Refusal &refusal = statement.error();
        HOLDS(refusal.code == again.error().code && refusal.message == again.error().message);
        HOLDS(!refusal.message.empty());
        HOLDS(refusal.position >= 1);
        HOLDS(static_cast<std::size_t>(refusal.position) <= characters(text) + 1);
        return 0;
    }
    HOLDS(same(*statement, *again));
    check_accepted(text, *statement);

    // What was written says the same when it is put back into the profile's own spelling.
    if (statement->transaction_control() || statement->text.find('"') != std::string::npos)
        return 0;
    std::string written = replaced(statement->text, "operator(pg_catalog.=) any (array[", "in (");
    written = replaced(written, "])", ")");
    for (const char *sign : {"=", "+", "-"})
        written = replaced(written, std::string("operator(pg_catalog.") + sign + ")", sign);
    for (std::size_t parameter = statement->parameters.size(); parameter > 0; --parameter)
        written = replaced(written, "$" + std::to_string(parameter), "?");
    const auto rewritten = test::analyse(written);
    HOLDS(rewritten.ok() && same(*statement, *rewritten));
    return 0;
}
