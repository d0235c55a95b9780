#include "session/pg_exchange.h"

#include "wire/frame.h"

#include <algorithm>

namespace interlock {

namespace {

using Kind = Owed::Kind;
using To = Owed::To;

// Messages that are looked at as a whole: errors, descriptions, status. PostgreSQL bounds them by
// its own limits on columns and error texts.
constexpr std::size_t message_limit = 16 << 20;
// A row longer than this is moved in pieces.
constexpr std::size_t whole_row_limit = 32 * 1024;

// A long pipeline leaves answered entries behind; they go this many at a time.
constexpr std::ptrdiff_t compact_at = 1024;

bool streamed(char type) {
    return type == 'D' || type == 'd';
}

}  // namespace

void Exchange::expect(Kind kind, To to, std::uint32_t note) {
    owed_.push_back({kind, to, note, 0});
    ++from_backend_;
    if (kind == Kind::sync) server_skips_ = false;
}

void Exchange::local_done(std::uint32_t note) {
    const std::size_t bytes = local_.size() - local_in_line_;
    local_in_line_ = local_.size();
    owed_.push_back({Kind::local, To::client, note, static_cast<std::uint32_t>(bytes)});
}

void Exchange::feed_local(Buffer &out, ExchangeOwner &owner) {
    while (!nothing_owed() && front().kind == Kind::local) {
        const Owed owed = pop_front();
        out.append(local_.view().substr(0, owed.bytes));
        local_.consume(owed.bytes);
        local_in_line_ -= owed.bytes;
        if (owed.note != 0) owner.completed(owed, {});
    }
}

Owed Exchange::pop_front() {
    const Owed owed = owed_[first_++];
    if (nothing_owed()) {
        owed_.clear();
        first_ = 0;
    } else if (first_ == static_cast<std::size_t>(compact_at)) {
        owed_.erase(owed_.begin(), owed_.begin() + compact_at);
        first_ = 0;
    }
    return owed;
}

void Exchange::pop(ExchangeOwner &owner, std::string_view tag) {
    const Owed owed = pop_front();
    --from_backend_;
    if (owed.note != 0) owner.completed(owed, tag);
}

void Exchange::drop_all(ExchangeOwner &owner) {
    while (!nothing_owed()) {
        const Owed owed = owed_.back();
        owed_.pop_back();
        if (owed.note != 0) owner.dropped(owed, false);
    }
    owed_.clear();
    first_ = 0;
    from_backend_ = 0;
    local_.clear();
    local_in_line_ = 0;
    passing_ = 0;
}

void Exchange::reset() {
    status_ = 'I';
    failed_ = false;
    server_skips_ = false;
    stuck_ = false;
    passing_ = 0;
    // Nearly always there was none.
    if (!farewell_.sqlstate.empty()) farewell_ = BackendError{};
    if (!own_error_.sqlstate.empty()) own_error_ = BackendError{};
    kept_row_.clear();
}

bool Exchange::only_ready_missing() const {
    return std::all_of(
        owed_.begin() + static_cast<std::ptrdiff_t>(first_), owed_.end(),
        [](const Owed &owed) { return owed.kind == Kind::sync || owed.kind == Kind::local; });
}

bool Exchange::owes_client() const {
    return std::any_of(
        owed_.begin() + static_cast<std::ptrdiff_t>(first_), owed_.end(),
        [](const Owed &owed) { return owed.kind != Kind::local && owed.to != To::nobody; });
}

bool Exchange::more_statements() const {
    if (nothing_owed()) return false;
    return std::any_of(
        owed_.begin() + static_cast<std::ptrdiff_t>(first_) + 1, owed_.end(),
        [](const Owed &owed) { return owed.kind == Kind::execute && owed.to == To::client; });
}

// The server ignores everything up to the next Sync, a Query included.
void Exchange::skip_to_sync(ExchangeOwner &owner) {
    const auto begin = owed_.begin() + static_cast<std::ptrdiff_t>(first_);
    auto end =
        std::find_if(begin, owed_.end(), [](const Owed &owed) { return owed.kind == Kind::sync; });
    const bool query =
        std::any_of(begin, end, [](const Owed &owed) { return owed.kind == Kind::query; });
    if (end == owed_.end()) {
        server_skips_ = true;
        stuck_ = query;
    }
    std::size_t bytes = 0;
    const std::vector<Owed> gone(begin, end);
    for (const Owed &owed : gone) {
        bytes += owed.bytes;
        if (owed.kind != Kind::local) --from_backend_;
    }
    owed_.erase(owed_.begin(), end);
    first_ = 0;
    local_.consume(bytes);
    local_in_line_ -= bytes;
    // The latest first: what they would have done is undone in that order.
    for (auto owed = gone.rbegin(); owed != gone.rend(); ++owed)
        if (owed->note != 0) owner.dropped(*owed, owed + 1 == gone.rend());
}

bool Exchange::take_error(const wire::Frame &frame, Buffer &out, ExchangeOwner &owner) {
    wire::ErrorFields error;
    if (!wire::parse_error(frame.body, error)) return false;
    const To to = nothing_owed() ? To::nobody : front().to;
    BackendError kept{std::string(error.sqlstate), std::string(error.message),
                      std::string(error.detail), std::string(error.hint), error.fatal()};
    if (error.fatal()) {
        // Not the client's connection ends, only this one: it is told when the end has come.
        farewell_ = std::move(kept);
        return true;
    }
    if (nothing_owed()) return false;
    if (to != To::client) own_error_ = std::move(kept);
    // The client's settings could not be put in force: nothing behind that may be believed.
    if (to == To::nobody && front().kind == Kind::query) stuck_ = true;
    if (to != To::router && !stuck_) {
        failed_ = true;
        if (!owner.error_arrived(error, to, out)) {
            wire::FrameWriter(out, 'E').bytes(frame.body);
        }
    }
    if (front().kind != Kind::query && front().kind != Kind::sync) skip_to_sync(owner);
    return true;
}

void Exchange::keep_row(std::string_view body) {
    kept_row_.clear();
    wire::FieldReader fields(body);
    const std::uint16_t count = fields.int16();
    for (unsigned i = 0; i < count && fields.ok(); ++i) {
        const std::uint32_t length = fields.int32();
        kept_row_.emplace_back(length == 0xFFFFFFFFU ? std::string_view() : fields.bytes(length));
    }
}

// A message that ends, or changes, something. False when it must not come now.
bool Exchange::take_message(const wire::Frame &frame, std::string_view whole, Buffer &out,
                            ExchangeOwner &owner) {
    switch (frame.type) {
    case 'E': return take_error(frame, out, owner);
    case 'N':
        if (nothing_owed() || front().to != To::nobody) out.append(whole);
        return true;
    case 'A': return true;  // nobody has asked to listen
    case 'S': {
        wire::FieldReader fields(frame.body);
        const std::string_view name = fields.string();
        const std::string_view value = fields.string();
        if (!fields.ok()) return false;
        const To to = nothing_owed() ? To::client : front().to;
        if (owner.status_changed(name, value, to)) out.append(whole);
        return true;
    }
    default: break;
    }
    if (nothing_owed()) return false;
    const Owed &next = front();
    const bool forward = next.to == To::client;
    const auto completes = [&](Kind kind) { return next.kind == kind; };
    switch (frame.type) {
    case 'Z':
        if (frame.body.size() != 1 || !(completes(Kind::sync) || completes(Kind::query)))
            return false;
        status_ = frame.body[0];
        pop(owner, {});
        return true;
    case '1':
    case '2':
    case '3': {
        const Kind kind = frame.type == '1'   ? Kind::parse
                          : frame.type == '2' ? Kind::bind
                                              : Kind::close;
        if (!completes(kind)) return false;
        if (forward) out.append(whole);
        pop(owner, {});
        return true;
    }
    case 't':
        if (!completes(Kind::describe_statement)) return false;
        if (forward) out.append(whole);
        return true;
    case 'T':
    case 'n':
        if (!completes(Kind::describe_statement) && !completes(Kind::describe_portal) &&
            !(frame.type == 'T' && completes(Kind::query)))
            return false;
        if (forward) out.append(whole);
        if (completes(Kind::query)) return true;
        if (next.note != 0) {
            const Owed copy = next;
            owner.described(copy, frame.body);
        }
        pop(owner, {});
        return true;
    case 'C':
    case 'I':
    case 's': {
        if (!completes(Kind::execute) && !(frame.type != 's' && completes(Kind::query)))
            return false;
        if (forward) out.append(whole);
        wire::FieldReader fields(frame.body);
        const std::string_view tag = frame.type == 'C' ? fields.string() : std::string_view();
        if (completes(Kind::execute)) {
            pop(owner, tag);
        } else if (next.note != 0) {
            const Owed copy = next;
            owner.completed(copy, tag);
        }
        return true;
    }
    case 'H':
    case 'c':
        if (!completes(Kind::execute) && !completes(Kind::query)) return false;
        if (forward) out.append(whole);
        return true;
    default: return false;  // CopyIn and CopyBoth among them: nothing that starts one is sent
    }
}

Exchange::Feed Exchange::feed(Backend &backend, Buffer &out, std::size_t limit,
                              ExchangeOwner &owner) {
    for (;;) {
        feed_local(out, owner);
        if (passing_ > 0) {
            const std::string_view arrived = backend.arrived().substr(0, passing_);
            if (arrived.empty()) return Feed::need_more;
            if (passing_kept_) out.append(arrived);
            passing_ -= arrived.size();
            backend.pop(arrived.size());
            if (out.size() >= limit) return Feed::blocked;
            continue;
        }
        if (from_backend_ == 0) return Feed::done;
        if (out.size() >= limit) return Feed::blocked;

        // Runs of rows are moved in one piece.
        const std::string_view arrived = backend.arrived();
        std::size_t run = 0;
        const Kind kind = front().kind;
        if (kind == Kind::execute || kind == Kind::query) {
            while (arrived.size() - run >= wire::frame_header && streamed(arrived[run])) {
                const std::size_t size =
                    static_cast<std::size_t>(wire::load32(arrived.data() + run + 1)) + 1;
                if (size < wire::frame_header || size > arrived.size() - run) break;
                run += size;
            }
        }
        if (run > 0) {
            if (front().to == To::client)
                out.append(arrived.substr(0, run));
            else if (front().to == To::router && arrived[0] == 'D')
                keep_row(arrived.substr(wire::frame_header, wire::load32(arrived.data() + 1) - 4));
            backend.pop(run);
            continue;
        }

        wire::Frame frame;
        switch (backend.peek(message_limit, frame)) {
        case wire::FrameState::ready: break;
        case wire::FrameState::malformed: return Feed::malformed;
        case wire::FrameState::too_long:
        case wire::FrameState::need_more: {
            // A long row is passed on before it has arrived to its end.
            if (arrived.size() < wire::frame_header) return Feed::need_more;
            const std::size_t size = static_cast<std::size_t>(wire::load32(arrived.data() + 1)) + 1;
            const bool row = streamed(arrived[0]) && (kind == Kind::execute || kind == Kind::query);
            if (!row) {
                if (size > message_limit) return Feed::malformed;
                return Feed::need_more;
            }
            if (size <= whole_row_limit) return Feed::need_more;
            passing_ = size;
            passing_kept_ = front().to == To::client;
            continue;
        }
        }
        if (streamed(frame.type)) return Feed::malformed;  // a row that nothing asked for
        const std::size_t size = frame.size;
        if (!take_message(frame, arrived.substr(0, size), out, owner)) return Feed::malformed;
        backend.pop(size);
        if (stuck_) return Feed::malformed;
    }
}

}  // namespace interlock
