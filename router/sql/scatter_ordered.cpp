// SELECT ... FROM table ORDER BY ... LIMIT n.
#include "sql/scatter_analysis.h"
#include "sql/tree.h"

namespace interlock::sql {

bool ScatterAnalysis::ordered() {
    scatter_.kind = ScatterKind::ordered;
    for (std::size_t i = 0; i < statement_.n_target_list; ++i) {
        const Node *value = statement_.target_list[i]->res_target->val;
        if (!is_star(value) && !check(value, Use::row)) return false;
    }
    if (statement_.n_sort_clause == 0)
        return refuse(-1, "rows of all shards need an order to be merged by",
                      "Add ORDER BY that ends in a unique NOT NULL key, and LIMIT.");
    std::vector<Key> keys;
    for (std::size_t i = 0; i < statement_.n_sort_clause; ++i) {
        auto key = sort_key(i);
        if (!key) return false;
        keys.push_back(std::move(*key));
    }
    if (statement_.limit_count == nullptr)
        return refuse(-1, "rows of all shards need a LIMIT",
                      "Add LIMIT; for all rows read page after page (interlock.keyset_page).");
    if (!limits()) return false;
    if (scatter_.limit.from == ValueSource::From::null)
        return refuse(location_within(statement_.limit_count), "rows of all shards need a LIMIT",
                      "Give the LIMIT a number.");
    note_order(keys);
    add_hidden(merge_key(keys));
    return true;
}

// Columns whose uniqueness makes the order total. A column under a collation of the statement's own
// may hold different values that are equal there, unless it compares bytes.
void ScatterAnalysis::note_order(const std::vector<Key> &keys) {
    for (const Key &key : keys) {
        scatter_.text_order = scatter_.text_order || by_collation(key);
        auto column = key.column;
        if (!column && key.node->node_case == PG_QUERY__NODE__NODE_COLLATE_CLAUSE &&
            !by_collation(key))
            column = column_of(key.node->collate_clause->arg);
        if (column) scatter_.order_columns.push_back(table().columns[*column].name);
    }
}

}  // namespace interlock::sql
