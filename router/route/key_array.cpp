#include "route/key_array.h"

namespace interlock {

namespace {

bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_null(std::string_view word) {
    constexpr std::string_view null = "null";
    if (word.size() != null.size()) return false;
    for (std::size_t i = 0; i < null.size(); ++i)
        if (word[i] != null[i] && word[i] != null[i] - ('a' - 'A')) return false;
    return true;
}

}  // namespace

void TextArray::skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_]))
        ++at_;
}

ArrayStep TextArray::next(std::string_view &element) {
    skip_blanks();
    if (at_ == text_.size()) return ArrayStep::malformed;
    if (!started_) {
        started_ = true;
        if (text_[at_] != '{') return ArrayStep::malformed;
        ++at_;
        skip_blanks();
        if (at_ < text_.size() && text_[at_] == '}') return last();
    } else {
        if (text_[at_] == '}') return last();
        if (text_[at_] != ',') return ArrayStep::malformed;
        ++at_;
        skip_blanks();
    }
    if (at_ == text_.size()) return ArrayStep::malformed;
    return text_[at_] == '"' ? quoted(element) : bare(element);
}

ArrayStep TextArray::quoted(std::string_view &element) {
    ++at_;
    scratch_.clear();
    for (; at_ < text_.size(); ++at_) {
        if (text_[at_] == '"') {
            ++at_;
            element = scratch_;
            return ArrayStep::element;
        }
        if (text_[at_] == '\\' && ++at_ == text_.size()) break;
        scratch_ += text_[at_];
    }
    return ArrayStep::malformed;
}

ArrayStep TextArray::bare(std::string_view &element) {
    const std::size_t end = text_.find_first_of(",}{\"\\", at_);
    if (end == std::string_view::npos || (text_[end] != ',' && text_[end] != '}'))
        return ArrayStep::malformed;
    std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    while (!word.empty() && is_blank(word.back()))
        word.remove_suffix(1);
    if (word.empty()) return ArrayStep::malformed;
    if (is_null(word)) return ArrayStep::null;
    element = word;
    return ArrayStep::element;
}

/// At the closing brace: only blanks may follow.
ArrayStep TextArray::last() const {
    for (std::size_t i = at_ + 1; i < text_.size(); ++i)
        if (!is_blank(text_[i])) return ArrayStep::malformed;
    return ArrayStep::end;
}

std::optional<std::uint32_t> BinaryArray::number() {
    if (rest_.size() < 4) return std::nullopt;
    std::uint32_t value = 0;
    for (const char c : rest_.substr(0, 4))
        value = value << 8 | static_cast<unsigned char>(c);
    rest_.remove_prefix(4);
    return value;
}

BinaryArray::BinaryArray(std::string_view bytes) : rest_(bytes) {
    const auto dimensions = number();
    const auto flags = number();
    const auto type = number();
    if (!type || *dimensions > 1 || *flags > 1) return;
    if (*dimensions == 1) {
        const auto size = number();
        const auto lower_bound = number();
        // Each element takes four bytes at least.
        if (!lower_bound || *size > rest_.size() / 4) return;
        left_ = *size;
    }
    element_type_ = type;
}

ArrayStep BinaryArray::next(std::string_view &element) {
    if (!element_type_) return ArrayStep::malformed;
    if (left_ == 0) return rest_.empty() ? ArrayStep::end : ArrayStep::malformed;
    --left_;
    const auto length = number();
    if (!length) return ArrayStep::malformed;
    if (*length == 0xFFFFFFFF) return ArrayStep::null;
    if (*length > rest_.size()) return ArrayStep::malformed;
    element = rest_.substr(0, *length);
    rest_.remove_prefix(*length);
    return ArrayStep::element;
}

}  // namespace interlock
