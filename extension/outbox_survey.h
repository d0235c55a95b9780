// Where a taker left off: which laps still had records when it last looked at everything.
//
// Draining a backlog must not read all of it for each batch. A survey may be used for records up to
// the seq that was drawn last when it was made: an earlier record of the same key was committed
// before that, so the survey shows its lap too, unless the record has been removed. Three things
// could bring such a record back, and each ends the survey: rolling back its removal (here; another
// session's is not visible before it commits), preparing the removal, and outbox_retry().
#pragma once

#include "outbox.h"

namespace interlock::outbox {

struct Survey {
    const Stream *stream;
    std::int32_t part, parts;
    std::int64_t upto;   ///< good for records up to this seq
    std::int64_t *laps;  ///< ascending
    int count, room;
    MemoryContext context;
    std::uint64_t rollbacks;
    Survey *next;
};

/// This session's survey; empty when there is none that may be used. Raises 42704 when there is no
/// such stream. Good until the generation changes.
Survey *find_survey(const char *stream, std::int32_t part, std::int32_t parts);

/// Starts a new one, under a snapshot that is taken after `upto` has been read.
void start_survey(Survey *survey, std::int64_t upto);

void add_lap(Survey *survey, std::int64_t lap);

void remove_lap(Survey *survey, int index);

}  // namespace interlock::outbox
