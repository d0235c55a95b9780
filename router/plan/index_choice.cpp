#include "plan/index_choice.h"

#include "plan/scatter_values.h"

#include <utility>

namespace interlock {

IndexChoice choose_index(const sql::Scatter &scatter, const Values &values,
                         const RouteTable &routes) {
    using Why = IndexChoice::Why;
    IndexChoice choice;
    if (scatter.kind != sql::ScatterKind::keyset_page || routes.indexes.empty()) return choice;
    if (scatter.keyset.from == sql::ValueSource::From::parameter &&
        scatter.keyset.index >= values.parameters.size()) {
        choice.why = Why::not_known;
        return choice;
    }
    auto name = scatter_text(scatter.keyset, values, "keyset");
    if (!name || !*name) return choice;
    choice.name = std::move(**name);
    const GlobalIndex *index = routes.find_index(choice.name);
    if (index == nullptr) return choice;
    if (index->table != scatter.table)
        choice.why = Why::other_table;
    else if (!index->ready)
        choice.why = Why::not_ready;
    else if (scatter.allowed_by_hint)
        choice.why = Why::hint;
    else if (!scatter.call.sound)
        choice.why = Why::spelling;
    else
        choice = {Why::index, index, std::move(choice.name)};
    return choice;
}

}  // namespace interlock
