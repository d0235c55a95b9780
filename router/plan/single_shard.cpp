#include "plan/single_shard.h"

#include "base/log.h"
#include "plan/key_refusal.h"
#include "route/key_array.h"

#include <algorithm>

namespace interlock {

namespace {

using sql::KeySource;
using sql::Literal;
using sql::LiteralKind;

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_integer(KeyType type) {
    return family_of(type) == placement::KeyFamily::integer;
}

/// A type as an array or a cast names it: that of the elements for an array type.
std::optional<KeyType> element_type_of(std::uint32_t type_oid) {
    const auto type = key_type_of_array_oid(type_oid);
    return type ? type : key_type_of_oid(type_oid);
}

/// Collects the keys of one statement.
class KeyReader {
  public:
    KeyReader(const Values &values, const RouteTable &routes) : values_(values), routes_(routes) {}

    /// False: refused, see refusal().
    [[nodiscard]] bool read(const KeySource &source) {
        source_ = &source;
        table_ = &routes_.tables[source.table];
        if (!take_cast()) return false;
        switch (source.from) {
        case KeySource::From::literal: return literal();
        case KeySource::From::parameter: return parameter();
        case KeySource::From::array: return array_parameter();
        case KeySource::From::array_text: return array_literal();
        case KeySource::From::null: return refuse_null();
        }
        return refuse_value();
    }

    [[nodiscard]] Refusal take_refusal() { return std::move(refusal_); }
    [[nodiscard]] std::optional<Target> target() const {
        if (!first_) return std::nullopt;
        return Target{first_->shard, table_index_, first_->bucket, held_};
    }

  private:
    // -- from values to keys --

    bool take_cast() {
        cast_.reset();
        if (source_->cast == 0 || source_->from == KeySource::From::null) return true;
        cast_ = element_type_of(source_->cast);
        if (cast_ && same_family(*cast_)) return true;
        return refuse_type(source_->cast);
    }

    [[nodiscard]] bool same_family(KeyType type) const {
        return family_of(type) == family_of(table_->key_type);
    }

    /// Of what has no type of its own.
    [[nodiscard]] KeyType type_of_untyped() const { return cast_.value_or(table_->key_type); }

    bool literal() {
        if (source_->index >= values_.literals.size()) return refuse_value();
        const Literal &literal = values_.literals[source_->index];
        switch (literal.kind) {
        case LiteralKind::integer: {
            if (!is_integer(table_->key_type)) return refuse_value();
            const auto digits = literal_value(values_.text, literal, scratch_);
            const IntegerRange range = range_of(cast_.value_or(KeyType::int8));
            return digits ? integer(parse_digits(*digits, source_->negative, range.low, range.high))
                          : refuse_value();
        }
        case LiteralKind::number: return refuse_value();
        default: break;
        }
        const auto text = literal_text();
        return text && key(type_of_untyped(), *text, false);
    }

    /// The value of a string literal; refused where there is none.
    std::optional<std::string_view> literal_text() {
        const Literal &literal = values_.literals[source_->index];
        const auto text =
            source_->negative ? std::nullopt : sql::literal_value(values_.text, literal, scratch_);
        if (!text) {
            (void)refuse_spelling();
            return std::nullopt;
        }
        // \u escapes are Unicode whatever the client's encoding.
        encoded_ = !is_ascii(values_.text.substr(literal.offset, literal.length));
        return text;
    }

    bool parameter() {
        const BoundParameter *bound = bound_parameter();
        if (bound == nullptr) return false;
        encoded_ = true;
        if (bound->type == 0 || bound->type == oid::unknown)
            return key(type_of_untyped(), *bound->bytes, bound->binary);
        const auto declared = key_type_of_oid(bound->type);
        if (!declared) return refuse_type(bound->type);
        if (same_family(*declared)) return key(*declared, *bound->bytes, bound->binary);
        // The two formats of text are the same.
        if (*declared == KeyType::text && cast_) return key(*cast_, *bound->bytes, false);
        return refuse_type(bound->type);
    }

    bool array_parameter() {
        const BoundParameter *bound = bound_parameter();
        if (bound == nullptr) return false;
        encoded_ = true;
        const bool untyped = bound->type == 0 || bound->type == oid::unknown;
        const auto declared = key_type_of_array_oid(bound->type);
        if (!untyped && !declared) {
            if (key_type_of_oid(bound->type) == KeyType::text && cast_)
                return text_array(*cast_, *bound->bytes);
            return refuse_type(bound->type);
        }
        if (declared && !same_family(*declared)) return refuse_type(bound->type);
        const KeyType type = declared.value_or(type_of_untyped());
        return bound->binary ? binary_array(*bound->bytes) : text_array(type, *bound->bytes);
    }

    bool array_literal() {
        if (source_->index >= values_.literals.size()) return refuse_value();
        const LiteralKind kind = values_.literals[source_->index].kind;
        if (kind == LiteralKind::integer || kind == LiteralKind::number) return refuse_array();
        const auto text = literal_text();
        return text && text_array(type_of_untyped(), *text);
    }

    bool text_array(KeyType type, std::string_view text) {
        TextArray array(text);
        std::string_view element;
        for (;;) {
            switch (array.next(element)) {
            case ArrayStep::element:
                if (!key(type, element, false)) return false;
                break;
            case ArrayStep::null: break;  // equals nothing
            case ArrayStep::end: return true;
            case ArrayStep::malformed: return refuse_array();
            }
        }
    }

    bool binary_array(std::string_view bytes) {
        BinaryArray array(bytes);
        if (!array.element_type()) return refuse_array();
        const auto type = key_type_of_oid(*array.element_type());
        if (!type || !same_family(*type)) return refuse_type(*array.element_type());
        std::string_view element;
        for (;;) {
            switch (array.next(element)) {
            case ArrayStep::element:
                if (!key(*type, element, true)) return false;
                break;
            case ArrayStep::null: break;
            case ArrayStep::end: return true;
            case ArrayStep::malformed: return refuse_array();
            }
        }
    }

    const BoundParameter *bound_parameter() {
        if (source_->index >= values_.parameters.size()) {
            (void)refuse(format("%s is parameter $%u; parameters sent: %zu", key_name().c_str(),
                                source_->index + 1U, values_.parameters.size()),
                         "");
            return nullptr;
        }
        const BoundParameter &bound = values_.parameters[source_->index];
        if (source_->typed && (bound.type == 0 || bound.type == oid::unknown)) {
            (void)refuse(
                format("parameter $%u, %s, has no declared type, and stands elsewhere too, "
                       "where it could take another one",
                       source_->index + 1U, key_name().c_str()),
                "Declare its type, or use a parameter of its own for the shard key.");
            return nullptr;
        }
        if (bound.bytes) return &bound;
        (void)refuse_null();
        return nullptr;
    }

    /// A value of type `type`, which is of the key's family; a cast may narrow it further.
    bool key(KeyType type, std::string_view bytes, bool binary) {
        if (is_integer(type)) {
            const IntegerRange range = range_of(type);
            const auto value = binary ? parse_binary_integer(type, bytes)
                                      : parse_integer(bytes, range.low, range.high);
            if (value && cast_ && !range_of(*cast_).holds(*value)) return refuse_value();
            return integer(value);
        }
        if (type == KeyType::text && encoded_ && !values_.utf8 && !is_ascii(bytes))
            return refuse_encoding();
        const auto parsed = binary ? parse_binary_key(type, bytes) : parse_key(type, bytes);
        return parsed ? add(*parsed) : refuse_value();
    }

    bool integer(std::optional<std::int64_t> value) {
        return value ? add(Key{placement::splitmix64(*value)}) : refuse_value();
    }

    bool add(Key key) {
        const Keyspace &keyspace = routes_.keyspaces[table_->keyspace];
        KeyTarget found{table_->keyspace, keyspace.bucket_of(key), 0};
        found.shard = keyspace.owner[static_cast<std::size_t>(found.bucket)];
        held_ = held_ || routes_.is_announced(found.keyspace, found.bucket);
        // Equal hashes are equal buckets, which is all that matters to where a row belongs.
        if (source_->assigned && (several_hashes_ || !hash_ || *hash_ != key.hash))
            return refuse_assignment();
        several_hashes_ = several_hashes_ || (hash_ && *hash_ != key.hash);
        hash_ = key.hash;
        if (!first_) {
            first_ = found;
            table_index_ = source_->table;
            return true;
        }
        if (found.shard == first_->shard) return true;
        refusal_ = several_shards(routes_, *first_, found);
        return false;
    }

    // -- refusals; each returns false --

    [[nodiscard]] const Column &column() const { return table_->columns[table_->key_column]; }

    /// "the shard key "k" of table public.t"
    [[nodiscard]] std::string key_name() const {
        return format("the shard key \"%s\" of table %s", column().name.c_str(),
                      table_->sql_name.c_str());
    }

    [[nodiscard]] bool from_parameter() const {
        return source_->from == KeySource::From::parameter ||
               source_->from == KeySource::From::array;
    }

    /// "parameter $1", "the literal", "an element of ..."
    [[nodiscard]] std::string value_name() const {
        std::string name = from_parameter() ? format("parameter $%u", source_->index + 1U)
                                            : std::string("the literal");
        if (source_->from == KeySource::From::array || source_->from == KeySource::From::array_text)
            name = "an element of " + name;
        return name;
    }

    bool refuse(std::string message, std::string hint) {
        refusal_ = make_refusal(Code::R27, std::move(message), std::move(hint));
        const bool literal = source_->from == KeySource::From::literal ||
                             source_->from == KeySource::From::array_text;
        if (literal && source_->index < values_.literals.size()) {
            const std::size_t offset =
                std::min<std::size_t>(values_.literals[source_->index].offset, values_.text.size());
            // In characters: of UTF-8, all but continuation bytes; of other encodings, bytes.
            const auto before = values_.text.substr(0, offset);
            refusal_.position =
                1 + static_cast<int>(std::count_if(before.begin(), before.end(), [&](char c) {
                    return !values_.utf8 || (static_cast<unsigned char>(c) & 0xC0) != 0x80;
                }));
        }
        return false;
    }

    [[gnu::cold]] bool refuse_assignment() {
        (void)refuse("", "Leave it out of SET; to move a row, delete it and insert it anew in two "
                         "transactions.");
        refusal_.code = Code::R29;
        refusal_.message = key_name() + " would be set to another value than the row has";
        return false;
    }

    [[gnu::cold]] bool refuse_null() {
        return refuse(key_name() + " is NULL", "A shard key must have a value.");
    }

    [[gnu::cold]] bool refuse_value() {
        const std::uint32_t cast = source_->cast;
        std::string type =
            cast != 0 && key_type_of_oid(cast) ? type_name(cast) : type_name(column().type_oid);
        if (!cast_ && is_integer(table_->key_type) && !from_parameter()) type = "bigint";
        return refuse(value_name() + " is not a value of type " + type + ", for " + key_name(),
                      "Write it in the plain form of its type, without blanks.");
    }

    [[gnu::cold]] bool refuse_type(std::uint32_t type_oid) {
        const bool array =
            source_->from == KeySource::From::array || source_->from == KeySource::From::array_text;
        const std::string wanted = type_name(column().type_oid) + (array ? "[]" : "");
        std::string name = from_parameter() ? format("parameter $%u", source_->index + 1U)
                                            : std::string("the literal");
        return refuse(name + " has type " + type_name(type_oid) + ", which does not go with " +
                          key_name(),
                      from_parameter() ? format("Declare it as %s, or cast it: $%u::%s.",
                                                wanted.c_str(), source_->index + 1U, wanted.c_str())
                                       : format("Cast it to %s.", wanted.c_str()));
    }

    [[gnu::cold]] bool refuse_spelling() {
        return refuse("the value of the literal for " + key_name() +
                          " is not known before PostgreSQL reads it",
                      "Write it as a plain string, 'like this', or send it as a parameter.");
    }

    [[gnu::cold]] bool refuse_array() {
        const std::string name = from_parameter() ? format("parameter $%u", source_->index + 1U)
                                                  : std::string("the literal");
        return refuse(name + " is not an array of one dimension in a plain form, for " + key_name(),
                      "Write it like '{1,2}'; quote elements with \" where they need it.");
    }

    [[gnu::cold]] bool refuse_encoding() {
        return refuse(value_name() + " for " + key_name() +
                          " has characters beyond ASCII in an encoding other than UTF-8",
                      "Use client_encoding UTF8: text keys are hashed by their UTF-8 form.");
    }

    const Values &values_;
    const RouteTable &routes_;

    const KeySource *source_ = nullptr;
    const Table *table_ = nullptr;
    std::optional<KeyType> cast_;  ///< of the value, or of an array's elements
    bool encoded_ = true;          ///< the value is in the client's encoding
    std::string scratch_;

    std::optional<std::int64_t> hash_;  ///< of the keys so far
    bool several_hashes_ = false;
    std::optional<KeyTarget> first_;
    bool held_ = false;
    std::uint32_t table_index_ = 0;
    Refusal refusal_;
};

}  // namespace

Result<std::optional<Target>, Refusal> plan(const sql::Facts &facts, const Values &values,
                                            const RouteTable &routes) {
    if (facts.scatter != nullptr) {
        // It has no keys, but no single shard will do.
        if (facts.scatter->unless_allowed != nullptr) return *facts.scatter->unless_allowed;
        return make_refusal(Code::scatter_unsupported, "the statement runs on all shards, which is "
                                                       "not possible here");
    }
    if (facts.keys.empty()) return std::optional<Target>();
    KeyReader reader(values, routes);
    for (const KeySource &source : facts.keys)
        if (!reader.read(source)) return reader.take_refusal();
    return reader.target();
}

}  // namespace interlock
