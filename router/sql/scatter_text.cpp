#include "sql/scatter_text.h"

#include "sql/strict_scanner.h"

#include <algorithm>

namespace interlock::sql {

namespace {

using Clause = SelectText::Clause;

struct ClauseWord {
    std::string_view word;
    Clause clause;
};

constexpr ClauseWord clause_words[] = {
    {"where", Clause::where},   {"group", Clause::group}, {"having", Clause::having},
    {"window", Clause::window}, {"order", Clause::order}, {"limit", Clause::limit},
    {"offset", Clause::offset}, {"fetch", Clause::limit}, {"for", Clause::other}};

}  // namespace

bool SelectText::Token::word(std::string_view lower) const {
    return raw.kind == RawToken::Kind::word && !raw.behind_dot && same_word(raw.text, lower);
}

bool SelectText::Token::symbol(char c) const {
    return raw.kind == RawToken::Kind::symbol && raw.text[0] == c;
}

SelectText::SelectText(std::string_view text, std::size_t offset, std::size_t length,
                       std::size_t from_item)
    : text_(text) {
    read(text, offset, length);
    if (tokens_.empty() || !tokens_[0].word("select")) return;
    std::size_t from = 0;
    for (std::size_t i = 1; i < tokens_.size() && tokens_[i].raw.offset < from_item; ++i)
        if (tokens_[i].top() && tokens_[i].word("from")) from = i;
    if (from == 0) return;
    std::size_t first = 1;
    if (first < from && tokens_[first].word("all")) ++first;
    if (first == from) return;
    targets_ = parted({first, from});
    find_clauses(from);
    sound_ = true;
}

void SelectText::read(std::string_view text, std::size_t offset, std::size_t length) {
    RawTokens raw(text.substr(offset, length));
    std::size_t depth = 0;
    for (RawToken token = raw.next(); token.kind != RawToken::Kind::end; token = raw.next()) {
        if (token.kind == RawToken::Kind::comment) continue;
        token.offset += offset;
        Token each{token, depth};
        if (each.symbol('(') || each.symbol('[')) ++depth;
        if ((each.symbol(')') || each.symbol(']')) && depth > 0) --depth;
        tokens_.push_back(each);
    }
    // A semicolon that ends the statement is not part of its last clause.
    while (!tokens_.empty() && tokens_.back().symbol(';'))
        tokens_.pop_back();
}

void SelectText::find_clauses(std::size_t from) {
    std::optional<Clause> open;
    std::size_t start = 0;
    const auto close = [&](std::size_t at) {
        if (!open) {
            from_end_ = static_cast<std::uint32_t>(tokens_[at - 1].end());
            before_limit_ = from_end_;
            return;
        }
        auto &body = bodies_[static_cast<std::size_t>(*open)];
        if (!body && start < at) body = Range{start, at};
        if (*open < Clause::limit)
            before_limit_ = static_cast<std::uint32_t>(tokens_[at - 1].end());
    };
    for (std::size_t i = from + 1; i < tokens_.size(); ++i) {
        const Token &token = tokens_[i];
        if (!token.top()) continue;
        const auto *found =
            std::find_if(std::begin(clause_words), std::end(clause_words),
                         [&](const ClauseWord &each) { return token.word(each.word); });
        if (found == std::end(clause_words)) continue;
        close(i);
        open = found->clause;
        start = i + 1;
        const bool by = *open == Clause::group || *open == Clause::order;
        if (by && start < tokens_.size() && tokens_[start].word("by")) ++start;
        if (*open == Clause::group && start < tokens_.size() && tokens_[start].word("all")) ++start;
        // FETCH FIRST | NEXT
        if (token.word("fetch") && start < tokens_.size()) ++start;
    }
    close(tokens_.size());
    // The number alone: OFFSET n ROWS, FETCH FIRST n ROWS ONLY.
    for (const Clause clause : {Clause::limit, Clause::offset}) {
        auto &body = bodies_[static_cast<std::size_t>(clause)];
        if (!body) continue;
        for (std::size_t i = body->first; i < body->end; ++i) {
            if (!tokens_[i].top() || !(tokens_[i].word("row") || tokens_[i].word("rows"))) continue;
            body->end = i;
            break;
        }
        if (body->first == body->end) body.reset();
    }
}

SelectText::Piece SelectText::piece(Range range) const {
    const auto offset = static_cast<std::uint32_t>(tokens_[range.first].raw.offset);
    return {offset, static_cast<std::uint32_t>(tokens_[range.end - 1].end()) - offset};
}

SelectText::Range SelectText::range_of(const Piece &piece) const {
    const auto at = [&](std::size_t offset) {
        return static_cast<std::size_t>(
            std::lower_bound(
                tokens_.begin(), tokens_.end(), offset,
                [](const Token &token, std::size_t wanted) { return token.raw.offset < wanted; }) -
            tokens_.begin());
    };
    return {at(piece.offset), at(piece.end())};
}

std::vector<SelectText::Piece> SelectText::parted(Range range, std::size_t depth) const {
    std::vector<Piece> pieces;
    std::size_t first = range.first;
    for (std::size_t i = range.first; i <= range.end; ++i) {
        if (i < range.end && !(tokens_[i].depth == depth && tokens_[i].symbol(','))) continue;
        if (first < i) pieces.push_back(piece({first, i}));
        first = i + 1;
    }
    return pieces;
}

std::optional<SelectText::Piece> SelectText::without_alias(const Piece &target) const {
    Range range = range_of(target);
    // U&"name" UESCAPE '!' and the like are not worth reading.
    const Token &last = tokens_[range.end - 1];
    const bool name = last.raw.kind == RawToken::Kind::word ||
                      (last.raw.kind == RawToken::Kind::quoted && last.raw.text[0] == '"');
    if (!name || range.end - range.first < 2) return std::nullopt;
    --range.end;
    if (range.end - range.first > 1 && tokens_[range.end - 1].word("as")) --range.end;
    return piece(range);
}

std::optional<SelectText::Piece> SelectText::from_parenthesis(const Piece &call) const {
    Range range = range_of(call);
    while (range.first < range.end && !tokens_[range.first].symbol('('))
        ++range.first;
    return range.first < range.end ? std::optional(piece(range)) : std::nullopt;
}

std::optional<SelectText::Call> SelectText::call_at(std::size_t offset) const {
    std::size_t at = 0;
    while (at < tokens_.size() && tokens_[at].raw.offset < offset)
        ++at;
    while (at < tokens_.size() && !(tokens_[at].top() && tokens_[at].symbol('(')))
        ++at;
    for (std::size_t end = at + 1; end < tokens_.size(); ++end) {
        if (tokens_[end].depth != 1 || !tokens_[end].symbol(')')) continue;
        return Call{piece({at - 1, at}), parted({at + 1, end}, 1),
                    static_cast<std::uint32_t>(tokens_[end].raw.offset)};
    }
    return std::nullopt;
}

std::optional<SelectText::Piece> SelectText::named_value(const Piece &argument) const {
    const Range range = range_of(argument);
    if (range.end - range.first < 4) return std::nullopt;
    const Token &first = tokens_[range.first + 1];
    const Token &second = tokens_[range.first + 2];
    const bool arrow =
        (first.symbol('=') && second.symbol('>')) || (first.symbol(':') && second.symbol('='));
    return arrow ? std::optional(piece({range.first + 3, range.end})) : std::nullopt;
}

std::optional<SelectText::Piece> SelectText::body(Clause clause) const {
    const auto &range = bodies_[static_cast<std::size_t>(clause)];
    return range ? std::optional(piece(*range)) : std::nullopt;
}

std::vector<SelectText::Piece> SelectText::items(Clause clause) const {
    const auto &range = bodies_[static_cast<std::size_t>(clause)];
    return range ? parted(*range) : std::vector<Piece>();
}

std::optional<SelectText::Piece> SelectText::without_last(const Piece &piece_,
                                                          std::size_t count) const {
    const Range range = range_of(piece_);
    if (range.end - range.first <= count) return std::nullopt;
    return piece({range.first, range.end - count});
}

}  // namespace interlock::sql
