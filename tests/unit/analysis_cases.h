// Table-driven cases of the single-shard analysis: a statement, and what must come of it.
#pragma once

#include "fixtures.h"
#include "sql/analysis.h"

#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace interlock::test {

/// account(account_id bigint, owner, balance, version), event, app.event, app."order" (bigint);
/// device (uuid), person (text), blob (bytea), narrow (smallint); one declared function.
inline const RouteTable &analysis_table() {
    static const std::shared_ptr<const RouteTable> table = [] {
        CatalogRows rows = reference_rows();
        rows.functions = {{"public", "total"}, {"app", "fee"}};
        return build(rows);
    }();
    return *table;
}

inline Result<std::vector<sql::StatementFacts>, Refusal>
analyse_text(std::string_view text, const std::vector<std::string> &path = {"public"}) {
    sql::Shape shape;
    sql::make_shape(text, shape);
    return sql::analyse(text, shape, {analysis_table(), path});
}

/// "L0 P1" : literal 0, parameter $2. L literal (-L with a minus), P parameter, A array parameter,
/// T array text, N null; "!" must be declared with a type, "=" is assigned; ":20" the type it is
/// cast to; "@name" the table whose key it is, where it is not account.
inline std::string describe_keys(const sql::Facts &facts) {
    std::string text;
    for (const sql::KeySource &key : facts.keys) {
        if (!text.empty()) text += ' ';
        if (key.negative) text += '-';
        text += "LPATN"[static_cast<int>(key.from)];
        if (key.from != sql::KeySource::From::null) text += std::to_string(key.index);
        if (key.typed) text += '!';
        if (key.assigned) text += '=';
        if (key.cast != 0) text += ":" + std::to_string(key.cast);
        const Table &table = analysis_table().tables[key.table];
        if (table.sql_name != "public.account") text += "@" + table.sql_name;
    }
    return text.empty() ? "any" : text;
}

/// The keys of an accepted text's statements, parted by "; ", or code and position of its refusal:
/// "R10 at 15". "R10 at 15 or all shards": refused unless scatters are allowed.
inline std::string judge(std::string_view text, const std::vector<std::string> &path = {"public"}) {
    const auto result = analyse_text(text, path);
    if (!result) {
        const Refusal &refusal = result.error();
        return std::string(code_entry(refusal.code).name) + " at " +
               std::to_string(refusal.position);
    }
    std::string out;
    for (const sql::StatementFacts &statement : *result) {
        out += out.empty() ? "" : "; ";
        const sql::Scatter *scatter = statement.facts.scatter.get();
        if (scatter == nullptr)
            out += describe_keys(statement.facts);
        else if (scatter->unless_allowed == nullptr)
            out += "all shards";
        else
            out += std::string(code_entry(scatter->unless_allowed->code).name) + " at " +
                   std::to_string(scatter->unless_allowed->position) + " or all shards";
    }
    return out;
}

struct Judged {
    const char *text;
    const char *expected;
};

inline void PrintTo(const Judged &judged, std::ostream *out) {
    *out << judged.text;
}

class Analysis : public ::testing::TestWithParam<Judged> {};

}  // namespace interlock::test
