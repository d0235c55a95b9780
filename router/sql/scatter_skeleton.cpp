#include "sql/scatter_skeleton.h"

#include <algorithm>
#include <span>

namespace interlock::sql {

namespace {

std::size_t end_of(const Literal &literal) {
    return std::size_t{literal.offset} + literal.length;
}

// An edit that takes a literal away would have to know what it said.
bool covers_literal(std::size_t offset, std::size_t length, std::span<const Literal> literals) {
    return std::any_of(literals.begin(), literals.end(), [&](const Literal &literal) {
        return literal.offset < offset + length && end_of(literal) > offset;
    });
}

std::uint32_t moved(std::uint32_t offset, std::span<const Literal> from,
                    std::span<const Literal> to) {
    std::int64_t by = 0;
    for (std::size_t i = 0; i < from.size() && end_of(from[i]) <= offset; ++i)
        by += std::int64_t{to[i].length} - std::int64_t{from[i].length};
    return static_cast<std::uint32_t>(std::int64_t{offset} + by);
}

}  // namespace

std::string skeleton(std::string_view text, const Shape &shape) {
    std::string result;
    result.reserve(shape.text.size() + text.size() + 1);
    result.append(shape.text).append(1, '\0');
    std::size_t at = 0;
    for (const Literal &literal : shape.literals) {
        result.append(text.substr(at, literal.offset - at)).append(1, '\0');
        at = end_of(literal);
    }
    return result.append(text.substr(at));
}

std::shared_ptr<const Facts> keepable_page(const Facts &facts, const Shape &shape) {
    if (!facts.scatter || facts.scatter->kind != ScatterKind::keyset_page) return nullptr;
    for (const TextEdit &edit : facts.scatter->edits)
        if (covers_literal(edit.offset, edit.length, shape.literals)) return nullptr;
    const DefaultPage &page = facts.scatter->default_page;
    if (page.needed && covers_literal(page.offset, page.length, shape.literals)) return nullptr;
    auto scatter = std::make_shared<Scatter>(*facts.scatter);
    scatter->literals = shape.literals;
    auto kept = std::make_shared<Facts>(facts);
    kept->scatter = std::move(scatter);
    return kept;
}

std::shared_ptr<const Facts> page_facts(const Facts &kept, const Shape &shape) {
    auto scatter = std::make_shared<Scatter>(*kept.scatter);
    for (TextEdit &edit : scatter->edits)
        edit.offset = moved(edit.offset, scatter->literals, shape.literals);
    scatter->default_page.offset =
        moved(scatter->default_page.offset, scatter->literals, shape.literals);
    PageCall &call = scatter->call;
    call.name_offset = moved(call.name_offset, scatter->literals, shape.literals);
    call.close = moved(call.close, scatter->literals, shape.literals);
    for (PageCall::Argument &argument : call.arguments) {
        const std::uint32_t end =
            moved(argument.offset + argument.length, scatter->literals, shape.literals);
        argument.offset = moved(argument.offset, scatter->literals, shape.literals);
        argument.length = end - argument.offset;
    }
    scatter->literals = shape.literals;
    auto facts = std::make_shared<Facts>(kept);
    facts->scatter = std::move(scatter);
    return facts;
}

}  // namespace interlock::sql
