// How text compares under a collation, and bytes that compare alike. The one place that knows of
// collation providers.
#pragma once

#include "pg.h"

namespace interlock {

/// Why no bytes can be given for this collation; nullptr if they can. Raises 42P22 for none at all.
const char *why_no_text_key(Oid collation);

/// Appends bytes, the last of them 0 and self-delimiting, that compare as varstr_cmp() compares the
/// text. Raises 0A000 where why_no_text_key() says why.
void append_text_key(Oid collation, const char *bytes, int length, StringInfo out);

/// Whether texts of different bytes may be equal.
bool is_nondeterministic(Oid collation);

/// Appends provider, locale, actual version and kind of the collation; not its name.
void describe_collation(Oid collation, StringInfo out);

}  // namespace interlock
