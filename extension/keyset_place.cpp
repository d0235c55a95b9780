// Scopes and places as callers give them: checked, and bound to their keyset.
#include "pg.h"

extern "C" {
#include "utils/jsonb.h"
}

#include "errors.h"
#include "keyset.h"

namespace interlock {

namespace {

[[noreturn]] void refuse_scope(const Keyset &keyset, const char *detail) {
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("scope does not fit keyset \"%s\"", keyset.declaration.name),
                    errdetail_internal("%s", detail)));
    pg_unreachable();
}

// "The scope is {"merchant_id": value}."
const char *scope_form(const Keyset &keyset) {
    if (keyset.declaration.scope_count == 0) return "The keyset has no scope.";
    StringInfoData form;
    initStringInfo(&form);
    appendStringInfoString(&form, "It has to be an object with exactly ");
    for (int i = 0; i < keyset.declaration.scope_count; ++i)
        appendStringInfo(&form, "%s\"%s\"", i > 0 ? ", " : "", keyset.scope[i].name);
    appendStringInfoChar(&form, '.');
    return form.data;
}

Datum scope_value(const Keyset &keyset, int index, const JsonbValue &given) {
    const KeysetColumn &column = keyset.scope[index];
    char *value;
    switch (given.type) {
    case jbvNull:
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("scope column \"%s\" of keyset \"%s\" must not be null", column.name,
                               keyset.declaration.name)));
        break;
    case jbvString: value = pnstrdup(given.val.string.val, given.val.string.len); break;
    case jbvNumeric:
        value =
            DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(given.val.numeric)));
        break;
    case jbvBool: value = pstrdup(given.val.boolean ? "true" : "false"); break;
    default:
        refuse_scope(keyset, psprintf("The value of \"%s\" is neither a number, a string nor a "
                                      "boolean.",
                                      column.name));
    }
    // Any length and scale: what no row can hold matches none.
    return OidInputFunctionCall(column.input, value, column.input_parameter, -1);
}

}  // namespace

void read_scope(const Keyset &keyset, struct varlena *scope, Scope *result) {
    const int count = keyset.declaration.scope_count;
    if (scope == nullptr) {
        if (count > 0) refuse_scope(keyset, scope_form(keyset));
    } else {
        JsonbContainer *container = &reinterpret_cast<Jsonb *>(pg_detoast_datum(scope))->root;
        if (!JsonContainerIsObject(container) ||
            JsonContainerSize(container) != static_cast<std::uint32_t>(count))
            refuse_scope(keyset, scope_form(keyset));
        for (int i = 0; i < count; ++i) {
            const char *name = keyset.scope[i].name;
            JsonbValue value;
            if (getKeyJsonValueFromContainer(container, name, static_cast<int>(std::strlen(name)),
                                             &value) == nullptr)
                refuse_scope(keyset, scope_form(keyset));
            result->values[i] = scope_value(keyset, i, value);
        }
    }
    digest_scope(keyset, result);
}

void digest_scope(const Keyset &keyset, Scope *scope) {
    StringInfoData bytes;
    initStringInfo(&bytes);
    for (int i = 0; i < keyset.declaration.scope_count; ++i)
        append_identity(keyset.scope_sort[i], scope->values[i], false, &bytes);
    make_digest(bytes.data, static_cast<std::size_t>(bytes.len), scope->digest);
    pfree(bytes.data);
}

CursorBinding binding_of(const Keyset &keyset, const Scope &scope) {
    CursorBinding binding;
    std::memcpy(binding.keyset, keyset.digest, digest_size);
    std::memcpy(binding.scope, scope.digest, digest_size);
    binding.is_signed = keyset.declaration.is_signed;
    return binding;
}

void read_place(const Keyset &keyset, const Scope &scope, const text *after, const text *before,
                Place *place, bool *backward) {
    if (after != nullptr && before != nullptr)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("after and before must not both be given")));
    *backward = before != nullptr;
    place->given = after != nullptr || before != nullptr;
    place->null_mask = 0;
    const int count = keyset.declaration.order_count;
    if (!place->given) {
        for (int i = 0; i < count; ++i) {
            place->values[i] = static_cast<Datum>(0);
            place->nulls[i] = true;
        }
        return;
    }
    read_cursor(after != nullptr ? after : before, binding_of(keyset, scope), keyset.order_sort,
                count, place->values, place->nulls);
    for (int i = 0; i < count; ++i)
        if (place->nulls[i]) place->null_mask |= 1U << i;
}

void require_row_type(const Keyset &keyset, Oid type) {
    if (type == keyset.row_type) return;
    ereport(ERROR,
            (errcode(ERRCODE_DATATYPE_MISMATCH),
             errmsg("row type %s is not that of keyset \"%s\"",
                    OidIsValid(type) ? format_type_be(type) : "unknown", keyset.declaration.name),
             errdetail("It is %s, that of its table.", keyset.table)));
}

}  // namespace interlock
