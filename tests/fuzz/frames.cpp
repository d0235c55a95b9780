// Fuzz target: the first two bytes say how the rest, bytes from a backend, is cut into reads. What
// is read must not depend on the cuts, and no field may be read beyond its frame.
#include "check.h"
#include "session/line_format.h"
#include "wire/frame.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace interlock;
using namespace interlock::wire;

constexpr std::size_t limit = 2048;

struct Reading {
    std::vector<std::string> frames;
    FrameState end = FrameState::need_more;
};

void read_ready(Buffer &buffer, Reading &reading) {
    while (reading.end == FrameState::need_more) {
        Frame frame;
        const FrameState state = peek_frame(buffer, limit, frame);
        if (state == FrameState::need_more) return;
        if (state != FrameState::ready) {
            reading.end = state;
            return;
        }
        HOLDS(frame.size == frame.body.size() + frame_header);
        HOLDS(frame.size <= limit && frame.size <= buffer.size());
        reading.frames.emplace_back(buffer.view().substr(0, frame.size));
        buffer.consume(frame.size);
    }
}

bool within(std::string_view part, std::string_view whole) {
    return part.empty() || (part.data() >= whole.data() &&
                            part.data() + part.size() <= whole.data() + whole.size());
}

void read_fields(std::string_view body) {
    FieldReader fields(body);
    for (unsigned i = 0; fields.ok() && !fields.at_end(); ++i) {
        switch (body[i % body.size()] % 5) {
        case 0: fields.int8(); break;
        case 1: fields.int16(); break;
        case 2: fields.int32(); break;
        case 3: HOLDS(within(fields.string(), body)); break;
        default: HOLDS(within(fields.bytes(fields.int16()), body)); break;
        }
    }
    if (!fields.ok()) {
        HOLDS(fields.int32() == 0 && fields.string().empty() && !fields.ok());
    }
    ErrorFields error;
    if (parse_error(body, error)) {
        HOLDS(error.sqlstate.size() == 5);
        for (const std::string_view field :
             {error.severity, error.message, error.detail, error.hint})
            HOLDS(within(field, body));
    }
    (void)tag_count(body);
    HOLDS(tag_name(body).size() <= body.size());
}

void read_rows(const Reading &reading) {
    std::size_t shared = 0;
    {
        JsonRows rows(4096, shared, 8192);
        for (const std::string &frame : reading.frames) {
            const std::string_view body = std::string_view(frame).substr(frame_header);
            if (frame[0] == 'T') rows.describe(body);
            if (frame[0] == 'D' && !rows.row(body)) break;
            HOLDS(rows.text().size() <= 4096);
            HOLDS(shared == rows.text().size());
        }
    }
    HOLDS(shared == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t first_cut = data[0];
    const std::size_t step = data[1] + std::size_t{1};
    const std::string_view bytes(reinterpret_cast<const char *>(data) + 2, size - 2);

    Reading whole;
    Buffer buffer;
    buffer.append(bytes);
    read_ready(buffer, whole);

    Reading cut;
    Buffer pieces;
    for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t piece = at == 0 && first_cut > 0 ? first_cut : step;
        pieces.append(bytes.substr(at, piece));
        at += piece;
        read_ready(pieces, cut);
        if (cut.end != FrameState::need_more) break;
    }
    HOLDS(cut.frames == whole.frames);
    HOLDS(cut.end == whole.end);

    for (const std::string &frame : whole.frames) {
        // Written again it is the same bytes.
        Buffer written;
        FrameWriter(written, frame[0]).bytes(std::string_view(frame).substr(frame_header));
        HOLDS(written.view() == frame);
        read_fields(std::string_view(frame).substr(frame_header));
    }
    read_rows(whole);
    return 0;
}
