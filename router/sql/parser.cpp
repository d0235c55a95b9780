#include "sql/parser.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
extern "C" {
#include <pg_query.h>
}

namespace interlock::sql {

namespace {

constexpr std::size_t first_block = std::size_t{32} << 10;
constexpr std::size_t largest_block = std::size_t{1} << 20;

struct ParserResult {
    explicit ParserResult(PgQueryProtobufParseResult result) : value(result) {}
    ~ParserResult() { pg_query_free_protobuf_parse_result(value); }
    ParserResult(const ParserResult &) = delete;
    ParserResult &operator=(const ParserResult &) = delete;
    PgQueryProtobufParseResult value;
};

}  // namespace

TreeArena::TreeArena() = default;

TreeArena::~TreeArena() {
    for (char *block : blocks_)
        std::free(block);
}

void *TreeArena::allocate(std::size_t bytes) {
    bytes = (bytes + alignof(std::max_align_t) - 1) & ~(alignof(std::max_align_t) - 1);
    if (bytes > left_) {
        const std::size_t doubled =
            std::min(first_block << std::min<std::size_t>(blocks_.size(), 8), largest_block);
        const std::size_t size = std::max(doubled, bytes);
        auto *block = static_cast<char *>(std::malloc(size));
        if (block == nullptr) throw std::bad_alloc();
        blocks_.push_back(block);
        at_ = block;
        left_ = size;
    }
    void *result = at_;
    at_ += bytes;
    left_ -= bytes;
    return result;
}

Result<ParseTree, Refusal> parse(const std::string &text) {
    const ParserResult parsed(pg_query_parse_protobuf(text.c_str()));
    if (const PgQueryError *error = parsed.value.error) {
        Refusal refusal = make_refusal(Code::R01, error->message);
        refusal.sqlstate = "42601";
        refusal.position = std::max(error->cursorpos, 0);
        return refusal;
    }
    ParseTree tree;
    tree.arena = std::make_unique<TreeArena>();
    ProtobufCAllocator allocator = {[](void *arena, std::size_t bytes) {
                                        return static_cast<TreeArena *>(arena)->allocate(bytes);
                                    },
                                    [](void *, void *) {}, tree.arena.get()};
    tree.result = pg_query__parse_result__unpack(
        &allocator, parsed.value.parse_tree.len,
        reinterpret_cast<const std::uint8_t *>(parsed.value.parse_tree.data));
    if (tree.result == nullptr)
        return make_refusal(Code::R01, "the parse tree of the statement cannot be read");
    return tree;
}

}  // namespace interlock::sql
