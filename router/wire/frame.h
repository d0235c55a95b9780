// Frames of the PostgreSQL protocol, version 3: a type byte, a length that counts itself, a body.
//
// Reading is three-valued (ready, need more, malformed) and never looks beyond what has arrived.
// The length is checked here and nowhere else, before any arithmetic. Format: PostgreSQL
// documentation, "Frontend/Backend Protocol", "Message Formats".
#pragma once

#include "base/buffer.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace interlock::wire {

struct Frame {
    char type = 0;
    std::string_view body;  ///< valid until the buffer it came from is changed
    std::size_t size = 0;   ///< bytes of the whole frame in the buffer
};

enum class FrameState { ready, need_more, malformed, too_long };

inline constexpr std::size_t frame_header = 5;

/// Network byte order to the machine's, and back.
[[nodiscard]] constexpr std::uint16_t from_network(std::uint16_t value) {
    return std::endian::native == std::endian::big ? value : __builtin_bswap16(value);
}
[[nodiscard]] constexpr std::uint32_t from_network(std::uint32_t value) {
    return std::endian::native == std::endian::big ? value : __builtin_bswap32(value);
}

// Defined here, because a statement runs through them dozens of times.

[[nodiscard]] inline std::uint16_t load16(const char *bytes) {
    std::uint16_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return from_network(value);
}
[[nodiscard]] inline std::uint32_t load32(const char *bytes) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return from_network(value);
}
inline void store16(char *bytes, std::uint16_t value) {
    value = from_network(value);
    std::memcpy(bytes, &value, sizeof value);
}
inline void store32(char *bytes, std::uint32_t value) {
    value = from_network(value);
    std::memcpy(bytes, &value, sizeof value);
}

/// Looks at the frame at the front of `input`. `limit` bounds a whole frame; a longer one is
/// too_long (out.type and out.size are then set, out.body is not). The frame stays in the buffer:
/// consume(out.size) when done with it.
[[nodiscard]] inline FrameState peek_frame(const Buffer &input, std::size_t limit, Frame &out) {
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

/// Appends one frame to a buffer; the length is filled in by the destructor.
class FrameWriter {
  public:
    FrameWriter(Buffer &out, char type) : out_(out), start_(out.size()) {
        out.prepare(frame_header)[0] = type;
        out.commit(frame_header);
    }
    ~FrameWriter() {
        store32(out_.data() + start_ + 1, static_cast<std::uint32_t>(out_.size() - start_ - 1));
    }
    FrameWriter(const FrameWriter &) = delete;
    FrameWriter &operator=(const FrameWriter &) = delete;

    FrameWriter &int16(std::uint16_t value) {
        store16(out_.prepare(2), value);
        out_.commit(2);
        return *this;
    }
    FrameWriter &int32(std::uint32_t value) {
        store32(out_.prepare(4), value);
        out_.commit(4);
        return *this;
    }
    /// Bytes and a terminating zero; the bytes must not contain one.
    FrameWriter &string(std::string_view text) {
        out_.append(text);
        out_.append('\0');
        return *this;
    }
    FrameWriter &bytes(std::string_view raw) {
        out_.append(raw);
        return *this;
    }

  private:
    Buffer &out_;
    std::size_t start_;
};

/// Reads a body field by field; ok() turns false at the first field that is not wholly there.
class FieldReader {
  public:
    explicit FieldReader(std::string_view body) : rest_(body) {}
    [[nodiscard]] bool ok() const { return ok_; }
    [[nodiscard]] bool at_end() const { return rest_.empty(); }
    std::uint8_t int8() {
        if (!need(1)) return 0;
        const auto value = static_cast<std::uint8_t>(rest_[0]);
        rest_.remove_prefix(1);
        return value;
    }
    std::uint16_t int16() {
        if (!need(2)) return 0;
        const std::uint16_t value = load16(rest_.data());
        rest_.remove_prefix(2);
        return value;
    }
    std::uint32_t int32() {
        if (!need(4)) return 0;
        const std::uint32_t value = load32(rest_.data());
        rest_.remove_prefix(4);
        return value;
    }
    std::string_view string() {
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
    std::string_view bytes(std::size_t count) {
        if (!need(count)) return {};
        const std::string_view raw = rest_.substr(0, count);
        rest_.remove_prefix(count);
        return raw;
    }

    /// Everything not read yet.
    [[nodiscard]] std::string_view rest() const { return rest_; }

  private:
    bool need(std::size_t count) {
        if (!ok_ || rest_.size() < count) ok_ = false;
        return ok_;
    }
    std::string_view rest_;
    bool ok_ = true;
};

/// What an ErrorResponse or NoticeResponse says. Views into the frame.
struct ErrorFields {
    std::string_view severity;  ///< never translated (field V), e.g. ERROR, FATAL, PANIC
    std::string_view sqlstate;  ///< 5 characters; "XX000" when the server sent none
    std::string_view message;
    std::string_view detail;
    std::string_view hint;
    [[nodiscard]] bool fatal() const { return severity == "FATAL" || severity == "PANIC"; }
};

/// False when the body is malformed.
[[nodiscard]] bool parse_error(std::string_view body, ErrorFields &out);

/// The row count at the end of a CommandComplete tag ("UPDATE 3", "INSERT 0 1"); 0 when it has
/// none.
[[nodiscard]] std::uint64_t tag_count(std::string_view tag);
/// The words before the counts: "UPDATE", "INSERT", "ROLLBACK".
[[nodiscard]] std::string_view tag_name(std::string_view tag);

}  // namespace interlock::wire
