// Parse, and statements that are prepared on whichever backend their client is lent.
//
// A named statement has one number for all clients that sent the same text and types, and one name
// on every backend. What its rows look like is compared between what the client was told and what
// the backend in use would send: a connection of the client's own would refuse to go on with other
// columns, until the client prepares the statement again.
#include "base/log.h"
#include "placement.h"
#include "session/pg_client.h"
#include "session/pg_reply.h"

#include <algorithm>

namespace interlock {

namespace {

using sql::Action;
using Kind = Owed::Kind;
using To = Owed::To;

// Statements parsed in one round and not yet shown to a backend.
constexpr std::size_t most_unchecked = 64;

// Statements that name no table: any shard can answer for them.
const sql::Facts nothing_particular;

Refusal malformed() {
    return postgres_error("08P01", "invalid message format");
}

}  // namespace

// Columns' types, as a number that is not 0. Types made by users have other numbers on each shard:
// they count as one.
std::uint64_t result_fingerprint(std::string_view columns) {
    std::string types = "columns";
    wire::FieldReader fields(columns);
    const std::uint16_t count = columns.empty() ? 0 : fields.int16();
    for (unsigned i = 0; i < count && fields.ok(); ++i) {
        (void)fields.string();
        (void)fields.bytes(sizeof(std::uint32_t) + sizeof(std::uint16_t));  // table, column
        const std::uint32_t type = std::min(fields.int32(), oid::first_user);
        const std::uint16_t size = fields.int16();
        const std::uint32_t modifier = fields.int32();
        (void)fields.int16();  // the format is the client's own choice
        types += std::to_string(type) + ',' + std::to_string(size) + ',' +
                 std::to_string(modifier) + ';';
    }
    return static_cast<std::uint64_t>(placement::xxh3_64(types.data(), types.size())) | 1U;
}

PgClient::PreparedPointer PgClient::find_prepared(std::string_view name) {
    if (!extended_) return nullptr;
    if (name.empty()) return extended_->unnamed;
    const auto it = extended_->named.find(std::string(name));
    return it == extended_->named.end() ? nullptr : it->second;
}

Refusal no_such_statement(std::string_view name) {
    if (name.empty()) return postgres_error("26000", "unnamed prepared statement does not exist");
    return postgres_error("26000",
                          "prepared statement \"" + std::string(name) + "\" does not exist");
}

// Bounds, and what the router cannot read as the server does.
std::optional<Refusal> PgClient::check_text(const sql::Shape &shape) const {
    const std::size_t most = worker_.settings().pg_max_statement;
    if (shape.text.size() > most) return statement_too_long(shape.text.size(), most);
    const auto beyond_ascii = [](char c) { return static_cast<unsigned char>(c) >= 0x80; };
    if (!utf8_ && std::any_of(shape.text.begin(), shape.text.end(), beyond_ascii))
        return make_refusal(Code::R01, "a name beyond ASCII, in a client_encoding other than UTF8",
                            "The router reads names as UTF-8: set client_encoding to UTF8.");
    return std::nullopt;
}

// Facts belong to a route table and a search path: found again when either is another one now.
std::optional<Refusal> PgClient::refresh(Prepared &prepared) {
    const std::shared_ptr<const Routes> &routes = routes_in_use();
    if (!routes) return no_route_table();
    if (prepared.facts && prepared.table == routes->table && prepared.path == path_->id)
        return std::nullopt;
    static thread_local sql::Shape shape;
    sql::make_shape(prepared.statement->text, shape);
    if (auto refused = check_text(shape)) return refused;
    auto facts = shared_.analyse_one(prepared.statement->text, shape, *path_, routes->table);
    if (!facts) return refusal_here(std::move(facts.error()));
    prepared.facts = std::move(*facts);
    prepared.table = routes->table;
    prepared.path = path_->id;
    return std::nullopt;
}

Task<void> PgClient::parse(std::string_view body) {
    wire::FieldReader fields(body);
    const std::string_view name = fields.string();
    const std::string_view text = fields.string();
    const std::uint16_t count = fields.int16();
    std::vector<std::uint32_t> types;
    types.reserve(count);
    for (unsigned i = 0; i < count && fields.ok(); ++i)
        types.push_back(fields.int32());
    if (!fields.ok() || !fields.at_end()) co_return fail_round(malformed());

    // The unnamed statement goes with the attempt to replace it.
    keep_statement(name);
    PreparedPointer before;
    if (name.empty() && extended_) before = std::move(extended_->unnamed);
    const std::shared_ptr<const Routes> &routes = routes_in_use();
    if (!routes) co_return fail_round(no_route_table());
    static thread_local sql::Shape shape;
    sql::make_shape(text, shape);
    if (auto refused = check_text(shape)) co_return fail_round(*refused);
    auto facts = shared_.analyse_one(text, shape, *path_, routes->table);
    if (!facts) co_return fail_round(refusal_here(std::move(facts.error())));
    const Action action = (*facts)->action;
    if ((*facts)->scatter && !may_scatter(**facts))
        co_return fail_round(*(*facts)->scatter->unless_allowed);
    if (transaction_ == Transaction::failed && action != Action::commit &&
        action != Action::rollback && action != Action::rollback_to)
        co_return fail_round(*failed_refusal());

    auto prepared = std::make_shared<Prepared>();
    prepared->facts = std::move(*facts);
    prepared->table = routes->table;
    prepared->path = path_->id;
    prepared->named = !name.empty();
    std::uint32_t mark = 0;
    if (prepared->named) {
        auto &place = extended().named[std::string(name)];
        if (place)
            co_return fail_round(postgres_error(
                "42P05", "prepared statement \"" + std::string(name) + "\" already exists"));
        if (extended_->named.size() > worker_.settings().pg_max_prepared) {
            extended_->named.erase(std::string(name));
            co_return fail_round(postgres_error(
                "54000", "too many prepared statements; the limit is pg.max_prepared"));
        }
        prepared->statement = shared_.statement(text, std::move(types), *path_);
        prepared->id = prepared->statement->id;
        place = prepared;
        mark = note(Note{.kind = Note::Kind::parse, .name = std::string(name)});
    } else {
        // The text of the one before is used again where it is the same.
        auto &place = extended().unnamed;
        if (before && before->statement->text == text && before->statement->types == types) {
            prepared->statement = before->statement;
        } else {
            auto statement = std::make_shared<PgStatement>();
            statement->text = text;
            statement->types = std::move(types);
            statement->literals = shape.literals;
            prepared->statement = std::move(statement);
        }
        prepared->id = shared_.next_id();
        place = prepared;
    }
    if (!carried_out_here(*prepared->facts)) {
        // A round may be of any length: those that a backend has seen need not be kept.
        if (extended_->unchecked.size() >= most_unchecked)
            std::erase_if(extended_->unchecked, [](const auto &entry) { return entry->checked; });
        extended_->unchecked.push_back(std::move(prepared));
    }
    pg_reply::plain(exchange_->local(), '1');
    exchange_->local_done(mark);
    if (extended_->unchecked.size() >= most_unchecked) co_await check_parsed();
}

// Makes sure that the backend in use has the statement prepared, by a Parse in front of what needs
// it.
void PgClient::prepare_on_backend(const PreparedPointer &prepared) {
    const PgStatement &statement = *prepared->statement;
    Buffer &out = lease_->out();
    prepared->checked = true;
    if (!prepared->named) {
        if (lease_->unnamed_owner() == prepared->id) return;
        lease_->set_unnamed_owner(prepared->id);
    } else {
        PreparedRegistry &registry = lease_->prepared();
        if (registry.find(prepared->id)) return;
        for (const std::uint64_t old :
             registry.add(prepared->id, worker_.settings().pg_backend_prepared)) {
            wire::FrameWriter(out, 'C').bytes("S").string(StatementName(old).view());
            exchange_->expect(Kind::close, To::nobody);
        }
    }
    {
        wire::FrameWriter parse(out, 'P');
        if (prepared->named)
            parse.string(StatementName(prepared->id).view());
        else
            parse.string("");
        parse.string(statement.text).int16(static_cast<std::uint16_t>(statement.types.size()));
        for (const std::uint32_t type : statement.types)
            parse.int32(type);
    }
    exchange_->expect(Kind::parse, To::nobody,
                      note(Note{.kind = Note::Kind::prepare, .prepared = prepared}));
}

void PgClient::append_statement_message(char type, char what, const Prepared &prepared) {
    wire::FrameWriter message(lease_->out(), type);
    message.bytes({&what, 1});
    if (prepared.named)
        message.string(StatementName(prepared.id).view());
    else
        message.string("");
}

// Of one that the client was told nothing of, any result will do.
bool PgClient::result_agrees(const Prepared &prepared) const {
    return !prepared.named || prepared.result == 0 ||
           lease_->prepared().result(prepared.id) == prepared.result;
}

// A note for a Describe that tells something new; 0 for one that does not.
std::uint32_t PgClient::note_columns(const PreparedPointer &prepared) {
    if (!prepared->named || (prepared->result != 0 && lease_->prepared().result(prepared->id) != 0))
        return 0;
    return note(Note{.kind = Note::Kind::columns, .prepared = prepared});
}

// The statement is prepared on the backend in use, with a result that is not known or not the one
// the client was told of. Asked before anything is bound: a Bind may be of a write.
Task<std::optional<Refusal>> PgClient::check_result(const PreparedPointer &prepared) {
    if (lease_->prepared().result(prepared->id) == 0) {
        exchange_->own_error() = BackendError{};
        append_statement_message('D', 'S', *prepared);
        exchange_->expect(Kind::describe_statement, To::router,
                          note(Note{.kind = Note::Kind::columns, .prepared = prepared}));
        if (auto lost = co_await settle_round()) co_return lost;
        if (skipping_) co_return std::nullopt;
        if (!exchange_->own_error().sqlstate.empty()) {
            const BackendError &error = exchange_->own_error();
            co_return postgres_error(error.sqlstate, error.message, error.hint);
        }
    }
    if (result_agrees(*prepared)) co_return std::nullopt;
    co_return postgres_error("0A000", "cached plan must not change result type");
}

// A statement that was parsed and is not used in this round is shown to a backend before the round
// ends, so that an error in it is told now and not when it is used.
Task<void> PgClient::check_parsed() {
    if (!extended_) co_return;
    auto unchecked = std::move(extended_->unchecked);
    extended_->unchecked.clear();
    for (const PreparedPointer &prepared : unchecked) {
        if (skipping_) co_return;
        if (prepared->checked) continue;
        auto refused = co_await ensure(nothing_particular, std::nullopt, true);
        if (!refused && skipping_) co_return;
        if (!refused) refused = check_names(*prepared->facts);
        if (refused) {
            fail_round(*refused);
            co_return;
        }
        prepare_on_backend(prepared);
    }
}

}  // namespace interlock
