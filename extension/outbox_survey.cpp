#include "pg.h"

#include "outbox_survey.h"

namespace interlock::outbox {

namespace {

// In the cache of the generation. A session takes from few streams.
Survey *surveys = nullptr;
std::uint64_t surveys_generation = 0;

std::uint64_t rollbacks = 1;
bool callbacks_registered = false;

void on_transaction(XactEvent event, void *) {
    if (event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE) ++rollbacks;
}

void on_subtransaction(SubXactEvent event, SubTransactionId, SubTransactionId, void *) {
    if (event == SUBXACT_EVENT_ABORT_SUB) ++rollbacks;
}

}  // namespace

Survey *find_survey(const char *name, std::int32_t part, std::int32_t parts) {
    if (!callbacks_registered) {
        RegisterXactCallback(on_transaction, nullptr);
        RegisterSubXactCallback(on_subtransaction, nullptr);
        callbacks_registered = true;
    }
    const Stream &stream = require_stream(name);
    if (surveys_generation != generation()) {
        surveys = nullptr;
        surveys_generation = generation();
    }
    for (Survey *survey = surveys; survey != nullptr; survey = survey->next) {
        if (survey->stream != &stream || survey->part != part || survey->parts != parts) continue;
        if (survey->rollbacks != rollbacks) survey->count = 0;
        return survey;
    }
    MemoryContext context = cache_context();
    Survey *survey = static_cast<Survey *>(MemoryContextAllocZero(context, sizeof(Survey)));
    survey->stream = &stream;
    survey->part = part;
    survey->parts = parts;
    survey->context = context;
    survey->next = surveys;
    surveys = survey;
    return survey;
}

void start_survey(Survey *survey, std::int64_t upto) {
    survey->count = 0;
    survey->upto = upto;
    survey->rollbacks = rollbacks;
}

void add_lap(Survey *survey, std::int64_t lap) {
    int at = survey->count;
    while (at > 0 && survey->laps[at - 1] > lap)
        --at;
    if (at > 0 && survey->laps[at - 1] == lap) return;
    if (survey->count == survey->room) {
        survey->room = survey->room == 0 ? segments : survey->room * 2;
        const std::size_t size = sizeof(std::int64_t) * static_cast<std::size_t>(survey->room);
        survey->laps = static_cast<std::int64_t *>(survey->laps == nullptr
                                                       ? MemoryContextAlloc(survey->context, size)
                                                       : repalloc(survey->laps, size));
    }
    std::memmove(survey->laps + at + 1, survey->laps + at,
                 sizeof(std::int64_t) * static_cast<std::size_t>(survey->count - at));
    survey->laps[at] = lap;
    ++survey->count;
}

void remove_lap(Survey *survey, int index) {
    --survey->count;
    std::memmove(survey->laps + index, survey->laps + index + 1,
                 sizeof(std::int64_t) * static_cast<std::size_t>(survey->count - index));
}

}  // namespace interlock::outbox
