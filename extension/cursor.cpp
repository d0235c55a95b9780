#include "pg.h"

#include "cursor.h"
#include "cursor_keys.h"
#include "errors.h"

namespace interlock {

namespace {

// What a writer keeps from row to row.
struct WriterState {
    cursor_format::MacKey key;
    StringInfoData bytes;
};

struct Bytes {
    unsigned char *data;
    std::size_t size;
};

// The bytes that a text spells; data is nullptr if it spells none of a cursor's form.
Bytes decode_cursor(const text *cursor) {
    const char *spelling = VARDATA_ANY(cursor);
    const std::size_t length = VARSIZE_ANY_EXHDR(cursor);
    Bytes bytes = {nullptr, cursor_format::decoded_size(length)};
    if (bytes.size < cursor_format::least_size) return bytes;
    unsigned char *data = static_cast<unsigned char *>(palloc(bytes.size));
    if (cursor_format::decode(spelling, length, data) && cursor_format::has_form(data, bytes.size))
        bytes.data = data;
    else
        pfree(data);
    return bytes;
}

// A key of that id which may stand in a cursor now, or nullptr.
const CursorKey *valid_key(unsigned char id) {
    return id == 0 ? unsigned_cursor_key() : find_cursor_key(id);
}

bool is_sealed(const Bytes &bytes) {
    const CursorKey *key = valid_key(cursor_format::key_id_of(bytes.data));
    return key != nullptr && cursor_format::is_sealed(key->mac, bytes.data, bytes.size);
}

StringInfoData values_of(const Bytes &bytes) {
    StringInfoData values = {};
    values.data = reinterpret_cast<char *>(bytes.data) + cursor_format::values_offset;
    values.len = static_cast<int>(cursor_format::values_size(bytes.size));
    return values;
}

bool read_values(const Bytes &bytes, const SortColumn *columns, int count, Datum *values,
                 bool *isnull) {
    StringInfoData in = values_of(bytes);
    for (int i = 0; i < count; ++i)
        if (!read_cursor_value(columns[i], &in, &values[i], &isnull[i]) ||
            (isnull[i] && !columns[i].nullable))
            return false;
    return in.cursor == in.len;
}

}  // namespace

void make_digest(const char *bytes, std::size_t length, unsigned char digest[digest_size]) {
    cursor_format::digest(bytes, length, digest);
}

void refuse_cursor() {
    ereport(ERROR,
            (errcode(ERRCODE_INTERLOCK_BAD_CURSOR), errmsg("not a cursor of this keyset and scope"),
             errhint("Begin again at the first page.")));
    pg_unreachable();
}

void open_cursor_writer(CursorWriter *writer, const CursorBinding &binding) {
    const CursorKey *key = unsigned_cursor_key();
    if (binding.is_signed) {
        const CursorKeys &keys = current_cursor_keys();
        if (keys.count == 0)
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("there is no key to sign cursors with"),
                            errhint("Make one with interlock.cursor_key_add().")));
        key = &keys.keys[0];
    }
    WriterState *state = static_cast<WriterState *>(palloc(sizeof(WriterState)));
    state->key = key->mac;
    initStringInfo(&state->bytes);
    cursor_format::write_head(reinterpret_cast<unsigned char *>(state->bytes.data), key->id,
                              binding.keyset, binding.scope);
    writer->binding = binding;
    writer->key_id = key->id;
    writer->state = state;
}

text *write_cursor(CursorWriter *writer, const SortColumn *columns, int count, const Datum *values,
                   const bool *isnull) {
    WriterState *state = static_cast<WriterState *>(writer->state);
    StringInfo out = &state->bytes;
    out->len = static_cast<int>(cursor_format::values_offset);
    for (int i = 0; i < count; ++i)
        append_cursor_value(columns[i], values[i], isnull[i], out);
    enlargeStringInfo(out, static_cast<int>(cursor_format::mac_size));
    const std::size_t size = static_cast<std::size_t>(out->len) + cursor_format::mac_size;
    unsigned char *bytes = reinterpret_cast<unsigned char *>(out->data);
    cursor_format::seal(state->key, bytes, size);

    const std::size_t length = VARHDRSZ + cursor_format::encoded_size(size);
    text *cursor = static_cast<text *>(palloc(length));
    SET_VARSIZE(cursor, length);
    cursor_format::encode(bytes, size, VARDATA(cursor));
    return cursor;
}

// The MAC comes first: what is behind a wrong one is not looked at.
void read_cursor(const text *cursor, const CursorBinding &binding, const SortColumn *columns,
                 int count, Datum *values, bool *isnull) {
    const Bytes bytes = decode_cursor(cursor);
    if (bytes.data == nullptr || !is_sealed(bytes) ||
        (cursor_format::key_id_of(bytes.data) != 0) != binding.is_signed ||
        std::memcmp(bytes.data + cursor_format::keyset_offset, binding.keyset, digest_size) != 0 ||
        std::memcmp(bytes.data + cursor_format::scope_offset, binding.scope, digest_size) != 0 ||
        !read_values(bytes, columns, count, values, isnull))
        refuse_cursor();
}

bool take_cursor_apart(const text *cursor, CursorParts *parts) {
    const Bytes bytes = decode_cursor(cursor);
    if (bytes.data == nullptr) return false;
    parts->version = cursor_format::version;
    parts->key_id = cursor_format::key_id_of(bytes.data);
    std::memcpy(parts->keyset, bytes.data + cursor_format::keyset_offset, digest_size);
    std::memcpy(parts->scope, bytes.data + cursor_format::scope_offset, digest_size);
    parts->authentic = parts->key_id != 0 && is_sealed(bytes);
    parts->values = values_of(bytes);
    return true;
}

}  // namespace interlock
