#include "wire/frame.h"

#include <cstring>

namespace interlock::wire {

std::uint16_t load16(const char *bytes) {
    const auto *b = reinterpret_cast<const unsigned char *>(bytes);
    return static_cast<std::uint16_t>(b[0] << 8 | b[1]);
}

std::uint32_t load32(const char *bytes) {
    const auto *b = reinterpret_cast<const unsigned char *>(bytes);
    return static_cast<std::uint32_t>(b[0]) << 24 | static_cast<std::uint32_t>(b[1]) << 16 |
           static_cast<std::uint32_t>(b[2]) << 8 | b[3];
}

namespace {

void store32(char *bytes, std::uint32_t value) {
    bytes[0] = static_cast<char>(value >> 24);
    bytes[1] = static_cast<char>(value >> 16);
    bytes[2] = static_cast<char>(value >> 8);
    bytes[3] = static_cast<char>(value);
}

}  // namespace

FrameState peek_frame(const Buffer &input, std::size_t limit, Frame &out) {
    if (input.size() < frame_header) return FrameState::need_more;
    const char *bytes = input.data();
    const std::uint32_t length = load32(bytes + 1);
    if (length < 4 || length > 0x7fffffffU) return FrameState::malformed;
    out.type = bytes[0];
    out.size = static_cast<std::size_t>(length) + 1;
    if (out.size > limit) return FrameState::too_long;
    if (input.size() < out.size) return FrameState::need_more;
    out.body = {bytes + frame_header, length - 4};
    return FrameState::ready;
}

FrameWriter::FrameWriter(Buffer &out, char type) : out_(out), start_(out.size()) {
    char *header = out.prepare(frame_header);
    header[0] = type;
    out.commit(frame_header);
}

FrameWriter::~FrameWriter() {
    store32(out_.data() + start_ + 1, static_cast<std::uint32_t>(out_.size() - start_ - 1));
}

FrameWriter &FrameWriter::int16(std::uint16_t value) {
    char *bytes = out_.prepare(2);
    bytes[0] = static_cast<char>(value >> 8);
    bytes[1] = static_cast<char>(value);
    out_.commit(2);
    return *this;
}

FrameWriter &FrameWriter::int32(std::uint32_t value) {
    store32(out_.prepare(4), value);
    out_.commit(4);
    return *this;
}

FrameWriter &FrameWriter::string(std::string_view text) {
    out_.append(text);
    out_.append('\0');
    return *this;
}

FrameWriter &FrameWriter::bytes(std::string_view raw) {
    out_.append(raw);
    return *this;
}

bool FieldReader::need(std::size_t count) {
    if (!ok_ || rest_.size() < count) ok_ = false;
    return ok_;
}

std::uint8_t FieldReader::int8() {
    if (!need(1)) return 0;
    const auto value = static_cast<std::uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return value;
}

std::uint16_t FieldReader::int16() {
    if (!need(2)) return 0;
    const auto value = load16(rest_.data());
    rest_.remove_prefix(2);
    return value;
}

std::uint32_t FieldReader::int32() {
    if (!need(4)) return 0;
    const auto value = load32(rest_.data());
    rest_.remove_prefix(4);
    return value;
}

std::string_view FieldReader::string() {
    if (!ok_) return {};
    const std::size_t end = rest_.find('\0');
    if (end == std::string_view::npos) {
        ok_ = false;
        return {};
    }
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
}

std::string_view FieldReader::bytes(std::size_t count) {
    if (!need(count)) return {};
    const std::string_view raw = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return raw;
}

bool parse_error(std::string_view body, ErrorFields &out) {
    FieldReader fields(body);
    out = ErrorFields{};
    for (;;) {
        const auto code = static_cast<char>(fields.int8());
        if (!fields.ok()) return false;
        if (code == '\0') break;
        const std::string_view value = fields.string();
        if (!fields.ok()) return false;
        switch (code) {
        case 'V': out.severity = value; break;
        case 'C': out.sqlstate = value; break;
        case 'M': out.message = value; break;
        case 'D': out.detail = value; break;
        case 'H': out.hint = value; break;
        default: break;
        }
    }
    if (out.sqlstate.size() != 5) out.sqlstate = "XX000";
    return true;
}

std::uint64_t tag_count(std::string_view tag) {
    const std::size_t space = tag.rfind(' ');
    if (space == std::string_view::npos) return 0;
    std::uint64_t count = 0;
    for (const char c : tag.substr(space + 1)) {
        if (c < '0' || c > '9') return 0;
        count = count * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return count;
}

std::string_view tag_name(std::string_view tag) {
    std::size_t end = 0;
    while (end < tag.size() && !(tag[end] >= '0' && tag[end] <= '9'))
        ++end;
    while (end > 0 && tag[end - 1] == ' ')
        --end;
    return tag.substr(0, end);
}

}  // namespace interlock::wire
