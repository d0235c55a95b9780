// Fuzz target: the input is a request line. It is refused, or decoded, judged and planned; what was
// decoded survives being encoded again, and every answer is one clean line.
#include "../unit/fixtures.h"
#include "check.h"
#include "session/line_format.h"

#include <optional>
#include <string>
#include <string_view>

namespace {

using namespace interlock;

constexpr std::size_t max_parameters = 100;

std::string encoded(const LineRequest &request) {
    std::string line = "Q\t" + percent_encoded(request.sql);
    for (const Parameter &parameter : request.parameters)
        line += "\t" + (parameter ? percent_encoded(*parameter) : "\\N");
    return line;
}

/// One line without control characters.
void check_line(const Buffer &out) {
    const std::string_view line = out.view();
    HOLDS(line.ends_with('\n'));
    for (const char c : line.substr(0, line.size() - 1))
        HOLDS(static_cast<unsigned char>(c) >= 0x20);
}

/// The text of a JSON string that begins at `at` (behind its quote); `at` moves behind its end.
std::string json_string(std::string_view json, std::size_t &at) {
    std::string text;
    while (json.at(at) != '"') {
        char c = json.at(at++);
        HOLDS(static_cast<unsigned char>(c) >= 0x20);
        if (c == '\\') {
            c = json.at(at++);
            const std::size_t plain = std::string_view("\"\\nrt").find(c);
            if (c == 'u') {
                c = static_cast<char>(std::stoi(std::string(json.substr(at, 4)), nullptr, 16));
                at += 4;
            } else {
                HOLDS(plain != std::string_view::npos);
                c = "\"\\\n\r\t"[plain];
            }
        }
        text += c;
    }
    ++at;
    return text;
}

/// Sends the parameters back as a row of texts and reads the JSON that a client would get.
void check_row(const LineRequest &request) {
    Buffer frames;
    {
        wire::FrameWriter row(frames, 'D');
        row.int16(static_cast<std::uint16_t>(request.parameters.size()));
        for (const Parameter &parameter : request.parameters) {
            if (parameter)
                row.int32(static_cast<std::uint32_t>(parameter->size())).bytes(*parameter);
            else
                row.int32(0xFFFFFFFF);
        }
    }
    std::size_t shared = 0;
    JsonRows rows(1 << 20, shared, 1 << 20);
    HOLDS(rows.row(frames.view().substr(wire::frame_header)));
    const std::string_view json = rows.text();
    std::size_t at = 0;
    HOLDS(json.at(at++) == '[');
    for (std::size_t i = 0; i < request.parameters.size(); ++i) {
        if (i > 0) HOLDS(json.at(at++) == ',');
        if (!request.parameters[i]) {
            HOLDS(json.substr(at, 4) == "null");
            at += 4;
            continue;
        }
        HOLDS(json.at(at++) == '"');
        HOLDS(json_string(json, at) == *request.parameters[i]);
    }
    HOLDS(json.substr(at) == "]");
}

void check_refusal(const Refusal &refusal) {
    Reply reply;
    reply.refusal = refusal;
    std::size_t shared = 0;
    const JsonRows rows(0, shared, 0);
    Buffer out;
    append_reply(out, reply, rows);
    check_line(out);
    HOLDS(out.view().starts_with("ERR code=R"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view line(reinterpret_cast<const char *>(data), size);
    LineRequest request;
    std::string error;
    if (!parse_line(line, max_parameters, request, error)) {
        HOLDS(!error.empty());
        check_refusal(Refusal{Code::R02, error, {}, {}, {}, 0});
        return 0;
    }
    if (request.verb == Verb::status) return 0;
    HOLDS(request.parameters.size() <= max_parameters);
    HOLDS(valid_utf8(request.sql));

    LineRequest again;
    HOLDS(parse_line(encoded(request), max_parameters, again, error));
    HOLDS(again.sql == request.sql && again.parameters == request.parameters);
    check_row(request);

    const RouteTable &routes = *test::reference_table();
    const auto statement = sql::analyse_strict(request.sql, routes);
    if (!statement) {
        check_refusal(statement.error());
        return 0;
    }
    if (statement->transaction_control()) return 0;
    const auto shard = plan(*statement, request.parameters, routes);
    if (!shard) {
        check_refusal(shard.error());
        return 0;
    }
    HOLDS(shard->shard < routes.shards.size());
    // Each key leads to that shard by itself.
    for (const std::uint16_t position : statement->keys) {
        HOLDS(request.parameters[position].has_value());
        const auto key = parse_key(statement->table->key_type, *request.parameters[position]);
        HOLDS(key.has_value());
        HOLDS(routes.keyspaces[statement->table->keyspace].shard_of(*key) == shard->shard);
    }
    return 0;
}
