// The cache of analysed shapes: bounds, order of giving up, change of tables.
#include "sql/shape_cache.h"

#include "fixtures.h"

#include <gtest/gtest.h>

namespace interlock::sql {
namespace {

std::shared_ptr<const Statement> statement(const std::string &text) {
    auto made = std::make_shared<Statement>();
    made->text = text;
    return made;
}

class ShapeCacheTest : public testing::Test {
  protected:
    void add(const std::string &text) { cache_.insert(text, table_, statement(text)); }
    bool has(const std::string &text) { return cache_.find(text, table_) != nullptr; }

    std::shared_ptr<const RouteTable> table_ = test::build(test::reference_rows());
    ShapeCache cache_{3, 16};
};

TEST_F(ShapeCacheTest, FindsWhatWasInserted) {
    EXPECT_EQ(cache_.find("a", table_), nullptr);
    add("a");
    const auto found = cache_.find("a", table_);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->text, "a");
    EXPECT_FALSE(has("A"));
    EXPECT_FALSE(has("a "));
    EXPECT_FALSE(has(""));
}

TEST_F(ShapeCacheTest, GivesUpTheLeastRecentlyUsed) {
    add("a");
    add("b");
    add("c");
    EXPECT_TRUE(has("a"));  // now b is the oldest
    add("d");
    EXPECT_EQ(cache_.size(), 3U);
    EXPECT_FALSE(has("b"));
    EXPECT_TRUE(has("a"));
    EXPECT_TRUE(has("c"));
    EXPECT_TRUE(has("d"));
}

TEST_F(ShapeCacheTest, KeepsItsBoundsWhateverComes) {
    for (int i = 0; i < 1000; ++i) {
        add("text " + std::to_string(i));
        EXPECT_LE(cache_.size(), 3U);
    }
    EXPECT_TRUE(has("text 999"));
    EXPECT_FALSE(has("text 0"));
}

TEST_F(ShapeCacheTest, DoesNotKeepLongTexts) {
    const std::string longest(16, 'x');
    add(longest);
    EXPECT_TRUE(has(longest));
    add(longest + "x");
    EXPECT_FALSE(has(longest + "x"));
    EXPECT_EQ(cache_.size(), 1U);
}

TEST_F(ShapeCacheTest, ASecondInsertChangesNothing) {
    add("a");
    const auto first = cache_.find("a", table_);
    add("a");
    EXPECT_EQ(cache_.find("a", table_), first);
    EXPECT_EQ(cache_.size(), 1U);
}

TEST_F(ShapeCacheTest, ForgetsEverythingUnderAnotherTable) {
    add("a");
    add("b");
    const auto newer = test::build(test::reference_rows());
    EXPECT_EQ(cache_.find("a", newer), nullptr);
    EXPECT_TRUE(has("a"));  // asking alone does not forget
    cache_.insert("a", newer, statement("newer"));
    EXPECT_EQ(cache_.size(), 1U);
    EXPECT_EQ(cache_.find("a", newer)->text, "newer");
    EXPECT_FALSE(has("a"));
    EXPECT_FALSE(has("b"));
}

TEST_F(ShapeCacheTest, AnEntryInUseOutlivesItsEviction) {
    add("a");
    const auto held = cache_.find("a", table_);
    for (const char *text : {"b", "c", "d", "e"})
        add(text);
    EXPECT_FALSE(has("a"));
    EXPECT_EQ(held->text, "a");
    EXPECT_EQ(held.use_count(), 1);
}

TEST_F(ShapeCacheTest, KeepsTheTableAliveThatItsEntriesPointInto) {
    std::weak_ptr<const RouteTable> watched = table_;
    add("a");
    table_.reset();
    EXPECT_FALSE(watched.expired());
    const auto newer = test::build(test::reference_rows());
    cache_.insert("b", newer, statement("b"));
    EXPECT_TRUE(watched.expired());
}

TEST_F(ShapeCacheTest, TheKeyIsTheCachesOwnCopy) {
    {
        std::string text = "short-lived";
        add(text);
        text.assign(text.size(), '#');
    }
    EXPECT_TRUE(has("short-lived"));
}

TEST_F(ShapeCacheTest, WhatWasAnalysedInAnotherContextIsAnotherEntry) {
    cache_.insert("a", table_, statement("of 1"), 1);
    EXPECT_EQ(cache_.find("a", table_), nullptr);
    EXPECT_EQ(cache_.find("a", table_, 2), nullptr);
    cache_.insert("a", table_, statement("of 2"), 2);
    EXPECT_EQ(cache_.size(), 2U);
    EXPECT_EQ(cache_.find("a", table_, 1)->text, "of 1");
    EXPECT_EQ(cache_.find("a", table_, 2)->text, "of 2");
    add("b");
    add("c");  // in the place of the least recently used: of 1
    EXPECT_EQ(cache_.find("a", table_, 1), nullptr);
    EXPECT_EQ(cache_.find("a", table_, 2)->text, "of 2");
}

TEST(FactsCache, KeepsFactsAsItKeepsStatements) {
    const auto table = test::build(test::reference_rows());
    FactsCache cache(2, 100);
    Facts facts;
    facts.keys.push_back({});
    cache.insert("select", table, std::make_shared<const Facts>(facts), 7);
    const auto found = cache.find("select", table, 7);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->keys.size(), 1U);
    EXPECT_EQ(cache.find("select", table), nullptr);
    EXPECT_EQ(cache.find("select", test::build(test::reference_rows()), 7), nullptr);
}

}  // namespace
}  // namespace interlock::sql
