// How a move's progress is told: rates and times left, and the three styles.
#include <sstream>

#include <gtest/gtest.h>

#include "base/startup_error.h"
#include "tools/move_command.h"
#include "tools/move_options.h"
#include "tools/move_progress.h"

namespace interlock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(ProgressRate, IsOfTheLastTenSeconds) {
    ProgressRate rate;
    const steady_clock::time_point start{};
    EXPECT_EQ(rate.per_second(), 0);
    rate.note(start, 0);
    EXPECT_EQ(rate.seconds_for(100), -1);
    rate.note(start + seconds(2), 200);
    EXPECT_DOUBLE_EQ(rate.per_second(), 100);
    EXPECT_EQ(rate.seconds_for(100), 1);
    EXPECT_EQ(rate.seconds_for(101), 2);
    EXPECT_EQ(rate.seconds_for(-5), 0);
    // What was fast long ago does not make the time left shorter.
    for (int second = 3; second <= 20; ++second)
        rate.note(start + seconds(second), 200 + (second - 2) * 10);
    EXPECT_DOUBLE_EQ(rate.per_second(), 10);
    // What stands still has no end.
    for (int second = 21; second <= 40; ++second)
        rate.note(start + seconds(second), 380);
    EXPECT_EQ(rate.seconds_for(1), -1);
}

class Progress : public testing::Test {
  protected:
    MoveProgress make(ProgressStyle style, std::size_t columns = 200) {
        return MoveProgress(out, lines, style, columns, [this] { return now; });
    }
    static Move move() {
        Move made;
        made.id = "0123abcd-0000-0000-0000-000000000000";
        made.keyspace = "accounts";
        made.buckets = {3, 4, 5};
        made.from = "s0";
        made.to = "s1";
        made.step = "copied";
        return made;
    }
    std::string said() {
        const std::string text = out.str();
        out.str("");
        return text;
    }
    std::string shown() {
        const std::string text = lines.str();
        lines.str("");
        return text;
    }
    std::ostringstream out, lines;
    steady_clock::time_point now{};
};

TEST_F(Progress, ATerminalHasOneLineThatIsWrittenOver) {
    MoveProgress progress = make(ProgressStyle::terminal);
    progress.began(move(), false);
    EXPECT_EQ(said(), "move 0123abcd-0000-0000-0000-000000000000: buckets 3-5 of keyspace accounts "
                      "from s0 to s1\n");
    progress.copying("public.a", 0, 0, 400);
    progress.copying("public.b", 0, 0, 600);
    shown();
    now += seconds(1);
    progress.copying("public.a", 100, 1 << 20, 400);
    EXPECT_EQ(shown(), "\rcopying public.a: 100 of about 1000 rows (10 %), 1.0 MB, 100 rows/s, 9 s "
                       "left\033[K");
    now += milliseconds(50);
    progress.copying("public.a", 101, 1 << 20, 400);
    EXPECT_EQ(shown(), "");  // not more than five times a second
    progress.switched(7, 143);
    EXPECT_EQ(shown(), "\r\033[K");  // before something is said for good
    EXPECT_EQ(said(), "switched at route version 7: writers of the buckets waited 143 ms\n");
    now += seconds(1);
    progress.following(3 << 20, 1 << 20);
    EXPECT_EQ(shown(), "\rfollowing: 3.0 MB behind, 1.0 MB/s, 3 s left\033[K");
    now += seconds(1);
    progress.following(-1, 0);
    EXPECT_EQ(shown(), "\rfollowing: lag not known\033[K");
}

TEST_F(Progress, WhatIsNotEstimatedHasNoShare) {
    MoveProgress progress = make(ProgressStyle::terminal);
    progress.copying("public.a", 0, 0, 400);
    progress.copying("public.b", 0, 0, -1);
    shown();
    now += seconds(1);
    progress.copying("public.a", 100, 1 << 20, 400);
    EXPECT_EQ(shown(), "\rcopying public.a: 100 rows, 1.0 MB, 100 rows/s\033[K");
    now += seconds(1);
    progress.copying("public.b", 100, 1 << 20, 100);  // it is copied
    EXPECT_EQ(shown(), "\rcopying public.b: 200 of about 500 rows (40 %), 2.0 MB, 100 rows/s, 3 s "
                       "left\033[K");
    MoveProgress program = make(ProgressStyle::json);
    program.copying("public.b", 7, 10, -1);
    EXPECT_NE(said().find("\"rows\":7,\"bytes\":10,\"estimate\":null,"), std::string::npos);
}

TEST_F(Progress, ALineIsNoLongerThanTheTerminalIsWide) {
    MoveProgress progress = make(ProgressStyle::terminal, 20);
    progress.copying("public.a", 10, 10, 1000);
    EXPECT_EQ(shown(), "\rcopying public.a: 1\033[K");
}

TEST_F(Progress, ALogGetsALineEveryTenSeconds) {
    MoveProgress progress = make(ProgressStyle::log);
    for (int second = 0; second <= 25; ++second) {
        progress.copying("a", second * 10, 0, 1000);
        now += seconds(1);
    }
    EXPECT_EQ(
        shown(),
        "interlock move: copying a: 100 of about 1000 rows (10 %), 0 B, 10 rows/s, 90 s left\n"
        "interlock move: copying a: 200 of about 1000 rows (20 %), 0 B, 10 rows/s, 80 s "
        "left\n");
}

TEST_F(Progress, AProgramGetsObjects) {
    MoveProgress progress = make(ProgressStyle::json);
    progress.began(move(), true);
    const std::string head = "\"move\":\"0123abcd-0000-0000-0000-000000000000\",\"seconds\":0.000";
    EXPECT_EQ(said(), "{\"event\":\"begin\"," + head +
                          ",\"keyspace\":\"accounts\",\"buckets\":[3,4,5],\"from\":\"s0\",\"to\":"
                          "\"s1\",\"step\":\"copied\",\"resumed\":true}\n");
    progress.copying("a", 1, 2, 1000);
    EXPECT_EQ(said(), "{\"event\":\"copying\"," + head +
                          ",\"table\":\"a\",\"rows\":1,\"bytes\":2,\"estimate\":1000,\"rows_per_"
                          "second\":0,\"seconds_left\":null}\n");
    progress.copying("a", 2, 4, 1000);
    EXPECT_EQ(said(), "");  // not more than once a second
    progress.following(100, 10);
    EXPECT_EQ(said(), "{\"event\":\"following\"," + head +
                          ",\"lag_bytes\":100,\"bytes_per_second\":10,\"seconds_left\":10}\n");
    MoveHolder holder;
    holder.gid = "it's \"one\"";
    progress.holding_up({holder});
    EXPECT_NE(said().find("{\"pid\":null,\"user\":\"\",\"application\":\"\",\"state\":\"\","
                          "\"since\":\"\",\"gid\":\"it's \\\"one\\\"\"}"),
              std::string::npos);
    progress.found({{MoveFinding::Severity::refuse, "a", "b", "c"}});
    EXPECT_EQ(said(), "{\"event\":\"finding\"," + head +
                          ",\"severity\":\"refuse\",\"what\":\"a\",\"detail\":\"b\",\"mend\":\"c\"}"
                          "\n");
    progress.ended(MoveResult::given_up);
    EXPECT_EQ(said(), "{\"event\":\"end\"," + head + ",\"result\":\"given_up\"}\n");
    EXPECT_EQ(shown(), "");
}

TEST_F(Progress, APauseThatNobodyHasMeasuredIsNotTold) {
    // Another mover has fenced and decided; this one knows only that it is over.
    const auto told = [this](ProgressStyle style, std::int64_t pause_ms) {
        MoveProgress progress = make(style);
        progress.switched(7, pause_ms);
        return said();
    };
    EXPECT_EQ(told(ProgressStyle::log, -1), "switched at route version 7\n");
    EXPECT_EQ(told(ProgressStyle::log, 0),
              "switched at route version 7: writers of the buckets waited 0 ms\n");
    const std::string head = "{\"event\":\"switched\",\"move\":\"\",\"seconds\":0.000,";
    EXPECT_EQ(told(ProgressStyle::json, -1), head + "\"route_version\":7,\"pause_ms\":null}\n");
    EXPECT_EQ(told(ProgressStyle::json, 143), head + "\"route_version\":7,\"pause_ms\":143}\n");
}

TEST_F(Progress, WhoHoldsItUpIsSaidOnceAndTheEndSaysHowToGoOn) {
    MoveProgress progress = make(ProgressStyle::log);
    progress.began(move(), false);
    MoveHolder holder;
    holder.pid = 4711;
    holder.user = "app";
    holder.state = "idle in transaction";
    progress.holding_up({holder});
    progress.holding_up({holder});
    const std::string text = shown();
    EXPECT_EQ(text.find("process 4711"), text.rfind("process 4711"));
    EXPECT_NE(text.find("WARNING:  held up by process 4711"), std::string::npos);
    said();
    progress.ended(MoveResult::given_up);
    EXPECT_NE(said().find("interlock move --resume 0123abcd-0000-0000-0000-000000000000"),
              std::string::npos);
}

TEST_F(Progress, ARefusalIsTold) {
    MoveProgress progress = make(ProgressStyle::log);
    progress.found({{MoveFinding::Severity::refuse, "it cannot be", "because", "Run: it"},
                    {MoveFinding::Severity::warn, "beware", "", ""}});
    progress.ended(MoveResult::failed);
    EXPECT_EQ(shown(), "ERROR:  it cannot be\nDETAIL:  because\nHINT:  Run: it\n"
                       "WARNING:  beware\ninterlock move: refused, nothing was changed\n");
}

TEST_F(Progress, ACopyThatBeginsAnewCountsFromTheStart) {
    MoveProgress progress = make(ProgressStyle::log);
    progress.began(move(), false);
    progress.copying("a", 500, 10, 1000);
    progress.step("slot");
    now += seconds(2);
    progress.copying("a", 7, 2048, 1000);
    said();
    progress.step("copied");
    EXPECT_EQ(said(), "copied 7 rows, 2.0 kB, in 2.0 s\n");
}

TEST(MoveOptions, BucketsAreAListOfNumbersAndRanges) {
    const std::vector<std::int32_t> wanted{0, 1, 2, 9};
    EXPECT_EQ(parse_buckets("9,0-2,1"), wanted);
    EXPECT_EQ(parse_buckets("65535"), std::vector<std::int32_t>{65535});
    for (const char *text : {"", ",", "1,", ",1", "a", "1-", "-1", "2-1", "1 2", "65536", "1--2",
                             "0x1", "1-2-3", "99999999999"})
        EXPECT_THROW((void)parse_buckets(text), StartupError) << text;
}

MoveOptions parsed(std::vector<std::string> args) {
    args.insert(args.end(), {"--catalog", "dbname=x"});
    return parse_move_options(args);
}

TEST(MoveOptions, SayWhatIsMeant) {
    const MoveOptions one = parsed({"--keyspace",
                                    "k",
                                    "--bucket",
                                    "3",
                                    "--to",
                                    "s1",
                                    "--max-pause=250ms",
                                    "--grace",
                                    "0",
                                    "--rate",
                                    "1000",
                                    "--verify",
                                    "after",
                                    "--keep-source",
                                    "2d",
                                    "--end-sessions",
                                    "--tries",
                                    "4",
                                    "--json",
                                    "--source-conninfo",
                                    "host=h"});
    EXPECT_EQ(one.verb, MoveVerb::move);
    EXPECT_FALSE(one.evacuate);
    EXPECT_EQ(one.request.max_pause, 250);
    EXPECT_EQ(one.request.grace, 0);
    EXPECT_EQ(one.request.rate, 1000);
    EXPECT_EQ(one.request.verify, MoveVerify::after);
    EXPECT_EQ(one.request.keep_source, 2 * 86400);
    EXPECT_EQ(one.request.tries, 4);
    EXPECT_TRUE(one.request.end_sessions && one.json);
    EXPECT_EQ(one.request.source_conninfo, "host=h");
    EXPECT_EQ(parsed({"--keyspace", "k", "--bucket", "3", "--to", "s1", "--keep-source", "forever"})
                  .request.keep_source,
              -1);
    EXPECT_TRUE(parsed({"--from", "s0", "--to", "s1"}).evacuate);
    EXPECT_EQ(parsed({"--resume"}).request.id, "");
    EXPECT_EQ(parsed({"--abort", "0123"}).request.id, "0123");
    EXPECT_EQ(parse_move_options({"--steps"}).verb, MoveVerb::steps);
}

TEST(MoveOptions, RefuseWhatHasNoMeaning) {
    const std::vector<std::vector<std::string>> wrong{
        {},
        {"--keyspace", "k", "--bucket", "3"},
        {"--bucket", "3", "--to", "s1"},
        {"--keyspace", "k", "--to", "s1"},
        {"--from", "s1", "--to", "s1"},
        {"--keyspace", "k", "--bucket", "3", "--to", "s1", "--batch", "4"},
        {"--keyspace", "k", "--bucket", "3", "--to", "s1", "0123"},
        {"--from", "s0", "--to", "s1", "--batch", "0"},
        {"--from", "s0", "--to", "s1", "--verify", "never"},
        {"--from", "s0", "--to", "s1", "--keep-source", "soon"},
        {"--from", "s0", "--to", "s1", "--max-pause", "2h"},
        {"--from", "s0", "--to", "s1", "--max-pause", "0"},
        {"--abort"},
        {"--abort", "0123", "4567"},
        {"--abort", "0123", "--to", "s1"},
        {"--resume", "--status"},
        {"--plan", "--clean"},
    };
    for (const auto &args : wrong)
        EXPECT_THROW(parsed(args), StartupError) << (args.empty() ? "" : args.back());
}

TEST(Evacuation, TakesWhatIsThereInBatchesButNotWhatIsOnTheMove) {
    RouteTable routes;
    routes.version = 1;
    routes.shards = {{"s0", ""}, {"s1", ""}};
    Keyspace a{"a", placement::KeyFamily::integer, 7, {0, 0, 0, 1, 0, 0, 0}};
    Keyspace b{"b", placement::KeyFamily::integer, 2, {1, 0}};
    routes.keyspaces = {a, b};
    Move moving;
    moving.keyspace = "a";
    moving.buckets = {1};
    MoveOptions options;
    options.request.from = "s0";
    options.request.to = "s1";
    options.batch = 3;
    const auto texts = [&] {
        std::string text;
        for (const MoveBatch &batch : evacuation(routes, {moving}, options)) {
            text += batch.keyspace + ":";
            for (const auto bucket : batch.buckets)
                text += " " + std::to_string(bucket);
            text += ";";
        }
        return text;
    };
    EXPECT_EQ(texts(), "a: 0 2 4;a: 5 6;b: 1;");
    options.request.keyspace = "b";
    EXPECT_EQ(texts(), "b: 1;");
    options.request.keyspace = "c";
    EXPECT_THROW(texts(), ControlError);
    options.request.keyspace = "a";
    options.request.from = "s7";
    EXPECT_THROW(texts(), ControlError);
}

}  // namespace
}  // namespace interlock
