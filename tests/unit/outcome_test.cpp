// What a client may be told: R30 (nothing was done), R31 (the backend said so), R32 (unknown).
#include "session/outcome.h"

#include <gtest/gtest.h>

#include <string>

namespace interlock {
namespace {

std::string code_of(const Answer &answer, Effect effect, bool autocommit = true) {
    const auto refusal = judge(answer, effect, autocommit, "s0");
    return refusal ? std::string(code_entry(refusal->code).name) : "success";
}

Answer lost(bool sent) {
    Answer answer;
    answer.end = AnswerEnd::lost;
    answer.sent = sent;
    return answer;
}

Answer with_error(Answer answer, const std::string &sqlstate, bool fatal) {
    answer.error.sqlstate = sqlstate;
    answer.error.message = "message";
    answer.error.fatal = fatal;
    return answer;
}

TEST(Outcome, SuccessIsSuccess) {
    Answer answer;
    answer.end = AnswerEnd::complete;
    answer.sent = answer.completed = true;
    for (const Effect effect : {Effect::read, Effect::write, Effect::commit})
        EXPECT_EQ(code_of(answer, effect), "success");
}

TEST(Outcome, AWarningAfterACancelMakesACommitUnknown) {
    Answer answer;
    answer.end = AnswerEnd::complete;
    answer.sent = answer.completed = answer.cancelled = answer.warned = true;
    EXPECT_EQ(code_of(answer, Effect::commit, false), "R32");
    EXPECT_EQ(code_of(answer, Effect::write, true), "R32");
    EXPECT_EQ(code_of(answer, Effect::write, false), "success");  // nothing is committed yet
    EXPECT_EQ(code_of(answer, Effect::read), "success");
}

TEST(Outcome, WhatWasNotSentWasNotDone) {
    for (const Effect effect : {Effect::read, Effect::write, Effect::commit}) {
        EXPECT_EQ(code_of(lost(false), effect), "R30");
        Answer stuck;
        stuck.end = AnswerEnd::timed_out;
        EXPECT_EQ(code_of(stuck, effect), "R30");
    }
}

TEST(Outcome, ALostReadIsSafeToRepeatAndALostWriteIsNot) {
    EXPECT_EQ(code_of(lost(true), Effect::read), "R30");
    EXPECT_EQ(code_of(lost(true), Effect::write), "R32");
    EXPECT_EQ(code_of(lost(true), Effect::write, false), "R32");
    EXPECT_EQ(code_of(lost(true), Effect::commit), "R32");
}

TEST(Outcome, ABackendsErrorIsPassedThrough) {
    Answer answer = with_error({}, "23514", false);
    answer.end = AnswerEnd::error;
    answer.sent = true;
    answer.error.detail = "detail";
    answer.error.hint = "hint";
    const auto refusal = judge(answer, Effect::write, true, "s0");
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->code, Code::R31);
    EXPECT_EQ(refusal->state(), "23514");
    EXPECT_EQ(refusal->message, "message");
    EXPECT_EQ(refusal->detail, "detail");
    EXPECT_EQ(refusal->hint, "hint");
}

TEST(Outcome, AServerThatSaysGoodbyeHasAnsweredUnlessItMayHaveCommitted) {
    const Answer shut_down = with_error(lost(true), "57P01", true);
    EXPECT_EQ(code_of(shut_down, Effect::read), "R31");
    EXPECT_EQ(code_of(shut_down, Effect::write, false), "R31");
    EXPECT_EQ(code_of(shut_down, Effect::write, true), "R31");  // the command had not completed
    EXPECT_EQ(code_of(shut_down, Effect::commit), "R32");
    Answer completed = shut_down;
    completed.completed = true;
    EXPECT_EQ(code_of(completed, Effect::write, true), "R32");
    EXPECT_EQ(code_of(completed, Effect::write, false), "R31");  // its COMMIT was never sent
    EXPECT_EQ(code_of(completed, Effect::read), "R31");
}

TEST(Outcome, AStatementThatRanTooLongIsCancelled) {
    Answer answer;
    answer.end = AnswerEnd::timed_out;
    answer.sent = answer.cancelled = true;
    EXPECT_EQ(code_of(answer, Effect::read), "R36");
    // It never said how it ended.
    EXPECT_EQ(code_of(answer, Effect::write), "R32");
    EXPECT_EQ(code_of(answer, Effect::commit), "R32");
    answer.transaction = 'I';
    EXPECT_EQ(code_of(with_error(answer, "57014", false), Effect::write), "R36");
    EXPECT_EQ(code_of(with_error(answer, "23514", false), Effect::write), "R31");
}

TEST(Outcome, AnAnswerTooLargeIsR37ForAReadAndUnknownForAWrite) {
    Answer answer;
    answer.end = AnswerEnd::too_large;
    answer.sent = true;
    EXPECT_EQ(code_of(answer, Effect::read), "R37");
    EXPECT_EQ(code_of(answer, Effect::write), "R32");
    EXPECT_EQ(code_of(answer, Effect::commit), "R32");
}

TEST(Outcome, MalformedAnswersAreLikeALostConnection) {
    Answer answer;
    answer.end = AnswerEnd::malformed;
    answer.sent = true;
    EXPECT_EQ(code_of(answer, Effect::read), "R30");
    EXPECT_EQ(code_of(answer, Effect::write), "R32");
    EXPECT_EQ(code_of(answer, Effect::commit), "R32");
}

// Whether the statement may have taken effect for good, as far as anybody on this side can know:
// reasoned from the protocol, not from the code. An error before the command completed means that
// its transaction is aborted; a fatal one may come between a commit and its answer.
bool may_be_committed(const Answer &answer, Effect effect, bool autocommit) {
    if (answer.end == AnswerEnd::complete) return true;
    if (effect == Effect::read) return false;
    if (!answer.sent) return false;
    if (effect == Effect::write && !autocommit) return false;  // rolled back with its connection
    const bool spoke =
        answer.end == AnswerEnd::error ||
        (answer.end == AnswerEnd::timed_out && answer.transaction != '\0' && answer.has_error());
    if (spoke) return false;
    return !(effect == Effect::write && answer.has_error() && !answer.completed);
}

TEST(Outcome, R30IsNeverSaidOfWhatMayHaveBeenCommitted) {
    int judged = 0;
    for (const AnswerEnd end : {AnswerEnd::complete, AnswerEnd::error, AnswerEnd::lost,
                                AnswerEnd::timed_out, AnswerEnd::too_large, AnswerEnd::malformed})
        for (const Effect effect : {Effect::read, Effect::write, Effect::commit})
            for (const bool autocommit : {false, true})
                for (const bool sent : {false, true})
                    for (const bool completed : {false, true})
                        for (const char transaction : {'\0', 'I', 'T', 'E'})
                            for (const char *sqlstate : {"", "57014", "23514", "57P01"}) {
                                Answer answer;
                                answer.end = end;
                                answer.sent = sent;
                                answer.completed = completed;
                                answer.transaction = transaction;
                                answer.error.sqlstate = sqlstate;
                                answer.error.fatal = answer.error.sqlstate == "57P01";
                                // What relay() never reports: see its code.
                                if (end == AnswerEnd::error && (!answer.has_error() || !sent))
                                    continue;
                                if (end == AnswerEnd::complete &&
                                    (!completed || answer.has_error()))
                                    continue;
                                if (completed && !sent) continue;
                                const std::string code = code_of(answer, effect, autocommit);
                                const bool committed = may_be_committed(answer, effect, autocommit);
                                SCOPED_TRACE(testing::Message()
                                             << "end " << static_cast<int>(end) << " effect "
                                             << static_cast<int>(effect) << " autocommit "
                                             << autocommit << " sent " << sent << " completed "
                                             << completed << " error " << sqlstate << " tx "
                                             << (transaction ? transaction : '0'));
                                EXPECT_EQ(code == "success", end == AnswerEnd::complete);
                                if (committed && end != AnswerEnd::complete) {
                                    EXPECT_EQ(code, "R32");
                                }
                                if (!sent) {
                                    EXPECT_NE(code, "R32");
                                }
                                ++judged;
                            }
    EXPECT_GT(judged, 1000);
}

}  // namespace
}  // namespace interlock
