// Frames of the PostgreSQL protocol, version 3: a type byte, a length that counts itself, a body.
//
// Reading is three-valued (ready, need more, malformed) and never looks beyond what has arrived.
// The length is checked here and nowhere else, before any arithmetic. Format: PostgreSQL
// documentation, "Frontend/Backend Protocol", "Message Formats".
#pragma once

#include "base/buffer.h"

#include <cstdint>
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

/// Looks at the frame at the front of `input`. `limit` bounds a whole frame; a longer one is
/// too_long (out.type and out.size are then set, out.body is not). The frame stays in the buffer:
/// consume(out.size) when done with it.
[[nodiscard]] FrameState peek_frame(const Buffer &input, std::size_t limit, Frame &out);

[[nodiscard]] std::uint16_t load16(const char *bytes);
[[nodiscard]] std::uint32_t load32(const char *bytes);

/// Appends one frame to a buffer; the length is filled in by the destructor.
class FrameWriter {
  public:
    FrameWriter(Buffer &out, char type);
    ~FrameWriter();
    FrameWriter(const FrameWriter &) = delete;
    FrameWriter &operator=(const FrameWriter &) = delete;

    FrameWriter &int16(std::uint16_t value);
    FrameWriter &int32(std::uint32_t value);
    /// Bytes and a terminating zero; the bytes must not contain one.
    FrameWriter &string(std::string_view text);
    FrameWriter &bytes(std::string_view raw);

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
    std::uint8_t int8();
    std::uint16_t int16();
    std::uint32_t int32();
    std::string_view string();
    std::string_view bytes(std::size_t count);
    /// Everything not read yet.
    [[nodiscard]] std::string_view rest() const { return rest_; }

  private:
    bool need(std::size_t count);
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
