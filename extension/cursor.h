// Cursors: opaque, versioned, authenticated places in a keyset.
//
//     base64url( version 1 byte | key id 1 byte | keyset digest 8 | scope digest 8 | values | MAC
//     16 )
//
// without padding; one spelling each. The MAC is HMAC-SHA256 (RFC 2104, FIPS 180-4), cut to 16
// bytes, over all before it. Key id 0: unsigned, only for keysets that say so; its MAC is by a key
// of zero bytes, against accidents only. A cursor is no authorisation.
#pragma once

#include "cursor_format.h"
#include "pg.h"
#include "sort_value.h"

namespace interlock {

using cursor_format::digest_size;

/// SHA-256 of `length` bytes, cut to digest_size.
void make_digest(const char *bytes, std::size_t length, unsigned char digest[digest_size]);

/// What a cursor of one keyset and one scope is bound to.
struct CursorBinding {
    unsigned char keyset[digest_size];  ///< of the declaration: name, table, columns, order
    unsigned char scope[digest_size];   ///< of the scope's canonical values
    bool is_signed = true;
};

/// Writes cursors of one binding; key state is prepared once for all of a page's rows.
struct CursorWriter {
    CursorBinding binding;
    void *state = nullptr;  ///< palloc'd in the context current at open_cursor_writer()
    unsigned char key_id = 0;
};
/// Raises 55000 where cursors are to be signed and no key is valid.
void open_cursor_writer(CursorWriter *writer, const CursorBinding &binding);

/// The cursor of the row with these sort values: a palloc'd text.
text *write_cursor(CursorWriter *writer, const SortColumn *columns, int count, const Datum *values,
                   const bool *isnull);

/// Reads a cursor into values (count of them). Raises IL201 (BAD_CURSOR) for whatever is not
/// exactly a cursor of this binding; the message never says which part was wrong, nor repeats the
/// cursor.
void read_cursor(const text *cursor, const CursorBinding &binding, const SortColumn *columns,
                 int count, Datum *values, bool *isnull);

/// The error of read_cursor(), for other reasons not to take a cursor.
[[noreturn]] void refuse_cursor();

/// For support staff: what can be said of a cursor without its keyset. False if it is none.
struct CursorParts {
    unsigned char version, key_id;
    unsigned char keyset[digest_size];
    unsigned char scope[digest_size];
    bool authentic;  ///< the MAC is right, by a key that is still valid
    StringInfoData values;
};
bool take_cursor_apart(const text *cursor, CursorParts *parts);

}  // namespace interlock
