#include "sql/index_page.h"

#include <algorithm>

namespace interlock::sql {

namespace {

using Parameter = PageCall::Parameter;

std::string_view name_of(Parameter parameter) {
    switch (parameter) {
    case Parameter::scope: return "scope";
    case Parameter::after: return "after";
    case Parameter::before: return "before";
    }
    return {};
}

// From the second round on the place to go on from is the router's own.
bool kept(const PageCall::Argument &argument, const EntryWish &wish) {
    return wish.cursor.empty() || argument.parameter == Parameter::scope;
}

// Cursors are base64url; what is none would do no harm.
void append_literal(std::string &out, std::string_view text) {
    out += '\'';
    for (const char c : text) {
        if (c == '\'') out += c;
        out += c;
    }
    out += '\'';
}

}  // namespace

std::string entries_text(const PageCall &call, std::string_view text, const GlobalIndex &index,
                         const EntryWish &wish) {
    std::string out = "SELECT interlock.hash_key((p.item)." + index.shard_key_sql +
                      ")::pg_catalog.text, p.cursor, pg_catalog.encode(p.sort_key, 'hex') FROM "
                      "interlock.keyset_page('interlock_index." +
                      index.name + "', NULL::" + index.sql_name;
    for (const PageCall::Argument &argument : call.arguments) {
        if (!kept(argument, wish)) continue;
        out.append(", ").append(name_of(argument.parameter)).append(" => (");
        out.append(text.substr(argument.offset, argument.length)).append(")");
    }
    if (!wish.cursor.empty()) {
        out.append(", ").append(wish.backward ? "before" : "after").append(" => ");
        append_literal(out, wish.cursor);
    }
    return out + ", page_size => " + std::to_string(wish.size) + ") AS p";
}

bool entries_use(const PageCall &call, const EntryWish &wish, std::uint32_t number) {
    return std::any_of(call.arguments.begin(), call.arguments.end(),
                       [&](const PageCall::Argument &argument) {
                           return kept(argument, wish) &&
                                  std::find(argument.parameters.begin(), argument.parameters.end(),
                                            number) != argument.parameters.end();
                       });
}

std::string rows_text(const Scatter &scatter, std::string_view text,
                      std::span<const std::string> cursors) {
    const PageCall &call = scatter.call;
    std::string array = "{";
    for (const std::string &cursor : cursors) {
        if (array.size() > 1) array += ',';
        array += cursor;
    }
    array += '}';
    std::string last = ", cursors => ";
    append_literal(last, array);
    std::vector<TextEdit> edits = scatter.edits;
    edits.push_back({call.name_offset, call.name_length, "keyset_rows"});
    edits.push_back({call.close, 0, std::move(last)});
    if (call.nameless) edits.push_back({call.close + 1, 0, " AS keyset_page"});
    std::stable_sort(edits.begin(), edits.end(),
                     [](const TextEdit &a, const TextEdit &b) { return a.offset < b.offset; });
    return edited(text, edits);
}

}  // namespace interlock::sql
