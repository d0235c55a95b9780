// Fuzz target: the input is a statement's text. Its literals are where PostgreSQL's scanner
// (libpg_query) finds them, and texts of one shape are parsed into one tree once their literals are
// made the same.
#include "sql/shape.h"
#include "check.h"

#include <pg_query.h>
#include <pg_query/pg_query.pb-c.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

using namespace interlock::sql;

// libpg_query's parser recurses without looking at the stack.
constexpr std::size_t max_text = 4096;
constexpr std::size_t max_parsed = 512;
constexpr std::size_t max_literals = 40;
constexpr std::size_t max_remembered = 50000;

Shape shape_of(std::string_view text) {
    Shape shape;
    make_shape(text, shape);
    return shape;
}

void check_literals(std::string_view text, const Shape &shape) {
    std::size_t end = 0;
    std::string scratch;
    for (const Literal &literal : shape.literals) {
        HOLDS(literal.length > 0 && literal.offset >= end);
        end = std::size_t{literal.offset} + literal.length;
        HOLDS(end <= text.size());
        const std::string_view spelled = text.substr(literal.offset, literal.length);
        const char first = spelled.front();
        switch (literal.kind) {
        case LiteralKind::integer:
            HOLDS(std::all_of(spelled.begin(), spelled.end(),
                              [](unsigned char c) { return std::isdigit(c); }));
            break;
        case LiteralKind::number:
            HOLDS(first == '.' || std::isdigit(static_cast<unsigned char>(first)));
            break;
        case LiteralKind::string: HOLDS(first == '\''); break;
        case LiteralKind::escape: HOLDS(first == 'E' || first == 'e'); break;
        case LiteralKind::dollar: HOLDS(first == '$'); break;
        case LiteralKind::other: break;
        }
        const auto value = literal_value(text, literal, scratch);
        HOLDS(value || literal.kind >= LiteralKind::string);
        if (value) HOLDS(value->size() <= spelled.size());
    }
    HOLDS(shape.text.size() <= text.size() + 1);
    HOLDS(shape.statements >= 1);
}

struct Token {
    std::size_t start = 0;
    std::size_t end = 0;
    PgQuery__Token kind = PG_QUERY__TOKEN__NUL;
};

/// False: the scanner does not accept the text.
bool scan(const std::string &text, std::vector<Token> &tokens) {
    const PgQueryScanResult result = pg_query_scan(text.c_str());
    const bool accepted = result.error == nullptr;
    if (accepted) {
        PgQuery__ScanResult *scanned = pg_query__scan_result__unpack(
            nullptr, result.pbuf.len, reinterpret_cast<const std::uint8_t *>(result.pbuf.data));
        HOLDS(scanned != nullptr);
        for (std::size_t i = 0; i < scanned->n_tokens; ++i) {
            const PgQuery__ScanToken &token = *scanned->tokens[i];
            tokens.push_back({static_cast<std::size_t>(token.start),
                              static_cast<std::size_t>(token.end), token.token});
        }
        pg_query__scan_result__free_unpacked(scanned, nullptr);
    }
    pg_query_free_scan_result(result);
    return accepted;
}

LiteralKind kind_of(const Token &token, std::string_view text) {
    const std::string_view spelled = text.substr(token.start, token.end - token.start);
    switch (token.kind) {
    case PG_QUERY__TOKEN__ICONST: return LiteralKind::integer;
    case PG_QUERY__TOKEN__FCONST:
        return spelled.find_first_of(".eE") == std::string_view::npos ? LiteralKind::integer
                                                                      : LiteralKind::number;
    case PG_QUERY__TOKEN__SCONST:
        if (spelled.front() == '$') return LiteralKind::dollar;
        return spelled.front() == '\'' ? LiteralKind::string : LiteralKind::escape;
    default: return LiteralKind::other;
    }
}

/// The literals that the scanner found, as a shape gives them.
std::vector<Literal> scanned_literals(const std::vector<Token> &tokens, std::string_view text) {
    std::vector<Literal> literals;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Token &token = tokens[i];
        switch (token.kind) {
        case PG_QUERY__TOKEN__ICONST:
        case PG_QUERY__TOKEN__FCONST:
        case PG_QUERY__TOKEN__SCONST:
        case PG_QUERY__TOKEN__USCONST:
        case PG_QUERY__TOKEN__BCONST:
        case PG_QUERY__TOKEN__XCONST: break;
        default: continue;
        }
        Literal literal{static_cast<std::uint32_t>(token.start),
                        static_cast<std::uint32_t>(token.end - token.start), kind_of(token, text)};
        // N'...' is the word NCHAR, spelled N, and a string.
        const bool national = i > 0 && tokens[i - 1].kind == PG_QUERY__TOKEN__NCHAR &&
                              tokens[i - 1].start + 1 == token.start;
        if (national) {
            --literal.offset;
            ++literal.length;
            literal.kind = LiteralKind::other;
        }
        literals.push_back(literal);
    }
    return literals;
}

/// Whether a string has more than one piece, to someone who knows where it begins and ends.
bool joined(std::string_view spelled) {
    // After the last quote but one that is not doubled or escaped there is a line break. The
    // scanner's tokens do not tell; a break next to a quote is near enough.
    return spelled.find_first_of("\n\r") != std::string_view::npos;
}

void check_against_scanner(const std::string &text, const Shape &shape) {
    std::vector<Token> tokens;
    if (!scan(text, tokens)) return;
    // libpg_query does not join pieces with a "--" comment between them; PostgreSQL does.
    for (const Literal &literal : shape.literals)
        if (literal.kind == LiteralKind::other &&
            text.substr(literal.offset, literal.length).find("--") != std::string::npos)
            return;
    HOLDS(shape.complete);
    const std::vector<Literal> expected = scanned_literals(tokens, text);
    HOLDS(expected.size() == shape.literals.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const Literal &ours = shape.literals[i];
        const Literal &theirs = expected[i];
        HOLDS(ours.offset == theirs.offset);
        const bool unicode = text[ours.offset] == 'U' || text[ours.offset] == 'u';
        if (!unicode) HOLDS(ours.length == theirs.length);  // U& tokens end after the U
        const bool more_pieces =
            ours.kind == LiteralKind::other && joined(text.substr(ours.offset, ours.length));
        HOLDS(ours.kind == theirs.kind || more_pieces);
    }
}

/// Two literals of the same kind as the old one, each of which reads alone where that did.
struct Pair {
    std::string first;
    std::string second;
};
Pair others(std::string_view spelled, LiteralKind kind) {
    switch (kind) {
    case LiteralKind::integer: {
        while (spelled.size() > 1 && spelled.front() == '0')
            spelled.remove_prefix(1);
        const auto above = [&](std::string_view largest) {
            return spelled.size() > largest.size() ||
                   (spelled.size() == largest.size() && spelled > largest);
        };
        if (above("9223372036854775807")) return {"99999999999999999999", "99999999999999999998"};
        if (above("2147483647")) return {"3000000011", "3000000037"};
        return {"11", "37"};
    }
    case LiteralKind::number:
        return spelled.front() == '.' ? Pair{".7e7", ".7e8"} : Pair{"7e7", "7e8"};
    case LiteralKind::string: return {"'!'", "'@'"};
    case LiteralKind::escape: return {"E'!'", "E'\\u0040'"};
    case LiteralKind::dollar: return {"$$!$$", "$a$@$a$"};
    case LiteralKind::other: break;
    }
    switch (spelled.front()) {
    case 'b':
    case 'B': return {"b'1'", "B'1'"};
    case 'x':
    case 'X': return {"x'1'", "X'1'"};
    case 'n':
    case 'N': return {"n'!'", "N'@'"};
    case 'u':
    case 'U': return {"u&''", "U&''"};  // any character may be the escape of a UESCAPE
    case 'e':
    case 'E': return {"e'!'\n''", "E'@'\n''"};
    default: return {"'!'\n''", "'@'\n''"};
    }
}

/// The text with every literal made the first, or the second, of its pair. Each step must keep the
/// shape, but for the literals that a shape holds as they are written: those stay.
std::string with_literals(std::string_view text, const Shape &shape, std::string Pair::*which) {
    std::string edited(text);
    std::ptrdiff_t moved = 0;
    const bool keeps_some = shape.text.find("uescape") != std::string::npos ||
                            shape.text.find("float") != std::string::npos;
    for (const Literal &literal : shape.literals) {
        const std::string by =
            others(text.substr(literal.offset, literal.length), literal.kind).*which;
        std::string next = edited;
        next.replace(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(literal.offset) + moved),
                     literal.length, by);
        const Shape after = shape_of(next);
        if (after.text != shape.text) {
            HOLDS(keeps_some);
            continue;
        }
        HOLDS(after.literals.size() == shape.literals.size());
        edited = std::move(next);
        moved +=
            static_cast<std::ptrdiff_t>(by.size()) - static_cast<std::ptrdiff_t>(literal.length);
    }
    return edited;
}

void replace_all(std::string &text, std::string_view what, std::string_view by) {
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
        text.replace(at, what.size(), by);
}

/// The parse tree without places in the text, and without what differs in pairs of literals;
/// "error" for what is no statement.
std::string tree_of(const std::string &text) {
    const PgQueryParseResult result = pg_query_parse(text.c_str());
    std::string tree = "error";
    if (result.error == nullptr) {
        tree.clear();
        std::string_view rest = result.parse_tree;
        while (!rest.empty()) {
            bool place = false;
            for (const std::string_view field :
                 {"\"location\":", "\"stmt_location\":", "\"stmt_len\":"})
                if (rest.starts_with(field)) {
                    rest.remove_prefix(field.size());
                    rest.remove_prefix(
                        std::min(rest.find_first_not_of("-0123456789"), rest.size()));
                    if (rest.starts_with(',')) rest.remove_prefix(1);
                    place = true;
                    break;
                }
            if (place) continue;
            if (rest.starts_with(",}"))
                rest.remove_prefix(1);
            else {
                tree += rest.front();
                rest.remove_prefix(1);
            }
        }
    }
    pg_query_free_parse_result(result);
    replace_all(tree, "99999999999999999998", "99999999999999999999");
    replace_all(tree, "37", "11");
    replace_all(tree, "7e8", "7e7");
    replace_all(tree, ".7e7", "7e7");  // each kept as it was spelled, where a shape keeps some
    replace_all(tree, "\"@\"", "\"!\"");
    return tree;
}

struct Remembered {
    std::string text;
    std::string tree;
};

void check_tree(const std::string &text, const Shape &shape) {
    static std::unordered_map<std::string, Remembered> seen;
    if (seen.size() > max_remembered) seen.clear();
    const auto [found, added] = seen.try_emplace(shape.text);
    if (added) {
        found->second = {text, tree_of(text)};
        return;
    }
    if (found->second.text == text) return;
    const std::string tree = tree_of(text);
    if (tree != found->second.tree)
        std::fprintf(stderr, "of one shape, but parsed into different trees:\n%s\n%s\n",
                     found->second.text.c_str(), text.c_str());
    HOLDS(tree == found->second.tree);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string text(reinterpret_cast<const char *>(data), std::min(size, max_text));
    const Shape shape = shape_of(text);
    check_literals(text, shape);

    // Storage used before makes no difference.
    static Shape reused;
    make_shape(text, reused);
    HOLDS(reused.text == shape.text && reused.complete == shape.complete);
    HOLDS(reused.literals.size() == shape.literals.size());
    HOLDS(reused.statements == shape.statements);

    if (text.find('\0') != std::string::npos) return 0;  // no such text reaches the lexer
    check_against_scanner(text, shape);
    if (!shape.complete) return 0;

    HOLDS(shape_of("/* a */ -- b\n" + text).text == shape.text);
    HOLDS(shape_of(text + " /* a */\n").text == shape.text);
    if (shape.literals.size() > max_literals || text.size() > max_parsed) return 0;
    const std::string first = with_literals(text, shape, &Pair::first);
    check_tree(first, shape);
    check_tree(with_literals(text, shape, &Pair::second), shape);
    return 0;
}
