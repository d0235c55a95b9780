// Statements that all shards answer together: what is put into their texts, and what is refused.
#include "analysis_cases.h"

namespace interlock::test {
namespace {

/// The text the shards get, or code, position and message of the refusal.
std::string sent(std::string_view text) {
    const auto result = analyse_text(text);
    const Refusal *refusal = result ? nullptr : &result.error();
    if (refusal != nullptr && refusal->as_scatter != nullptr) refusal = refusal->as_scatter.get();
    if (refusal != nullptr)
        return std::string(code_entry(refusal->code).name) + " at " +
               std::to_string(refusal->position) + ": " + refusal->message;
    const auto &scatter = result->front().facts.scatter;
    return scatter == nullptr ? "one shard" : sql::edited(text, scatter->edits);
}

/// Of a text that all shards answer.
std::shared_ptr<const sql::Scatter> scatter_of(std::string_view text) {
    const auto result = analyse_text(text);
    EXPECT_TRUE(result) << text;
    if (!result) return std::make_shared<sql::Scatter>();
    const auto &found = result->front().facts.scatter;
    EXPECT_NE(found, nullptr) << text;
    return found == nullptr ? std::make_shared<sql::Scatter>() : found;
}

struct Sent {
    const char *text;
    const char *edited;
};
void PrintTo(const Sent &sent, std::ostream *out) {
    *out << sent.text;
}

class Edits : public ::testing::TestWithParam<Sent> {};

TEST_P(Edits, AreExact) {
    EXPECT_EQ(sent(GetParam().text), GetParam().edited);
}

#define KEY(parts) "pg_catalog.encode(" parts ", 'hex') AS \"interlock:0\""
#define ID "interlock.sort_key(\"account\".\"account_id\", false, false)"
#define OWNED "interlock.owned('main', \"account\".\"account_id\")"

const Sent ordered_texts[] = {
    {"select * from account order by account_id limit 10",
     "select *, " KEY(ID) " from account WHERE " OWNED " order by account_id limit 10"},
    {"select a.owner as o, balance b from account as a where owner = $1 or false -- x\n order by o "
     "desc, b limit $2 offset $3;",
     "select a.owner as o, balance b, " KEY(
         "interlock.sort_key(\"a\".\"owner\", true, true) OPERATOR(pg_catalog.||) "
         "interlock.sort_key(\"a\".\"balance\", false, false)") " from account as a where (owner = "
                                                                "$1 or false) AND "
                                                                "interlock.owned('main', "
                                                                "\"a\".\"account_id\") -- x\n "
                                                                "order by o desc, b "
                                                                "limit (($2)::pg_catalog.int8 "
                                                                "OPERATOR(pg_catalog.+) "
                                                                "COALESCE(($3)::pg_catalog.int8, "
                                                                "0)) "
                                                                "offset (0);"},
    {"select owner from account order by lower(owner) desc nulls last, account_id fetch first 5 "
     "rows only",
     "select owner, " KEY("interlock.sort_key((lower(owner)), true, false) "
                          "OPERATOR(pg_catalog.||) " ID) " from account WHERE " OWNED
                                                         " order by lower(owner) desc nulls last, "
                                                         "account_id fetch first 5 rows only"},
};
INSTANTIATE_TEST_SUITE_P(Ordered, Edits, ::testing::ValuesIn(ordered_texts));

TEST(ScatterFacts, OfAnOrderedStatement) {
    const auto scatter = scatter_of("select owner from account order by owner collate \"C\", "
                                    "account_id limit $1");
    EXPECT_EQ(scatter->kind, sql::ScatterKind::ordered);
    EXPECT_EQ(scatter->hidden, 1);
    EXPECT_EQ(scatter->order_columns, (std::vector<std::string>{"owner", "account_id"}));
    EXPECT_FALSE(scatter->text_order);
    EXPECT_EQ(scatter->limit.from, sql::ValueSource::From::parameter);
    ASSERT_NE(scatter->unless_allowed, nullptr);
    EXPECT_EQ(scatter->unless_allowed->code, Code::R10);
    EXPECT_NE(scatter->unless_allowed->hint.find("interlock: scatter"), std::string::npos);
}

}  // namespace
}  // namespace interlock::test
