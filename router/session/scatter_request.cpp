#include "session/scatter_request.h"

#include <algorithm>

namespace interlock {

std::string shard_text(const sql::Scatter &scatter, std::string_view text,
                       std::uint64_t default_page) {
    if (!scatter.default_page.needed) return sql::edited(text, scatter.edits);
    const sql::DefaultPage &place = scatter.default_page;
    std::vector<sql::TextEdit> edits = scatter.edits;
    const auto behind = std::find_if(edits.begin(), edits.end(), [&](const sql::TextEdit &edit) {
        return edit.offset > place.offset;
    });
    edits.insert(behind, {place.offset, place.length,
                          place.before + std::to_string(default_page) + place.after});
    return sql::edited(text, edits);
}

std::vector<std::uint16_t> shard_formats(const sql::Scatter &scatter,
                                         const std::vector<std::uint16_t> &formats) {
    std::vector<std::uint16_t> all = formats;
    if (scatter.kind == sql::ScatterKind::aggregate) {
        if (all.size() <= 1) all.assign(scatter.columns.size(), all.empty() ? 0 : all[0]);
        for (std::uint16_t i = 0; i < scatter.hidden; ++i)
            all.push_back(scatter.grouped && i == 0 ? 0 : 1);
        return all;
    }
    // One format for all: hidden columns are of type text, whose bytes are the same in both.
    if (all.size() > 1) all.resize(all.size() + scatter.hidden, 0);
    return all;
}

std::shared_ptr<const ShardRequest> shard_request(const ScatterRequest &request,
                                                  const ScatterExtent &extent) {
    const sql::Scatter &scatter = *request.facts->scatter;
    ShardStatement statement;
    statement.text = shard_text(scatter, request.text, extent.default_page);
    statement.types = request.types;
    statement.parameters = request.parameters;
    statement.formats = shard_formats(scatter, request.formats);
    statement.hidden = scatter.hidden;
    statement.most = extent.fetch;
    // An aggregate's transaction is still needed when the rows have been read.
    statement.leave_open = scatter.kind == sql::ScatterKind::aggregate;
    return shard_request(request, statement);
}

std::shared_ptr<const ShardRequest> shard_request(const ScatterRequest &request,
                                                  const ShardStatement &statement) {
    auto made = std::make_shared<ShardRequest>();
    made->parameters = request.parameters_in_force;
    made->hidden = statement.hidden;
    made->most = statement.most;
    made->facts = request.facts;

    Buffer out;
    if (!request.prologue.empty()) {
        made->prologue = true;
        wire::FrameWriter(out, 'Q').string(request.prologue);
    }
    {
        wire::FrameWriter parse(out, 'P');
        parse.string("").string(statement.text);
        parse.int16(static_cast<std::uint16_t>(statement.types.size()));
        for (const std::uint32_t type : statement.types)
            parse.int32(type);
    }
    {
        const auto count = static_cast<std::uint16_t>(statement.parameters.size());
        wire::FrameWriter bind(out, 'B');
        bind.string("").string("").int16(count);
        for (const BoundParameter &parameter : statement.parameters)
            bind.int16(parameter.binary ? 1 : 0);
        bind.int16(count);
        for (const BoundParameter &parameter : statement.parameters) {
            if (!parameter.bytes)
                bind.int32(0xFFFFFFFFU);
            else
                bind.int32(static_cast<std::uint32_t>(parameter.bytes->size()))
                    .bytes(*parameter.bytes);
        }
        bind.int16(static_cast<std::uint16_t>(statement.formats.size()));
        for (const std::uint16_t each : statement.formats)
            bind.int16(each);
    }
    wire::FrameWriter(out, 'D').bytes("P").string("");
    wire::FrameWriter(out, 'E').string("").int32(0);
    wire::FrameWriter(out, 'S');
    made->frames.assign(out.view());

    if (made->prologue && !statement.leave_open) {
        Buffer tail;
        wire::FrameWriter(tail, 'Q').string("ROLLBACK");
        made->tail.assign(tail.view());
    }
    return made;
}

}  // namespace interlock
