#include "pg.h"

extern "C" {
#include "common/shortest_dec.h"
#include "utils/array.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/datum.h"
#include "utils/json.h"
#include "utils/numeric.h"
#include "utils/typcache.h"
}

#include "row_json.h"

namespace interlock {

namespace {

// How a call that comes across a type whose output depends on settings gets them out of the way,
// once for the whole row.
struct Settings {
    int nest;  ///< 0: as the session has them
};

struct Setting {
    const char *name, *value;
};
constexpr Setting fixed_settings[] = {
    {"DateStyle", "ISO, YMD"},
    {"IntervalStyle", "iso_8601"},
    {"TimeZone", "UTC"},
    {"extra_float_digits", "1"},
    {"bytea_output", "hex"},
    {"xmlbinary", "base64"},
    {"lc_monetary", "C"},
    {"quote_all_identifiers", "off"},
    {"search_path", "pg_catalog, pg_temp"},
};

void fix(Settings *settings) {
    if (settings->nest != 0) return;
    settings->nest = NewGUCNestLevel();
    for (const Setting &setting : fixed_settings)
        set_config_option(setting.name, setting.value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
                          true, 0, false);
}

// Should an error come in between, the end of the (sub)transaction puts the settings back.
void unfix(Settings *settings) {
    if (settings->nest != 0) AtEOXact_GUC(true, settings->nest);
    settings->nest = 0;
}

// Of the types that have no form of their own: whose output functions look at no setting.
bool output_is_fixed(Oid type) {
    switch (type) {
    case UUIDOID:
    case CHAROID:
    case NAMEOID:
    case OIDOID:
    case XIDOID:
    case XID8OID:
    case CIDOID:
    case TIDOID:
    case PG_LSNOID:
    case INETOID:
    case CIDROID:
    case MACADDROID:
    case MACADDR8OID:
    case BITOID:
    case VARBITOID:
    case TSVECTOROID:
    case TSQUERYOID:
    case JSONPATHOID:
    case INT4RANGEOID:
    case INT8RANGEOID:
    case NUMRANGEOID: return true;
    default: break;
    }
    char category;
    bool preferred;
    get_type_category_preferred(type, &category, &preferred);
    return category == TYPCATEGORY_STRING || category == TYPCATEGORY_ENUM;
}

JsonType *prepare_type(Oid type) {
    JsonType *result = static_cast<JsonType *>(palloc0(sizeof(JsonType)));
    result->base = getBaseType(type);
    get_typlenbyvalalign(result->base, &result->length, &result->by_value, &result->align);
    switch (result->base) {
    case BOOLOID: result->form = JsonForm::boolean; return result;
    case INT2OID: result->form = JsonForm::int2; return result;
    case INT4OID: result->form = JsonForm::int4; return result;
    case INT8OID: result->form = JsonForm::int8; return result;
    case NUMERICOID: result->form = JsonForm::numeric; return result;
    case FLOAT4OID: result->form = JsonForm::float4; return result;
    case FLOAT8OID: result->form = JsonForm::float8; return result;
    case TEXTOID:
    case VARCHAROID:
    case BPCHAROID: result->form = JsonForm::text; return result;
    case BYTEAOID: result->form = JsonForm::bytea; return result;
    case DATEOID:
    case TIMEOID:
    case TIMETZOID:
    case TIMESTAMPOID:
    case TIMESTAMPTZOID: result->form = JsonForm::date_or_time; return result;
    case INTERVALOID: result->form = JsonForm::interval; break;
    case JSONOID: result->form = JsonForm::json; return result;
    case JSONBOID: result->form = JsonForm::jsonb; return result;
    case INT2VECTOROID:
    case OIDVECTOROID: result->form = JsonForm::output; break;
    default:
        if (const Oid element = get_element_type(result->base); OidIsValid(element)) {
            result->form = JsonForm::array;
            result->element = prepare_type(element);
            return result;
        }
        if (type_is_rowtype(result->base)) {
            result->form = JsonForm::composite;
            return result;
        }
        result->form = JsonForm::output;
    }
    Oid function;
    bool is_varlena;
    getTypeOutputInfo(result->base, &function, &is_varlena);
    fmgr_info_cxt(function, &result->output, CurrentMemoryContext);
    result->settings = result->form == JsonForm::output && !output_is_fixed(result->base);
    return result;
}

void set_string(JsonbValue *result, char *value, int length) {
    result->type = jbvString;
    result->val.string.val = value;
    result->val.string.len = length;
}

void set_string(JsonbValue *result, char *value) {
    set_string(result, value, static_cast<int>(std::strlen(value)));
}

void set_integer(JsonbValue *result, std::int64_t value) {
    result->type = jbvNumeric;
    result->val.numeric = int64_to_numeric(value);
}

// Numbers that json has no spelling for are strings: NaN, Infinity, -Infinity.
void set_number(JsonbValue *result, char *spelling) {
    const char *first = spelling + (*spelling == '-' ? 1 : 0);
    if (*first < '0' || *first > '9') return set_string(result, spelling);
    result->type = jbvNumeric;
    result->val.numeric = DatumGetNumeric(DirectFunctionCall3(
        numeric_in, CStringGetDatum(spelling), ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

void set_numeric(JsonbValue *result, Datum value) {
    Numeric numeric = DatumGetNumeric(value);
    if (unlikely(numeric_is_nan(numeric) || numeric_is_inf(numeric)))
        return set_string(
            result, DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(numeric))));
    result->type = jbvNumeric;
    result->val.numeric = numeric;
}

void set_text(JsonbValue *result, Datum value) {
    const text *detoasted = DatumGetTextPP(value);
    set_string(result, const_cast<char *>(VARDATA_ANY(detoasted)),
               static_cast<int>(VARSIZE_ANY_EXHDR(detoasted)));
}

void set_bytea(JsonbValue *result, Datum value) {
    const bytea *detoasted = DatumGetByteaPP(value);
    const std::size_t length = VARSIZE_ANY_EXHDR(detoasted);
    char *spelling = static_cast<char *>(palloc(length * 2 + 2));
    spelling[0] = '\\';
    spelling[1] = 'x';
    hex_encode(VARDATA_ANY(detoasted), length, spelling + 2);
    set_string(result, spelling, static_cast<int>(length * 2 + 2));
}

void set_date_or_time(JsonbValue *result, Datum value, Oid type) {
    char *spelling = static_cast<char *>(palloc(MAXDATELEN + 1));
    const int utc = 0;
    JsonEncodeDateTime(spelling, value, type, type == TIMESTAMPTZOID ? &utc : nullptr);
    set_string(result, spelling);
}

// The style is a plain variable, read by the output function only; it raises nothing but what runs
// out of memory.
void set_interval(JsonbValue *result, Datum value, JsonType *type) {
    const int style = IntervalStyle;
    char *volatile spelling = nullptr;
    PG_TRY();
    {
        IntervalStyle = INTSTYLE_ISO_8601;
        spelling = OutputFunctionCall(&type->output, value);
    }
    PG_FINALLY();
    { IntervalStyle = style; }
    PG_END_TRY();
    set_string(result, spelling);
}

void set_jsonb(JsonbValue *result, Jsonb *value) {
    if (JB_ROOT_IS_SCALAR(value)) {
        JsonbExtractScalar(&value->root, result);
        return;
    }
    JsonbParseState *state = nullptr;
    JsonbValue *built = nullptr;
    JsonbValue part;
    JsonbIterator *iterator = JsonbIteratorInit(&value->root);
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&iterator, &part, false)) != WJB_DONE)
        built = pushJsonbValue(&state, token, token < WJB_BEGIN_ARRAY ? &part : nullptr);
    *result = *built;
}

// json may hold what jsonb cannot: "\u0000", halves of surrogate pairs, numbers out of range. That
// must not refuse the row: it becomes a string of the json text. Reading json takes no lock and
// changes nothing, so no subtransaction is needed to go on after its error.
void set_json(JsonbValue *result, Datum value) {
    char *volatile spelling = TextDatumGetCString(value);
    Jsonb *volatile parsed = nullptr;
    MemoryContext context = CurrentMemoryContext;
    PG_TRY();
    { parsed = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(spelling))); }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        ErrorData *error = CopyErrorData();
        const int category = ERRCODE_TO_CATEGORY(error->sqlerrcode);
        if (category != ERRCODE_DATA_EXCEPTION && category != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
            PG_RE_THROW();
        FlushErrorState();
        FreeErrorData(error);
    }
    PG_END_TRY();
    if (parsed != nullptr)
        set_jsonb(result, parsed);
    else
        set_string(result, spelling);
}

void set_value(JsonbValue *result, Datum value, JsonType *type, MemoryContext keep,
               Settings *settings);

// One dimension of an array, and those below it. `next` is the next element of the whole.
void set_dimension(JsonbValue *result, const int *sizes, int dimensions, const Datum *values,
                   const bool *nulls, int *next, JsonType *element, MemoryContext keep,
                   Settings *settings) {
    const int size = dimensions > 0 ? sizes[0] : 0;
    result->type = jbvArray;
    result->val.array.rawScalar = false;
    result->val.array.nElems = size;
    result->val.array.elems = static_cast<JsonbValue *>(
        palloc(sizeof(JsonbValue) * static_cast<std::size_t>(Max(size, 1))));
    for (int i = 0; i < size; ++i) {
        JsonbValue *item = &result->val.array.elems[i];
        if (dimensions > 1) {
            set_dimension(item, sizes + 1, dimensions - 1, values, nulls, next, element, keep,
                          settings);
        } else {
            const int at = (*next)++;
            if (nulls[at])
                item->type = jbvNull;
            else
                set_value(item, values[at], element, keep, settings);
        }
    }
}

void set_array(JsonbValue *result, Datum value, JsonType *type, MemoryContext keep,
               Settings *settings) {
    ArrayType *array = DatumGetArrayTypeP(value);
    const JsonType *element = type->element;
    Datum *values;
    bool *nulls;
    int count, next = 0;
    // Elements are of the domain's base type as far as their bytes go.
    deconstruct_array(array, ARR_ELEMTYPE(array), element->length, element->by_value,
                      element->align, &values, &nulls, &count);
    set_dimension(result, ARR_DIMS(array), ARR_NDIM(array), values, nulls, &next, type->element,
                  keep, settings);
}

void set_row(JsonbValue *result, RowJson *row, const Datum *values, const bool *nulls,
             Settings *settings) {
    for (int i = 0; i < row->count; ++i) {
        const int column = row->numbers[i] - 1;
        if (nulls[column])
            row->pairs[i].value.type = jbvNull;
        else
            set_value(&row->pairs[i].value, values[column], row->types[i], row->context, settings);
    }
    result->type = jbvObject;
    result->val.object.nPairs = row->count;
    result->val.object.pairs = row->pairs;
}

void set_composite(JsonbValue *result, Datum value, JsonType *type, MemoryContext keep,
                   Settings *settings) {
    HeapTupleHeader header = DatumGetHeapTupleHeader(value);
    TupleDesc description =
        lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
    // The type may gain and lose attributes at any time, and an array of record may mix types.
    if (type->description == nullptr || !equalTupleDescs(type->description, description)) {
        MemoryContext old = MemoryContextSwitchTo(keep);
        type->description = CreateTupleDescCopy(description);
        const char *missing;
        type->fields = prepare_row_json(type->description, nullptr, 0, &missing);
        MemoryContextSwitchTo(old);
    }
    HeapTupleData tuple = {};
    tuple.t_len = HeapTupleHeaderGetDatumLength(header);
    ItemPointerSetInvalid(&tuple.t_self);
    tuple.t_data = header;
    const std::size_t columns = static_cast<std::size_t>(Max(description->natts, 1));
    Datum *values = static_cast<Datum *>(palloc(columns * sizeof(Datum)));
    bool *nulls = static_cast<bool *>(palloc(columns * sizeof(bool)));
    heap_deform_tuple(&tuple, description, values, nulls);
    // Several values of the type may be on their way at once (in an array): each has its own pairs.
    RowJson own = *type->fields;
    const std::size_t size = sizeof(JsonbPair) * static_cast<std::size_t>(Max(own.count, 1));
    own.pairs = static_cast<JsonbPair *>(palloc(size));
    std::memcpy(own.pairs, type->fields->pairs,
                sizeof(JsonbPair) * static_cast<std::size_t>(own.count));
    ReleaseTupleDesc(description);
    set_row(result, &own, values, nulls, settings);
}

void set_value(JsonbValue *result, Datum value, JsonType *type, MemoryContext keep,
               Settings *settings) {
    switch (type->form) {
    case JsonForm::boolean:
        result->type = jbvBool;
        result->val.boolean = DatumGetBool(value);
        return;
    case JsonForm::int2: return set_integer(result, DatumGetInt16(value));
    case JsonForm::int4: return set_integer(result, DatumGetInt32(value));
    case JsonForm::int8: return set_integer(result, DatumGetInt64(value));
    case JsonForm::numeric: return set_numeric(result, value);
    case JsonForm::float4: {
        char spelling[FLOAT_SHORTEST_DECIMAL_LEN];
        float_to_shortest_decimal_buf(DatumGetFloat4(value), spelling);
        return set_number(result, pstrdup(spelling));
    }
    case JsonForm::float8: {
        char spelling[DOUBLE_SHORTEST_DECIMAL_LEN];
        double_to_shortest_decimal_buf(DatumGetFloat8(value), spelling);
        return set_number(result, pstrdup(spelling));
    }
    case JsonForm::text: return set_text(result, value);
    case JsonForm::bytea: return set_bytea(result, value);
    case JsonForm::date_or_time: return set_date_or_time(result, value, type->base);
    case JsonForm::interval: return set_interval(result, value, type);
    case JsonForm::json: return set_json(result, value);
    case JsonForm::jsonb: return set_jsonb(result, DatumGetJsonbP(value));
    case JsonForm::array:
    case JsonForm::composite:
        check_stack_depth();
        return type->form == JsonForm::array ? set_array(result, value, type, keep, settings)
                                             : set_composite(result, value, type, keep, settings);
    case JsonForm::output:
        if (type->settings) fix(settings);
        return set_string(result, OutputFunctionCall(&type->output, value));
    }
}

// jsonb keeps the names of an object by length first.
bool comes_before(const char *a, const char *b) {
    const std::size_t a_length = std::strlen(a), b_length = std::strlen(b);
    return a_length != b_length ? a_length < b_length : std::memcmp(a, b, a_length) < 0;
}

}  // namespace

RowJson *prepare_row_json(TupleDesc description, const char *const *names, int count,
                          const char **missing) {
    const std::size_t room =
        static_cast<std::size_t>(Max(names == nullptr ? description->natts : count, 1));
    RowJson *row = static_cast<RowJson *>(palloc0(sizeof(RowJson)));
    row->context = CurrentMemoryContext;
    row->numbers = static_cast<AttrNumber *>(palloc(sizeof(AttrNumber) * room));
    const auto add = [&](AttrNumber number) {
        const char *name = NameStr(TupleDescAttr(description, number - 1)->attname);
        int at = row->count;
        for (int i = 0; i < row->count; ++i)
            if (row->numbers[i] == number) return;
        while (at > 0 &&
               comes_before(
                   name, NameStr(TupleDescAttr(description, row->numbers[at - 1] - 1)->attname))) {
            row->numbers[at] = row->numbers[at - 1];
            --at;
        }
        row->numbers[at] = number;
        ++row->count;
    };
    const int columns = description->natts;
    if (names == nullptr) {
        for (int i = 0; i < columns; ++i)
            if (!TupleDescAttr(description, i)->attisdropped) add(static_cast<AttrNumber>(i + 1));
    } else {
        for (int n = 0; n < count; ++n) {
            int found = 0;
            for (int i = 0; found == 0 && i < columns; ++i) {
                const FormData_pg_attribute *attribute = TupleDescAttr(description, i);
                if (!attribute->attisdropped &&
                    std::strcmp(NameStr(attribute->attname), names[n]) == 0)
                    found = i + 1;
            }
            if (found == 0) {
                *missing = names[n];
                return nullptr;
            }
            add(static_cast<AttrNumber>(found));
        }
    }
    const std::size_t used = static_cast<std::size_t>(Max(row->count, 1));
    row->types = static_cast<JsonType **>(palloc(sizeof(JsonType *) * used));
    row->lengths = static_cast<std::int16_t *>(palloc(sizeof(std::int16_t) * used));
    row->by_value = static_cast<bool *>(palloc(sizeof(bool) * used));
    row->pairs = static_cast<JsonbPair *>(palloc0(sizeof(JsonbPair) * used));
    for (int i = 0; i < row->count; ++i) {
        const FormData_pg_attribute *attribute = TupleDescAttr(description, row->numbers[i] - 1);
        row->types[i] = prepare_type(attribute->atttypid);
        row->lengths[i] = attribute->attlen;
        row->by_value[i] = attribute->attbyval;
        set_string(&row->pairs[i].key, pstrdup(NameStr(attribute->attname)));
        row->pairs[i].order = static_cast<std::uint32_t>(i);
    }
    return row;
}

Jsonb *row_json(RowJson *row, const Datum *values, const bool *nulls) {
    Settings settings = {};
    JsonbValue object;
    set_row(&object, row, values, nulls, &settings);
    unfix(&settings);
    return JsonbValueToJsonb(&object);
}

bool same_values(const RowJson *row, const Datum *values, const bool *nulls,
                 const Datum *other_values, const bool *other_nulls) {
    for (int i = 0; i < row->count; ++i) {
        const int column = row->numbers[i] - 1;
        if (nulls[column] != other_nulls[column]) return false;
        if (nulls[column]) continue;
        const Datum a = values[column], b = other_values[column];
        if (row->by_value[i]) {
            if (a != b) return false;
            continue;
        }
        // A large value that the update left alone: the same pointer to where it is stored.
        if (row->lengths[i] == -1) {
            const char *one = DatumGetPointer(a), *two = DatumGetPointer(b);
            if (VARATT_IS_EXTERNAL_ONDISK(one) && VARATT_IS_EXTERNAL_ONDISK(two) &&
                std::memcmp(one, two, VARSIZE_EXTERNAL(one)) == 0)
                continue;
        }
        if (!datum_image_eq(a, b, false, row->lengths[i])) return false;
    }
    return true;
}

}  // namespace interlock
