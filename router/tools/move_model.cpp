#include "tools/move_model.h"

#include <charconv>

namespace interlock {

namespace {

/// "{1,2}"
std::vector<std::int32_t> parse_numbers(std::string_view text) {
    std::vector<std::int32_t> numbers;
    const char *at = text.data();
    const char *const end = text.data() + text.size();
    while (at != end) {
        std::int32_t number = 0;
        const auto [next, error] = std::from_chars(at, end, number);
        if (error == std::errc{}) {
            numbers.push_back(number);
            at = next;
        } else {
            ++at;
        }
    }
    return numbers;
}

constexpr const char *select_moves =
    "SELECT m.id, COALESCE(m.keyspace, ''), m.buckets, COALESCE(m.from_shard, ''), "
    "  COALESCE(m.to_shard, ''), m.step, COALESCE(m.route_version, 0), m.announced, "
    "  m.finished IS NOT NULL, COALESCE(m.outcome, ''), COALESCE(m.error, ''), "
    "  COALESCE(m.progress::text, ''), r.options::text, "
    "  m.began AT TIME ZONE 'UTC', m.changed AT TIME ZONE 'UTC', m.finished AT TIME ZONE 'UTC' "
    "FROM interlock.moves m JOIN interlock.move r ON r.id OPERATOR(pg_catalog.=) m.id ";

std::vector<Move> parse_moves(const Rows &rows) {
    std::vector<Move> moves;
    for (int row = 0; row < rows.size(); ++row) {
        Move move;
        move.id = rows.text(row, 0);
        move.keyspace = rows.text(row, 1);
        move.buckets = parse_numbers(rows.view(row, 2));
        move.from = rows.text(row, 3);
        move.to = rows.text(row, 4);
        move.step = rows.text(row, 5);
        move.route_version = rows.int32(row, 6);
        move.announced = rows.boolean(row, 7);
        move.finished = rows.boolean(row, 8);
        move.outcome = rows.text(row, 9);
        move.error = rows.text(row, 10);
        move.progress = rows.text(row, 11);
        move.options = rows.text(row, 12);
        move.began = rows.text(row, 13);
        move.changed = rows.text(row, 14);
        move.ended = rows.text(row, 15);
        moves.push_back(std::move(move));
    }
    return moves;
}

/// A shard has the same tables, empty: that no move is found there says nothing.
void require_catalog(ControlConnection &catalog) {
    if (!catalog.query("SELECT EXISTS (SELECT FROM interlock.cluster)").boolean(0, 0))
        throw ControlError("55000", "this database is not the catalog", {},
                           "Name the catalog's database with --catalog.");
}

std::optional<Move> find_by_id(ControlConnection &catalog, const std::string &id) {
    if (id.size() < 4 || id.find_first_not_of("0123456789abcdef-") != std::string::npos)
        throw ControlError("22023", "\"" + id + "\" is no id of a move", {},
                           "It is given by its first characters, at least four.");
    const std::vector<Move> moves = parse_moves(
        catalog.query(std::string(select_moves) + "WHERE pg_catalog.starts_with(m.id::text, $1) "
                                                  "ORDER BY m.began DESC",
                      {Param::of_text(id)}));
    if (moves.size() > 1)
        throw ControlError("22023", "several moves have an id that begins with \"" + id + "\"",
                           "The newest is " + moves.front().id + ".");
    if (moves.empty()) {
        require_catalog(catalog);
        throw ControlError("42704", "there is no move \"" + id + "\"", {},
                           "interlock move --status shows those that are not finished.");
    }
    if (moves.front().finished) throw MoveEnded(moves.front());
    return moves.front();
}

}  // namespace

MoveEnded::MoveEnded(const Move &move)
    : ControlError("55000", "move " + move.id + " has ended: " + move.outcome), id(move.id),
      outcome(move.outcome) {}

std::vector<Move> read_moves(ControlConnection &catalog, bool unfinished_only) {
    std::vector<Move> moves = parse_moves(catalog.query(
        std::string(select_moves) + (unfinished_only ? "WHERE m.finished IS NULL " : "") +
        "ORDER BY m.began DESC, m.id"));
    if (moves.empty()) require_catalog(catalog);
    return moves;
}

std::optional<Move> find_move(ControlConnection &catalog, const MoveRequest &request) {
    if (!request.id.empty()) return find_by_id(catalog, request.id);
    for (Move &move : read_moves(catalog, true))
        if (move.keyspace == request.keyspace && move.buckets == request.buckets &&
            move.to == request.to && (request.from.empty() || request.from == move.from))
            return std::move(move);
    return std::nullopt;
}

std::string MoveHolder::described() const {
    if (pid == 0) return "prepared transaction \"" + gid + "\" (" + user + ", since " + since + ")";
    return "process " + std::to_string(pid) + " (" + user +
           (application.empty() ? "" : ", " + application) + ", " + state + ", transaction since " +
           since + ")";
}

}  // namespace interlock
