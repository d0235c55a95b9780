#include "sql/scope.h"

#include <algorithm>

namespace interlock::sql {

namespace {

bool is_system_column(std::string_view name) {
    return name == "ctid" || name == "tableoid" || name == "xmin" || name == "xmax" ||
           name == "cmin" || name == "cmax";
}

/// What a level has under an unqualified name.
struct Found {
    Target target;
    int matches = 0;
    bool open = false;
};

Found find_column(const Scope &scope, std::string_view name) {
    Found found;
    for (const Item &item : scope.items) {
        if (!item.columns_visible) continue;
        bool open = false;
        bool matched = false;
        if (item.join != nullptr) {
            open = item.join->open;
            for (const JoinColumn &column : item.join->columns) {
                if (column.name != name) continue;
                matched = true;
                found.target = column.target;
                ++found.matches;
            }
        } else if (const Target target = find_in_item(item, *scope.level, name, open)) {
            matched = true;
            found.target = target;
            ++found.matches;
        }
        found.open = found.open || (open && !matched);
    }
    return found;
}

/// The item a qualified name's relation part means, on the innermost level that has one.
struct FoundItem {
    const Item *item = nullptr;
    Level *level = nullptr;
};

FoundItem find_item(const PgQuery__ColumnRef &reference, const Scope &scope) {
    const std::string_view relation = string_of(reference.fields[reference.n_fields - 2]);
    const std::string_view schema =
        reference.n_fields == 3 ? string_of(reference.fields[0]) : std::string_view();
    for (const Scope *at = &scope; at != nullptr; at = at->parent) {
        FoundItem found;
        for (const Item &item : at->items) {
            if (!item.name_visible || item.name != relation) continue;
            if (reference.n_fields == 3 && item.schema != schema) continue;
            if (found.item != nullptr) return {};  // ambiguous
            found = {&item, at->level};
        }
        if (found.item != nullptr) return found;
    }
    return {};
}

}  // namespace

std::string_view string_of(const Node *node) {
    return node != nullptr && node->node_case == PG_QUERY__NODE__NODE_STRING
               ? std::string_view(node->string->sval)
               : std::string_view();
}

std::string_view Relation::column_name(std::size_t column) const {
    if (kind != Kind::table) return outputs.columns[column].name;
    if (column < renamed.size()) return renamed[column];
    return table->columns[column].name;
}

std::uint32_t Relation::column_type(std::size_t column) const {
    if (kind != Kind::table) return outputs.columns[column].type;
    const std::uint32_t type = table->columns[column].type_oid;
    return key_type_of_oid(type) ? type : 0;
}

// A text column that is no shard key may have a nondeterministic collation, under which different
// values are equal; a shard key never has one.
bool Relation::linkable(std::size_t column) const {
    if (kind != Kind::table) return outputs.columns[column].linkable;
    const auto type = key_type_of_oid(table->columns[column].type_oid);
    return type && (*type != KeyType::text || is_key(column));
}

std::optional<std::uint32_t> Relation::find(std::string_view column) const {
    if (kind == Kind::table && renamed.empty()) {
        const auto found = table->find_column(column);
        return found ? std::optional<std::uint32_t>(*found) : std::nullopt;
    }
    std::optional<std::uint32_t> found;
    for (std::size_t i = 0; i < columns(); ++i) {
        if (column_name(i) != column) continue;
        if (found) return std::nullopt;
        found = static_cast<std::uint32_t>(i);
    }
    return found;
}

void rename(Outputs &outputs, Node **names, std::size_t count) {
    // With columns that are not known among them, which one a name belongs to is not known.
    if (outputs.open && count > 0) outputs.columns.clear();
    for (std::size_t i = 0; i < count; ++i) {
        if (i == outputs.columns.size()) outputs.columns.emplace_back();
        outputs.columns[i].name = string_of(names[i]);
    }
}

Target find_in_item(const Item &item, Level &level, std::string_view name, bool &open) {
    if (item.join != nullptr) {
        open = item.join->open;
        Target target;
        for (const JoinColumn &column : item.join->columns) {
            if (column.name != name) continue;
            if (target) return {};
            target = column.target;
        }
        return target;
    }
    const Relation &relation = level.relations[item.relation];
    open = relation.open();
    const auto column = relation.find(name);
    if (!column) return {};
    return {&level, item.relation, *column};
}

void expand_items(const std::vector<Item> &items, Level &level, JoinColumns &out) {
    for (const Item &item : items) {
        if (!item.columns_visible) continue;
        if (item.join != nullptr) {
            out.columns.insert(out.columns.end(), item.join->columns.begin(),
                               item.join->columns.end());
            out.open = out.open || item.join->open;
            continue;
        }
        const Relation &relation = level.relations[item.relation];
        for (std::uint32_t i = 0; i < relation.columns(); ++i)
            out.columns.push_back({relation.column_name(i), {&level, item.relation, i}});
        out.open = out.open || relation.open();
    }
}

Target resolve(const PgQuery__ColumnRef &reference, const Scope &scope) {
    const std::size_t fields = reference.n_fields;
    if (fields == 0 || fields > 3) return {};
    const std::string_view name = string_of(reference.fields[fields - 1]);
    if (name.empty() || is_system_column(name)) return {};
    if (fields > 1) {
        const FoundItem found = find_item(reference, scope);
        bool open = false;
        if (found.item == nullptr) return {};
        return find_in_item(*found.item, *found.level, name, open);
    }
    for (const Scope *at = &scope; at != nullptr; at = at->parent) {
        const Found found = find_column(*at, name);
        if (found.matches == 1) return found.target;
        if (found.matches > 1 || found.open) return {};
    }
    return {};
}

bool may_call_function(const PgQuery__ColumnRef &reference, const Scope &scope) {
    if (reference.n_fields < 2) return false;
    const std::string_view name = string_of(reference.fields[reference.n_fields - 1]);
    if (name.empty() || is_system_column(name)) return false;
    if (resolve(reference, scope)) return false;
    if (reference.n_fields > 3) return true;
    // A column of a join that is no single column is one all the same.
    const FoundItem found = find_item(reference, scope);
    if (found.item == nullptr || found.item->join == nullptr) return true;
    return std::none_of(found.item->join->columns.begin(), found.item->join->columns.end(),
                        [&](const JoinColumn &column) { return column.name == name; });
}

}  // namespace interlock::sql
