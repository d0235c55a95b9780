// The lexer follows PostgreSQL's scanner (src/backend/parser/scan.l of 15) only as far as a shape
// needs: where literals, comments, quoted names and words begin and end. What lies between is
// copied byte by byte; whether there was a gap between two tokens stays visible, so the same
// characters always read as the same tokens.
#include "sql/shape.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace interlock::sql {

namespace {

// Marks that stand for literals. The scanner accepts no control character outside of quotes, so
// they cannot be confused with text; such characters are written as `illegal`.
enum Mark : char {
    mark_int4 = 1,  ///< an integer literal's type goes by its size
    mark_int8,
    mark_huge,
    mark_number,
    mark_string,
    mark_escape,
    mark_dollar,
    mark_joined,
    mark_bits = 14,
    mark_hex,
    mark_unicode,
    mark_national,
    illegal = 30,
    unfinished = 31,
};

enum Class : std::uint8_t {
    plain,  ///< operators, punctuation, and what only a syntax error can hold
    control,
    space,
    letter,  ///< starts a word; every byte outside ASCII does
    digit,
    quote,
    name_quote,
    dollar,
    dot,
    minus,
    slash,
    parenthesis,
    semicolon,
};

constexpr bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
constexpr bool is_newline(char c) {
    return c == '\n' || c == '\r';
}

struct Tables {
    std::array<Class, 256> classes{};
    std::array<char, 256> in_word{};  ///< how a byte of a word is written; 0: it ends the word
};

constexpr Tables make_tables() {
    Tables tables;
    for (int c = 0; c < 256; ++c) {
        Class kind = c < ' ' ? control : plain;
        const bool upper = c >= 'A' && c <= 'Z';
        if (upper || (c >= 'a' && c <= 'z') || c == '_' || c >= 0x80) kind = letter;
        if (c >= '0' && c <= '9') kind = digit;
        switch (c) {
        case ' ':
        case '\t':
        case '\n':
        case '\r':
        case '\f': kind = space; break;
        case '\'': kind = quote; break;
        case '"': kind = name_quote; break;
        case '$': kind = dollar; break;
        case '.': kind = dot; break;
        case '-': kind = minus; break;
        case '/': kind = slash; break;
        case '(': kind = parenthesis; break;
        case ';': kind = semicolon; break;
        default: break;
        }
        const auto at = static_cast<std::size_t>(c);
        tables.classes[at] = kind;
        if (kind == letter || kind == digit || kind == dollar)
            tables.in_word[at] = static_cast<char>(upper ? c + ('a' - 'A') : c);
    }
    return tables;
}

constexpr Tables tables = make_tables();

Class class_of(char c) {
    return tables.classes[static_cast<unsigned char>(c)];
}
char in_word(char c) {
    return tables.in_word[static_cast<unsigned char>(c)];
}

/// By the type PostgreSQL gives to an integer constant.
Mark integer_mark(std::string_view digits) {
    while (digits.size() > 1 && digits.front() == '0')
        digits.remove_prefix(1);
    constexpr std::string_view largest_int4 = "2147483647";
    constexpr std::string_view largest_int8 = "9223372036854775807";
    const auto fits = [&](std::string_view largest) {
        return digits.size() < largest.size() ||
               (digits.size() == largest.size() && digits <= largest);
    };
    return fits(largest_int4) ? mark_int4 : fits(largest_int8) ? mark_int8 : mark_huge;
}

/// Storage beyond this is given back when it is not needed.
constexpr std::size_t kept_capacity = std::size_t{64} * 1024;

class Lexer {
  public:
    Lexer(std::string_view text, Shape &out)
        : begin_(text.data()), end_(text.data() + text.size()), at_(begin_), out_(out) {
        // Nothing is written longer than it was read, but for the mark of an unfinished text.
        out.text.resize(text.size() + 1);
        first_ = written_ = piece_ = out.text.data();
    }

    void run() {
        while (at_ < end_)
            next();
        end_piece();
        out_.statements = pieces_ == 0 ? 1 : pieces_;
        if (!out_.complete) *written_++ = unfinished;
        out_.text.resize(static_cast<std::size_t>(written_ - first_));
    }

  private:
    /// Literals whose value decides how the rest is parsed stay in the shape as they are written:
    /// UESCAPE 'c' (it can spell a name) and FLOAT(n) (it names one of two types).
    enum class Keep : std::uint8_t { no, after_parenthesis, next_literal };

    void next() {
        const char c = *at_;
        const Class kind = class_of(c);
        switch (kind) {
        case space:
            gap_ = true;
            ++at_;
            return;
        case minus:
            if (follows('-')) return line_comment();
            break;
        case slash:
            if (follows('*')) return block_comment();
            break;
        default: break;
        }
        if (gap_) {
            if (written_ != piece_) *written_++ = ' ';
            gap_ = false;
        }
        const Keep keep = keep_;
        keep_ = Keep::no;
        switch (kind) {
        case letter: return word(keep);
        case digit: return number(keep);
        case quote: return string(at_, mark_string, keep);
        case name_quote: return quoted_name(at_);
        case dollar: return after_dollar(keep);
        case dot:
            if (follows('.')) {  // "1..10" is three tokens
                copy(at_, at_ + 2);
                at_ += 2;
                return;
            }
            if (at_ + 1 < end_ && is_digit(at_[1])) return number(keep);
            break;
        case parenthesis:
            if (keep == Keep::after_parenthesis) keep_ = Keep::next_literal;
            break;
        case semicolon: end_piece(); break;
        default: break;
        }
        *written_++ = kind == control ? static_cast<char>(illegal) : c;
        ++at_;
        if (kind == semicolon) piece_ = written_;
    }

    [[nodiscard]] bool follows(char c) const { return at_ + 1 < end_ && at_[1] == c; }

    void copy(const char *from, const char *to) {
        const auto length = static_cast<std::size_t>(to - from);
        std::memcpy(written_, from, length);
        written_ += length;
    }

    void end_piece() {
        if (written_ != piece_) ++pieces_;
    }

    void line_comment() {
        while (at_ < end_ && !is_newline(*at_))
            ++at_;
        gap_ = true;
    }

    void block_comment() {
        const char *from = at_;
        int depth = 1;
        at_ += 2;
        while (depth > 0) {
            if (at_ + 1 >= end_) {
                at_ = end_;
                out_.complete = false;
                break;
            }
            if (at_[0] == '*' && at_[1] == '/') {
                --depth;
                at_ += 2;
            } else if (at_[0] == '/' && at_[1] == '*') {
                ++depth;
                at_ += 2;
            } else {
                ++at_;
            }
        }
        if (!is_hint(from)) {
            gap_ = true;
            return;
        }
        const bool starts_piece = written_ == piece_;
        copy(from, at_);
        if (starts_piece) piece_ = written_;  // a hint alone is no statement
    }

    [[nodiscard]] bool is_hint(const char *comment) const {
        const char *word = comment + 2;
        while (word < at_ && class_of(*word) == space)
            ++word;
        constexpr std::string_view mark = "interlock:";
        if (static_cast<std::size_t>(at_ - word) < mark.size()) return false;
        for (std::size_t i = 0; i < mark.size(); ++i) {
            const char c = word[i];
            if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c) != mark[i])
                return false;
        }
        return true;
    }

    void word(Keep keep) {
        const char *from = at_;
        const char *const to = written_;
        for (char c = 0; at_ < end_ && (c = in_word(*at_)) != 0; ++at_)
            *written_++ = c;
        const auto length = at_ - from;
        if (length == 1 && at_ < end_) {
            if (*at_ == '\'' && prefixed_string(from, keep)) return;
            if (*at_ == '&' && *to == 'u' && at_ + 1 < end_) {
                if (at_[1] == '\'') {
                    --written_;
                    at_ += 1;
                    return string(from, mark_unicode, keep);
                }
                if (at_[1] == '"') {
                    --written_;
                    at_ += 1;
                    return quoted_name(from);
                }
            }
            return;
        }
        if (length == 5 && *to == 'f' && std::memcmp(to, "float", 5) == 0)
            keep_ = Keep::after_parenthesis;
        else if (length == 7 && *to == 'u' && std::memcmp(to, "uescape", 7) == 0)
            keep_ = Keep::next_literal;
    }

    /// The word of one letter that was just written may belong to the quote after it.
    bool prefixed_string(const char *from, Keep keep) {
        Mark mark = mark_string;
        switch (written_[-1]) {
        case 'e': mark = mark_escape; break;
        case 'b': mark = mark_bits; break;
        case 'x': mark = mark_hex; break;
        case 'n': mark = mark_national; break;
        default: return false;
        }
        --written_;
        string(from, mark, keep);
        return true;
    }

    void literal(const char *from, LiteralKind kind, Mark mark, Keep keep) {
        out_.literals.push_back({static_cast<std::uint32_t>(from - begin_),
                                 static_cast<std::uint32_t>(at_ - from), kind});
        if (keep == Keep::next_literal)
            copy(from, at_);
        else
            *written_++ = mark;
    }

    void digits() {
        while (at_ < end_ && is_digit(*at_))
            ++at_;
    }

    void number(Keep keep) {
        const char *from = at_;
        LiteralKind kind = LiteralKind::integer;
        digits();
        if (at_ < end_ && *at_ == '.' && !follows('.')) {
            kind = LiteralKind::number;
            ++at_;
            digits();
        }
        if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
            const char *exponent = at_ + 1;
            if (exponent < end_ && (*exponent == '+' || *exponent == '-')) ++exponent;
            if (exponent < end_ && is_digit(*exponent)) {
                kind = LiteralKind::number;
                at_ = exponent;
                digits();
            }
        }
        const std::string_view spelled(from, static_cast<std::size_t>(at_ - from));
        literal(from, kind, kind == LiteralKind::integer ? integer_mark(spelled) : mark_number,
                keep);
    }

    /// Past the closing quote of the piece whose opening quote is at at_.
    void skip_piece(Mark mark) {
        ++at_;
        for (; at_ < end_; ++at_) {
            if (mark == mark_escape) {
                while (at_ < end_ && *at_ != '\'' && *at_ != '\\')
                    ++at_;
            } else {
                const void *found = std::memchr(at_, '\'', static_cast<std::size_t>(end_ - at_));
                at_ = found == nullptr ? end_ : static_cast<const char *>(found);
            }
            if (at_ == end_) break;
            // A bit string knows no doubled quotes.
            const bool escaped =
                *at_ == '\\' || (follows('\'') && mark != mark_bits && mark != mark_hex);
            ++at_;
            if (!escaped) return;
            if (at_ == end_) break;
        }
        out_.complete = false;
    }

    /// The opening quote of the next piece of the string that ended before at_, if there is one:
    /// pieces are joined when a line break, among white space and "--" comments, parts them.
    [[nodiscard]] const char *next_piece() const {
        bool newline = false;
        for (const char *p = at_; p < end_; ++p) {
            if (*p == '\'') return newline ? p : nullptr;
            if (is_newline(*p)) {
                newline = true;
            } else if (*p == '-') {
                if (p + 1 == end_ || p[1] != '-') return nullptr;
                while (p + 1 < end_ && !is_newline(p[1]))
                    ++p;
            } else if (class_of(*p) != space) {
                return nullptr;
            }
        }
        return nullptr;
    }

    /// A string whose opening quote is at at_ and whose prefix, if any, starts at `from`.
    void string(const char *from, Mark mark, Keep keep) {
        skip_piece(mark);
        bool joined = false;
        while (out_.complete) {
            const char *more = next_piece();
            if (more == nullptr) break;
            joined = true;
            at_ = more;
            skip_piece(mark);
        }
        LiteralKind kind = LiteralKind::other;
        if (mark == mark_string) kind = LiteralKind::string;
        if (mark == mark_escape) kind = LiteralKind::escape;
        if (joined && kind != LiteralKind::other) {
            kind = LiteralKind::other;
            mark = mark_joined;
        }
        literal(from, kind, mark, keep);
    }

    /// A quoted name whose opening quote is at at_ and whose prefix, if any, starts at `from`.
    void quoted_name(const char *from) {
        ++at_;
        for (;;) {
            const void *found =
                at_ == end_ ? nullptr : std::memchr(at_, '"', static_cast<std::size_t>(end_ - at_));
            if (found == nullptr) {
                at_ = end_;
                out_.complete = false;
                break;
            }
            at_ = static_cast<const char *>(found) + 1;
            if (at_ == end_ || *at_ != '"') break;
            ++at_;
        }
        copy(from, at_);
    }

    /// $1, $tag$ ... $tag$, or a lone dollar sign.
    void after_dollar(Keep keep) {
        const char *from = at_++;
        if (at_ < end_ && is_digit(*at_)) {
            digits();
            return copy(from, at_);
        }
        const char *tag = at_;
        if (tag < end_ && class_of(*tag) == letter)
            while (tag < end_ && (class_of(*tag) == letter || is_digit(*tag)))
                ++tag;
        if (tag == end_ || *tag != '$') return copy(from, at_);
        const std::string_view delimiter(from, static_cast<std::size_t>(tag + 1 - from));
        const std::string_view rest(tag + 1, static_cast<std::size_t>(end_ - tag - 1));
        const std::size_t found = rest.find(delimiter);
        if (found == std::string_view::npos) {
            at_ = end_;
            out_.complete = false;
        } else {
            at_ = rest.data() + found + delimiter.size();
        }
        literal(from, LiteralKind::dollar, mark_dollar, keep);
    }

    const char *begin_;
    const char *end_;
    const char *at_;
    Shape &out_;
    char *first_ = nullptr;
    char *written_ = nullptr;
    char *piece_ = nullptr;  ///< where what follows the last semicolon begins
    int pieces_ = 0;
    bool gap_ = false;  ///< white space or a comment since the last token
    Keep keep_ = Keep::no;
};

}  // namespace

void make_shape(std::string_view text, Shape &out) {
    // A rare large statement does not hold its memory for ever.
    if (text.size() < kept_capacity && out.text.capacity() > kept_capacity) out = {};
    out.clear();
    Lexer(text, out).run();
}

}  // namespace interlock::sql
