// What a session allows its scatters.
#include "session/scatter_budget.h"

#include <gtest/gtest.h>

#include <map>

namespace interlock {
namespace {

using Bound = SessionBudget::Bound;

struct Session {
    std::map<std::string, std::string, std::less<>> values;
    [[nodiscard]] SessionValue value() const {
        return [this](std::string_view name) -> const std::string * {
            const auto found = values.find(name);
            return found == values.end() ? nullptr : &found->second;
        };
    }
    [[nodiscard]] SessionBudget budget(const sql::Scatter &scatter,
                                       const Settings &settings = {}) const {
        return session_budget(scatter, settings, value());
    }
};

sql::Scatter of_kind(sql::ScatterKind kind) {
    sql::Scatter scatter;
    scatter.kind = kind;
    return scatter;
}

const sql::Scatter ordered = of_kind(sql::ScatterKind::ordered);
const sql::Scatter page = of_kind(sql::ScatterKind::keyset_page);

TEST(ScatterBudget, TimesAreReadAsShowSpellsThem) {
    EXPECT_EQ(shown_time("0"), 0);
    EXPECT_EQ(shown_time("300"), 300);
    EXPECT_EQ(shown_time("300ms"), 300);
    EXPECT_EQ(shown_time("5s"), 5000);
    EXPECT_EQ(shown_time("2min"), 120000);
    EXPECT_EQ(shown_time("3h"), 3 * 3600000);
    EXPECT_EQ(shown_time("1d"), 86400000);
    EXPECT_EQ(shown_time("2147483647ms"), 2147483647);
    for (const char *text : {"", "s", "-1", "5 s", "5sec", "5ss", "99999999999"})
        EXPECT_EQ(shown_time(text), std::nullopt) << text;
}

TEST(ScatterBudget, ASessionThatSetsNothingHasTheRoutersBounds) {
    Settings settings;
    settings.scatter_timeout = 5000;
    settings.scatter_max_fan_out = 64;
    settings.scatter_max_rows = 10;
    settings.scatter_max_groups = 20;
    const SessionBudget found = Session{}.budget(ordered, settings);
    EXPECT_EQ(found.budget.timeout, 5000);
    EXPECT_EQ(found.timeout_of, Bound::page);
    EXPECT_EQ(found.budget.max_fan_out, 64U);
    EXPECT_EQ(found.budget.max_rows, 10U);
    EXPECT_FALSE(found.budget.partial);
    EXPECT_EQ(Session{}.budget(of_kind(sql::ScatterKind::aggregate), settings).budget.max_rows,
              20U);
}

TEST(ScatterBudget, ASessionNarrowsAndNeverWidens) {
    Session session{{{"interlock.max_fan_out", "3"}, {"interlock.page_timeout", "300ms"}}};
    EXPECT_EQ(session.budget(page).budget.max_fan_out, 3U);
    EXPECT_EQ(session.budget(page).budget.timeout, 300);
    session.values = {{"interlock.max_fan_out", "1000"}, {"interlock.page_timeout", "1h"}};
    EXPECT_EQ(session.budget(page).budget.max_fan_out, 64U);
    EXPECT_EQ(session.budget(page).budget.timeout, 5000);
    session.values = {{"interlock.max_fan_out", "0"}, {"interlock.page_timeout", "0"}};
    EXPECT_EQ(session.budget(page).budget.max_fan_out, 64U);
    EXPECT_EQ(session.budget(page).budget.timeout, 5000);
    Settings unbound;
    unbound.scatter_max_fan_out = 0;
    unbound.scatter_timeout = 0;
    unbound.statement_timeout = 0;
    EXPECT_EQ(session.budget(page, unbound).budget.max_fan_out, 0U);
    EXPECT_EQ(session.budget(page, unbound).budget.timeout, 0);
    session.values = {{"interlock.max_fan_out", "7"}, {"interlock.page_timeout", "1h"}};
    EXPECT_EQ(session.budget(page, unbound).budget.max_fan_out, 7U);
    EXPECT_EQ(session.budget(page, unbound).budget.timeout, 3600000);
}

TEST(ScatterBudget, TheShortestTimeHoldsAndSaysWhoseItIs) {
    Session session{{{"statement_timeout", "2s"}}};
    EXPECT_EQ(session.budget(page).budget.timeout, 2000);
    EXPECT_EQ(session.budget(page).timeout_of, Bound::session);
    session.values["interlock.page_timeout"] = "1s";
    EXPECT_EQ(session.budget(page).timeout_of, Bound::page);
    session.values["interlock.page_timeout"] = "2s";  // of equals, the one about pages
    EXPECT_EQ(session.budget(page).timeout_of, Bound::page);
    session.values = {{"statement_timeout", "0"}};
    EXPECT_EQ(session.budget(page).timeout_of, Bound::page);
    Settings hasty;
    hasty.statement_timeout = 100;
    EXPECT_EQ(session.budget(page, hasty).budget.timeout, 100);
    EXPECT_EQ(session.budget(page, hasty).timeout_of, Bound::statement);
}

TEST(ScatterBudget, OnlyPagesMayBePartial) {
    const Session session{{{"interlock.partial_pages", "on"}}};
    EXPECT_TRUE(session.budget(page).budget.partial);
    EXPECT_FALSE(session.budget(ordered).budget.partial);
    EXPECT_FALSE(session.budget(of_kind(sql::ScatterKind::aggregate)).budget.partial);
    sql::Scatter hinted = page;
    hinted.partial_by_hint = true;
    EXPECT_TRUE(Session{}.budget(hinted).budget.partial);
    const Session off{{{"interlock.partial_pages", "off"}}};
    EXPECT_FALSE(off.budget(page).budget.partial);
}

TEST(ScatterBudget, AScatterIsAllowedByItselfOrByTheSession) {
    sql::Scatter scatter = ordered;
    EXPECT_TRUE(scatter_allowed(scatter, Session{}.value()));
    scatter.unless_allowed = std::make_shared<const Refusal>(make_refusal(Code::R10, "no key"));
    EXPECT_FALSE(scatter_allowed(scatter, Session{}.value()));
    const Session on{{{"interlock.scatter", "on"}}};
    EXPECT_TRUE(scatter_allowed(scatter, on.value()));
    const Session off{{{"interlock.scatter", "off"}}};
    EXPECT_FALSE(scatter_allowed(scatter, off.value()));
}

TEST(ScatterBudget, WhyAStatementCannotBeOneIsToldWhereTheyAreAllowed) {
    Refusal refusal = make_refusal(Code::R10, "no key");
    const Session on{{{"interlock.scatter", "on"}}};
    EXPECT_EQ(told_session(refusal, on.value()).code, Code::R10);
    refusal.as_scatter =
        std::make_shared<const Refusal>(make_refusal(Code::scatter_unsupported, "a join"));
    EXPECT_EQ(told_session(refusal, on.value()).code, Code::scatter_unsupported);
    EXPECT_EQ(told_session(refusal, Session{}.value()).code, Code::R10);
}

TEST(ScatterBudget, TheLastIsolationLevelNamedCounts) {
    EXPECT_EQ(names_read_committed("BEGIN"), std::nullopt);
    EXPECT_EQ(names_read_committed("START TRANSACTION READ ONLY, DEFERRABLE"), std::nullopt);
    EXPECT_EQ(names_read_committed("begin isolation level read committed"), true);
    EXPECT_EQ(names_read_committed("BEGIN ISOLATION LEVEL READ UNCOMMITTED"), true);
    EXPECT_EQ(names_read_committed("BEGIN ISOLATION LEVEL REPEATABLE READ"), false);
    EXPECT_EQ(names_read_committed("BEGIN ISOLATION LEVEL SERIALIZABLE /* read committed */"),
              false);
    EXPECT_EQ(
        names_read_committed("BEGIN ISOLATION LEVEL SERIALIZABLE, ISOLATION LEVEL READ COMMITTED"),
        true);
    EXPECT_EQ(names_read_committed("repeatable read"), false);
    EXPECT_EQ(names_read_committed("SET LOCAL transaction_isolation = 'Read Committed'"), true);
    EXPECT_EQ(names_read_committed("SET transaction_isolation TO \"read uncommitted\""), true);
    EXPECT_EQ(names_read_committed("SET LOCAL transaction_isolation = 'repeatable read'"), false);
    EXPECT_EQ(names_read_committed("SET transaction_isolation = E'repeatable\\x20read'"), false);
}

}  // namespace
}  // namespace interlock
