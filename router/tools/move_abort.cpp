// What ends a move otherwise than by carrying it out: taking it back, cleaning up later, and what
// somebody who is to publish does with one that is in the way.
#include <chrono>
#include <thread>

#include "tools/move_clean.h"
#include "tools/move_model.h"
#include "tools/move_record.h"
#include "tools/move_switch.h"

namespace interlock {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds between_looks{100};
/// For a mover that is inside its switch.
constexpr milliseconds switch_patience{30'000};

ControlConnection open_catalog(const MoveRequest &request) {
    return ControlConnection(request.catalog, "interlock move", request.query_timeout);
}

Move require_move(const MoveRequest &request) {
    ControlConnection catalog = open_catalog(request);
    if (auto move = find_move(catalog, request)) return std::move(*move);
    throw ControlError("42704", "there is no such move under way", {},
                       "interlock move --status shows those there are.");
}

/// Sessions and record of a move that is under way.
struct Opened {
    Opened(const MoveRequest &request, const Move &move, MoveObserver &observer)
        : session(request, move), record(request, session, move.id, observer),
          handover(request, session, record, observer) {}

    MoveSession session;
    MoveRecord record;
    MoveSwitch handover;
};

/// The move that has a number reserved.
std::string reserving_move(ControlConnection &catalog) {
    const Rows rows = catalog.query(
        "SELECT c.reserved_move FROM interlock.cluster c WHERE c.reserved_move IS NOT NULL");
    return rows.empty() ? std::string() : rows.text(0, 0);
}

}  // namespace

MoveResult abort_move(const MoveRequest &request, MoveObserver &observer) {
    const Move move = require_move(request);
    observer.began(move, true);
    Opened opened(request, move, observer);
    opened.record.lock(request.query_timeout);
    const Move now = opened.record.read();
    const HandoffState source = read_handoff(opened.session.source(), move.id);
    const auto step = move_step_named(now.step).value_or(MoveStep::planned);
    if (source.state == "decided" || step >= MoveStep::routed) {
        // What is carried out, and has only rows at the source left, waits for no --resume.
        const bool left =
            step >= MoveStep::unsubscribed || !opened.record.noted("difference").empty();
        throw ControlError("55000", "move " + move.id + " is decided and cannot be taken back",
                           left ? "The buckets are shard \"" + now.to +
                                      "\"'s; rows of theirs are left on shard \"" + now.from + "\"."
                                : "",
                           (left ? "Remove those with --clean " : "Carry it on with --resume ") +
                               move.id + "; moving the buckets back is another move.");
    }
    require_decision(opened.session, move.id, source,
                     read_handoff(opened.session.target(), move.id));
    // From here on no mover can fence or decide, however late it comes.
    if (source.known)
        opened.session.source().query("SELECT interlock.abort_export($1)",
                                      {opened.record.id_param()});
    opened.record.withdraw();
    MoveClean(request, opened.session, opened.record, observer).after_abort();
    return MoveResult::done;
}

std::size_t clean_moves(const MoveRequest &request, MoveObserver &observer) {
    std::vector<Move> moves;
    if (request.id.empty()) {
        ControlConnection catalog = open_catalog(request);
        for (Move &move : read_moves(catalog, true))
            if (move_step_named(move.step).value_or(MoveStep::planned) >= MoveStep::unsubscribed)
                moves.push_back(std::move(move));
    } else {
        moves.push_back(require_move(request));
        if (move_step_named(moves[0].step).value_or(MoveStep::planned) < MoveStep::routed)
            throw ControlError("55000", "move " + moves[0].id + " is not carried out yet", {},
                               "Finish it with --resume " + moves[0].id +
                                   ", or take it back with --abort " + moves[0].id + ".");
    }
    std::size_t cleaned = 0;
    for (const Move &move : moves) {
        observer.began(move, true);
        Opened opened(request, move, observer);
        opened.record.lock(request.query_timeout);
        if (MoveClean(request, opened.session, opened.record, observer)
                .after_switch(!request.id.empty()))
            ++cleaned;
    }
    return cleaned;
}

void finish_reserved_moves(const MoveRequest &access, MoveObserver &observer) {
    ControlConnection catalog = open_catalog(access);
    const auto deadline = steady_clock::now() + switch_patience;
    for (;;) {
        const std::string id = reserving_move(catalog);
        if (id.empty()) return;
        MoveRequest wanted = access;
        wanted.id = id;
        std::optional<Move> move;
        try {
            move = find_move(catalog, wanted);
        } catch (const MoveEnded &) {
            continue;  // its number is no longer reserved, either
        }
        Opened opened(wanted, *move, observer);
        try {
            opened.record.lock();
        } catch (const ControlError &error) {
            // A mover is at work: it publishes or gives up within the pause that it may take.
            if (error.sqlstate != "55006" || steady_clock::now() >= deadline) throw;
            std::this_thread::sleep_for(between_looks);
            continue;
        }
        if (reserving_move(catalog) != id) continue;
        const HandoffState source = read_handoff(opened.session.source(), id);
        require_decision(opened.session, id, source, read_handoff(opened.session.target(), id));
        if (source.state == "decided") {
            observer.note("move " + id + " is decided: driving it forward");
            opened.handover.drive_forward();
        } else {
            observer.note("move " + id + " is not decided: giving its route version up");
            opened.handover.give_up();
        }
    }
}

}  // namespace interlock
