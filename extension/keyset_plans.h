// The saved plans of a keyset's pages.
#pragma once

#include "keyset.h"

namespace interlock {

/// One way to go on from a place: the ranges, and a plan for each.
struct PlanSet {
    bool backward;
    bool has_cursor;
    std::uint32_t null_mask;
    std::int32_t limit;  ///< of the plans; 0: none
    int count;
    Range *ranges;
    SPIPlanPtr *plans;  ///< made when they are first needed
    PlanSet *next;
};

struct PagePlans {
    PlanSet *first;
    int count;
    Oid *types;       ///< of the parameters: the scope's columns, then the order's
    SPIPlanPtr rows;  ///< of keyset_rows(); nullptr: not made yet
    Oid *row_types;   ///< of its parameters: the scope's columns, then arrays of the order's
};

/// The plans for this direction, place of NULLs and page size.
PlanSet *plans_for(Keyset *keyset, bool backward, bool has_cursor, std::uint32_t null_mask,
                   std::int32_t page_size);

/// The plan of one range. Its rows are the table's columns where rows are plain, else the table's
/// row as one value and then the order's columns. Call between SPI_connect() and SPI_finish().
SPIPlanPtr plan_of_range(Keyset *keyset, PlanSet *set, int range);

/// The plan that looks rows up by arrays of their order's columns. It gives, in the order of the
/// arrays, the position in them, from 1, and the table's row as one value. Call between
/// SPI_connect() and SPI_finish().
SPIPlanPtr plan_of_rows(Keyset *keyset);

void free_plans(Keyset *keyset);

}  // namespace interlock
