#include "session/merged_rows.h"

#include "base/log.h"
#include "plan/index_choice.h"
#include "session/index_page.h"
#include "session/scatter.h"

namespace interlock {

std::unique_ptr<MergedRows> merged_rows(Worker &worker, ScatterRequest request, Event *gave_up) {
    const sql::Scatter &scatter = *request.facts->scatter;
    const Values values{request.text, request.literals, request.parameters};
    if (const GlobalIndex *index = choose_index(scatter, values, *request.routes->table).index)
        return std::make_unique<IndexPage>(worker, std::move(request), *index, gave_up);
    return std::make_unique<Scatter>(worker, std::move(request), gave_up);
}

std::optional<Refusal> MergedRows::notice() const {
    const std::vector<std::string> &missing = missing_shards();
    if (missing.empty()) return std::nullopt;
    std::string quoted;
    std::string plain;
    for (const std::string &name : missing) {
        quoted += (quoted.empty() ? "\"" : ", \"") + name + "\"";
        plain += (plain.empty() ? "" : ", ") + name;
    }
    Refusal notice =
        make_refusal(Code::shard_timeout, format("page is incomplete: no answer from shard%s %s",
                                                 missing.size() == 1 ? "" : "s", quoted.c_str()));
    notice.detail = "missing_shards: " + plain;
    return notice;
}

}  // namespace interlock
