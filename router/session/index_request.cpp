#include "session/index_request.h"

#include "base/log.h"
#include "session/scatter_request.h"

#include <algorithm>
#include <vector>

namespace interlock {

// Parameters that do not stand in the arguments are none of the index's affair. A parameter that
// had its type from an argument that is left out is given it.
std::shared_ptr<const ShardRequest> entries_request(const ScatterRequest &request,
                                                    const GlobalIndex &index,
                                                    const sql::EntryWish &wish) {
    const sql::Scatter &scatter = *request.facts->scatter;
    std::vector<BoundParameter> parameters = request.parameters;
    ShardStatement statement;
    statement.text = sql::entries_text(scatter.call, request.text, index, wish);
    statement.types = request.types;
    statement.types.resize(std::max(statement.types.size(), parameters.size()), 0);
    for (std::size_t i = 0; i < statement.types.size(); ++i) {
        std::uint32_t &type = statement.types[i];
        if (!sql::entries_use(scatter.call, wish, static_cast<std::uint32_t>(i))) {
            type = oid::text;
            if (i < parameters.size()) parameters[i] = BoundParameter{std::nullopt, false, type};
            continue;
        }
        if (type != 0 && type != oid::unknown) continue;
        const auto stands = [&](const sql::ValueSource &source) {
            return source.from == sql::ValueSource::From::parameter && source.index == i;
        };
        if (stands(scatter.keyset))
            type = scatter.keyset.cast != 0 ? scatter.keyset.cast : oid::text;
        else if (stands(scatter.page_size))
            type = scatter.page_size.cast != 0 ? scatter.page_size.cast : oid::int4;
    }
    statement.parameters = parameters;
    statement.hidden = 1;
    statement.most = wish.size;
    return shard_request(request, statement);
}

std::shared_ptr<const ShardRequest> rows_request(const ScatterRequest &request,
                                                 std::span<const std::string> cursors) {
    const sql::Scatter &scatter = *request.facts->scatter;
    ShardStatement statement;
    statement.text = sql::rows_text(scatter, request.text, cursors);
    statement.types = request.types;
    statement.parameters = request.parameters;
    statement.formats = shard_formats(scatter, request.formats);
    statement.hidden = scatter.hidden;
    statement.most = cursors.size();
    return shard_request(request, statement);
}

// The index's database is needed, whatever partial pages are allowed.
Refusal told_of_index(Refusal refusal, const GlobalIndex &index, const std::string &database) {
    const bool away = refusal.code == Code::R30 || refusal.code == Code::R33 ||
                      refusal.code == Code::R34 || refusal.code == Code::shard_timeout;
    if (away) {
        refusal.detail +=
            (refusal.detail.empty() ? "" : " ") +
            format("It holds index \"%s\", which this page is read from.", index.name.c_str());
        refusal.hint += (refusal.hint.empty() ? "" : " ") +
                        std::string("With /* interlock: scatter */ in front of the statement all "
                                    "shards answer in its place.");
    } else if (refusal.code == Code::R31 && refusal.detail.empty()) {
        refusal.detail = format("This is what database %s says, which holds index \"%s\".",
                                database.c_str(), index.name.c_str());
    }
    return refusal;
}

bool unknown_there(const Refusal &refusal) {
    return refusal.code == Code::R31 &&
           (refusal.sqlstate == "42P01" || refusal.sqlstate == "42704" ||
            refusal.sqlstate == "3F000");
}

}  // namespace interlock
