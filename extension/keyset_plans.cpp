#include "pg.h"

extern "C" {
#include "utils/plancache.h"
#include "utils/rls.h"
}

#include "keyset_plans.h"

namespace interlock {

namespace {

// NULLs in many columns make many sets; an application uses few.
constexpr int most_sets = 64;

// The planner has to see how little is asked for, or it sorts; so the limit is in the text, rounded
// up, and the executor is told the exact number.
std::int32_t limit_class(std::int32_t page_size) {
    for (std::int32_t limit : {100, 1000, 10000})
        if (page_size <= limit) return limit;
    return 0;
}

void free_set(PlanSet *set) {
    for (int i = 0; i < set->count; ++i)
        if (set->plans[i] != nullptr) SPI_freeplan(set->plans[i]);
    pfree(set->ranges);
    pfree(set->plans);
    pfree(set);
}

PagePlans *page_plans(Keyset *keyset) {
    if (keyset->plans != nullptr) return keyset->plans;
    const KeysetDeclaration &declaration = keyset->declaration;
    PagePlans *plans =
        static_cast<PagePlans *>(MemoryContextAllocZero(keyset->context, sizeof(PagePlans)));
    plans->types = static_cast<Oid *>(MemoryContextAlloc(
        keyset->context,
        sizeof(Oid) * static_cast<std::size_t>(declaration.scope_count + declaration.order_count)));
    plans->row_types = static_cast<Oid *>(MemoryContextAlloc(
        keyset->context,
        sizeof(Oid) * static_cast<std::size_t>(declaration.scope_count + declaration.order_count)));
    for (int i = 0; i < declaration.scope_count; ++i)
        plans->types[i] = plans->row_types[i] = keyset->scope_sort[i].base;
    for (int i = 0; i < declaration.order_count; ++i) {
        const int number = declaration.scope_count + i;
        plans->types[number] = keyset->order_sort[i].base;
        plans->row_types[number] = get_array_type(keyset->order_sort[i].base);
    }
    return keyset->plans = plans;
}

const char *range_query(const Keyset &keyset, const PlanSet &set, const Range &range) {
    const KeysetDeclaration &declaration = keyset.declaration;
    int scope_numbers[max_keyset_columns], order_numbers[max_keyset_columns];
    for (int i = 0; i < declaration.scope_count; ++i)
        scope_numbers[i] = i + 1;
    for (int i = 0; i < declaration.order_count; ++i)
        order_numbers[i] = declaration.scope_count + i + 1;
    const ParameterStyle style = {keyset.row_alias, scope_numbers, order_numbers, false};
    StringInfoData query;
    initStringInfo(&query);
    appendStringInfo(&query, keyset.plain_rows ? "SELECT %s.*" : "SELECT %s", keyset.row_alias);
    for (int i = 0; i < declaration.order_count && !keyset.plain_rows; ++i) {
        appendStringInfoString(&query, ", ");
        append_column(&query, style, keyset.order[i]);
    }
    appendStringInfo(&query, " FROM %s AS %s WHERE ", keyset.table, keyset.row_alias);
    const bool has_scope = append_scope_condition(&query, keyset, style);
    if (has_scope && range.kind != Range::Kind::all) appendStringInfoString(&query, " AND ");
    if (!has_scope || range.kind != Range::Kind::all)
        append_range_condition(&query, keyset, style, range, set.backward, set.null_mask);
    appendStringInfoString(&query, " ORDER BY ");
    append_order_by(&query, keyset, style, set.backward);
    if (set.limit > 0) appendStringInfo(&query, " LIMIT %d", set.limit);
    return query.data;
}

// The rows are looked up one by one: the sub-select with its OFFSET is not put into the whole.
const char *rows_query(const Keyset &keyset) {
    const KeysetDeclaration &declaration = keyset.declaration;
    int scope_numbers[max_keyset_columns];
    for (int i = 0; i < declaration.scope_count; ++i)
        scope_numbers[i] = i + 1;
    const ParameterStyle style = {keyset.row_alias, scope_numbers, nullptr, false};
    StringInfoData query;
    initStringInfo(&query);
    appendStringInfoString(&query, "SELECT wanted.place, found.item FROM ROWS FROM (");
    for (int i = 0; i < declaration.order_count; ++i)
        appendStringInfo(&query, "%spg_catalog.unnest($%d)", i > 0 ? ", " : "",
                         declaration.scope_count + i + 1);
    appendStringInfoString(&query, ") WITH ORDINALITY AS wanted(");
    for (int i = 0; i < declaration.order_count; ++i)
        appendStringInfo(&query, "c%d, ", i + 1);
    appendStringInfo(&query, "place) CROSS JOIN LATERAL (SELECT %s AS item FROM %s AS %s WHERE ",
                     keyset.row_alias, keyset.table, keyset.row_alias);
    append_lookup_condition(&query, keyset, style, "wanted");
    appendStringInfoString(&query, " OFFSET 0) AS found ORDER BY wanted.place");
    return query.data;
}

// Whether the next execution would plan it anew. (What this misses is planned as the session's
// settings have it: right, but perhaps slower.)
bool needs_planning(const CachedPlanSource &source) {
    const CachedPlan *plan = source.gplan;
    return !source.is_valid || plan == nullptr || !plan->is_valid ||
           (plan->dependsOnRole && plan->planRoleId != GetUserId()) ||
           (source.dependsOnRLS &&
            (source.rewriteRoleId != GetUserId() || source.rewriteRowSecurity != row_security)) ||
           !OverrideSearchPathMatchesCurrent(source.search_path);
}

// Plans it with some of the planner's ways switched off, if it is not planned yet.
void plan_without(SPIPlanPtr plan, std::initializer_list<const char *> ways) {
    const CachedPlanSource *source =
        static_cast<const CachedPlanSource *>(linitial(SPI_plan_get_plan_sources(plan)));
    if (likely(!needs_planning(*source))) return;
    const int level = NewGUCNestLevel();
    for (const char *setting : ways)
        set_config_option(setting, "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
                          false);
    CachedPlan *cached = SPI_plan_get_cached_plan(plan);
    if (cached != nullptr) ReleaseCachedPlan(cached, CurrentResourceOwner);
    AtEOXact_GUC(true, level);
}

SPIPlanPtr make_plan(const Keyset &keyset, const char *query, Oid *types) {
    const KeysetDeclaration &declaration = keyset.declaration;
    // One plan for all values: what is best for one merchant's page is best for every merchant's.
    SPIPlanPtr plan = SPI_prepare_cursor(query, declaration.scope_count + declaration.order_count,
                                         types, CURSOR_OPT_GENERIC_PLAN);
    if (plan == nullptr)
        elog(ERROR, "SPI_prepare_cursor failed: %s", SPI_result_code_string(SPI_result));
    if (SPI_keepplan(plan) != 0) elog(ERROR, "SPI_keepplan failed");
    return plan;
}

}  // namespace

PlanSet *plans_for(Keyset *keyset, bool backward, bool has_cursor, std::uint32_t null_mask,
                   std::int32_t page_size) {
    PagePlans *plans = page_plans(keyset);
    const std::int32_t limit = limit_class(page_size);
    for (PlanSet *set = plans->first; set != nullptr; set = set->next)
        if (set->backward == backward && set->has_cursor == has_cursor &&
            set->null_mask == null_mask && set->limit == limit)
            return set;
    // Only this call's pin: nobody is running one of them.
    if (plans->count >= most_sets && keyset->pins <= 1)
        free_plans(keyset), plans = page_plans(keyset);
    Range ranges[max_ranges];
    const int count = list_ranges(*keyset, backward, has_cursor, null_mask, ranges);
    const std::size_t room = static_cast<std::size_t>(count + 1);
    MemoryContext old = MemoryContextSwitchTo(keyset->context);
    PlanSet *set = static_cast<PlanSet *>(palloc0(sizeof(PlanSet)));
    set->ranges = static_cast<Range *>(palloc0(sizeof(Range) * room));
    set->plans = static_cast<SPIPlanPtr *>(palloc0(sizeof(SPIPlanPtr) * room));
    MemoryContextSwitchTo(old);
    set->backward = backward;
    set->has_cursor = has_cursor;
    set->null_mask = null_mask;
    set->limit = limit;
    set->count = count;
    for (int i = 0; i < count; ++i)
        set->ranges[i] = ranges[i];
    set->next = plans->first;
    plans->first = set;
    ++plans->count;
    return set;
}

SPIPlanPtr plan_of_range(Keyset *keyset, PlanSet *set, int range) {
    if (unlikely(set->plans[range] == nullptr))
        set->plans[range] = make_plan(*keyset, range_query(*keyset, *set, set->ranges[range]),
                                      keyset->plans->types);
    // Where an index holds the order, a page must not sort: its cost would grow with the range,
    // which the planner believes to be small, not knowing the values.
    if (keyset->missing_index == nullptr)
        plan_without(set->plans[range], {"enable_sort", "enable_incremental_sort"});
    return set->plans[range];
}

SPIPlanPtr plan_of_rows(Keyset *keyset) {
    PagePlans *plans = page_plans(keyset);
    if (unlikely(plans->rows == nullptr))
        plans->rows = make_plan(*keyset, rows_query(*keyset), plans->row_types);
    // The table may be small yet.
    plan_without(plans->rows, {"enable_seqscan", "enable_bitmapscan"});
    return plans->rows;
}

void free_plans(Keyset *keyset) {
    if (keyset->plans == nullptr) return;
    for (PlanSet *set = keyset->plans->first; set != nullptr;) {
        PlanSet *next = set->next;
        free_set(set);
        set = next;
    }
    if (keyset->plans->rows != nullptr) SPI_freeplan(keyset->plans->rows);
    pfree(keyset->plans->types);
    pfree(keyset->plans->row_types);
    pfree(keyset->plans);
    keyset->plans = nullptr;
}

}  // namespace interlock
