#include "session/pg_reply.h"

#include "wire/frame.h"

#include <string>

namespace interlock::pg_reply {

namespace {

using wire::FrameWriter;

void field(FrameWriter &frame, char code, std::string_view value) {
    // A NUL would end the field early; nothing of ours holds one, a client's text might.
    frame.bytes({&code, 1}).string(value.substr(0, value.find('\0')));
}

void head(FrameWriter &frame, std::string_view severity, std::string_view sqlstate,
          std::string_view message) {
    field(frame, 'S', severity);
    field(frame, 'V', severity);
    field(frame, 'C', sqlstate);
    field(frame, 'M', message);
}

void end(FrameWriter &frame) {
    frame.bytes({"\0", 1});
}

}  // namespace

void error(Buffer &out, const Refusal &refusal) {
    FrameWriter frame(out, 'E');
    if (refusal.code == Code::R31) {
        head(frame, "ERROR", refusal.state(), refusal.message);
    } else {
        std::string message(code_entry(refusal.code).name);
        message += ": ";
        message += refusal.message;
        head(frame, "ERROR", refusal.state(), message);
    }
    if (!refusal.detail.empty()) field(frame, 'D', refusal.detail);
    if (!refusal.hint.empty()) field(frame, 'H', refusal.hint);
    if (refusal.position > 0) field(frame, 'P', std::to_string(refusal.position));
    end(frame);
}

void fatal(Buffer &out, std::string_view sqlstate, std::string_view message,
           std::string_view detail, std::string_view hint) {
    FrameWriter frame(out, 'E');
    head(frame, "FATAL", sqlstate, message);
    if (!detail.empty()) field(frame, 'D', detail);
    if (!hint.empty()) field(frame, 'H', hint);
    end(frame);
}

void warning(Buffer &out, std::string_view sqlstate, std::string_view message) {
    FrameWriter frame(out, 'N');
    head(frame, "WARNING", sqlstate, message);
    end(frame);
}

void notice(Buffer &out, const Refusal &refusal) {
    FrameWriter frame(out, 'N');
    head(frame, "NOTICE", refusal.state(), refusal.message);
    if (!refusal.detail.empty()) field(frame, 'D', refusal.detail);
    if (!refusal.hint.empty()) field(frame, 'H', refusal.hint);
    end(frame);
}

void command_complete(Buffer &out, std::string_view tag) {
    FrameWriter(out, 'C').string(tag);
}

void ready(Buffer &out, char transaction) {
    FrameWriter(out, 'Z').bytes({&transaction, 1});
}

void parameter_status(Buffer &out, std::string_view name, std::string_view value) {
    FrameWriter(out, 'S').string(name).string(value);
}

void backend_key(Buffer &out, std::uint32_t pid, std::uint32_t secret) {
    FrameWriter(out, 'K').int32(pid).int32(secret);
}

void plain(Buffer &out, char type) {
    FrameWriter(out, type).bytes({});
}

void text_column(Buffer &out, std::string_view name) {
    constexpr std::uint32_t text_oid = 25;
    FrameWriter(out, 'T')
        .int16(1)
        .string(name)
        .int32(0)
        .int16(0)
        .int32(text_oid)
        .int16(0xFFFF)
        .int32(0xFFFFFFFF)
        .int16(0);
}

void text_row(Buffer &out, std::string_view value) {
    FrameWriter(out, 'D').int16(1).int32(static_cast<std::uint32_t>(value.size())).bytes(value);
}

}  // namespace interlock::pg_reply
