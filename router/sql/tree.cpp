#include "sql/tree.h"

#include <cstring>
#include <string_view>

namespace interlock::sql {

namespace {

/// Calls `seen` for each message in the fields of another; false ends it.
template <typename Seen>
bool each_field(const ProtobufCMessage &message, Seen &&seen) {
    const auto *bytes = reinterpret_cast<const char *>(&message);
    for (unsigned i = 0; i < message.descriptor->n_fields; ++i) {
        const ProtobufCFieldDescriptor &field = message.descriptor->fields[i];
        if (field.type != PROTOBUF_C_TYPE_MESSAGE) continue;
        if ((field.flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 &&
            *reinterpret_cast<const std::uint32_t *>(bytes + field.quantifier_offset) != field.id)
            continue;
        if (field.label == PROTOBUF_C_LABEL_REPEATED) {
            const auto count =
                *reinterpret_cast<const std::size_t *>(bytes + field.quantifier_offset);
            auto **items = *reinterpret_cast<ProtobufCMessage **const *>(bytes + field.offset);
            for (std::size_t k = 0; k < count; ++k)
                if (!seen(*items[k])) return false;
        } else if (const auto *item =
                       *reinterpret_cast<ProtobufCMessage *const *>(bytes + field.offset)) {
            if (!seen(*item)) return false;
        }
    }
    return true;
}

void visit_message(const ProtobufCMessage &message, const std::function<bool(const Node &)> &seen) {
    if (message.descriptor == &pg_query__node__descriptor &&
        !seen(reinterpret_cast<const Node &>(message)))
        return;
    each_field(message, [&](const ProtobufCMessage &below) {
        visit_message(below, seen);
        return true;
    });
}

/// Fields that say where a node stands.
bool is_place(std::string_view name) {
    return name == "location" || name == "stmt_location" || name == "stmt_len";
}

std::size_t scalar_size(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    default: return 4;
    }
}

bool same_value(ProtobufCType type, const char *left, const char *right) {
    if (type == PROTOBUF_C_TYPE_MESSAGE)
        return same_tree(*reinterpret_cast<ProtobufCMessage *const *>(left),
                         *reinterpret_cast<ProtobufCMessage *const *>(right));
    if (type == PROTOBUF_C_TYPE_STRING) {
        const char *a = *reinterpret_cast<char *const *>(left);
        const char *b = *reinterpret_cast<char *const *>(right);
        return std::string_view(a == nullptr ? "" : a) == std::string_view(b == nullptr ? "" : b);
    }
    if (type == PROTOBUF_C_TYPE_BYTES) return false;  // there are none
    return std::memcmp(left, right, scalar_size(type)) == 0;
}

}  // namespace

void visit(const Node *node, const std::function<bool(const Node &)> &seen) {
    if (node != nullptr) visit_message(node->base, seen);
}

bool same_tree(const ProtobufCMessage *left, const ProtobufCMessage *right) {
    if (left == nullptr || right == nullptr) return left == right;
    if (left->descriptor != right->descriptor) return false;
    const auto *a = reinterpret_cast<const char *>(left);
    const auto *b = reinterpret_cast<const char *>(right);
    for (unsigned i = 0; i < left->descriptor->n_fields; ++i) {
        const ProtobufCFieldDescriptor &field = left->descriptor->fields[i];
        if (is_place(field.name)) continue;
        if ((field.flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
            const auto which = [&](const char *bytes) {
                return *reinterpret_cast<const std::uint32_t *>(bytes + field.quantifier_offset);
            };
            if (which(a) != which(b)) return false;
            if (which(a) != field.id) continue;
        }
        if (field.label == PROTOBUF_C_LABEL_REPEATED) {
            const auto count = *reinterpret_cast<const std::size_t *>(a + field.quantifier_offset);
            if (count != *reinterpret_cast<const std::size_t *>(b + field.quantifier_offset))
                return false;
            const bool pointers =
                field.type == PROTOBUF_C_TYPE_MESSAGE || field.type == PROTOBUF_C_TYPE_STRING;
            const std::size_t size = pointers ? sizeof(void *) : scalar_size(field.type);
            const char *of_a = *reinterpret_cast<char *const *>(a + field.offset);
            const char *of_b = *reinterpret_cast<char *const *>(b + field.offset);
            for (std::size_t k = 0; k < count; ++k)
                if (!same_value(field.type, of_a + k * size, of_b + k * size)) return false;
            continue;
        }
        if (!same_value(field.type, a + field.offset, b + field.offset)) return false;
    }
    return true;
}

bool same_node(const Node *left, const Node *right) {
    return same_tree(left == nullptr ? nullptr : &left->base,
                     right == nullptr ? nullptr : &right->base);
}

bool same_nodes(Node **left, Node **right, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
        if (!same_node(left[i], right[i])) return false;
    return true;
}

int location_of(const Node *node) {
    if (node == nullptr || node->node_case == PG_QUERY__NODE__NODE__NOT_SET) return -1;
    const ProtobufCMessage &message = node->column_ref->base;  // each member is a message
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message.descriptor, "location");
    if (field == nullptr || field->type != PROTOBUF_C_TYPE_INT32) return -1;
    return *reinterpret_cast<const std::int32_t *>(reinterpret_cast<const char *>(&message) +
                                                   field->offset);
}

int location_within(const Node *node) {
    int first = -1;
    visit(node, [&](const Node &each) {
        const int location = location_of(&each);
        if (location >= 0 && (first < 0 || location < first)) first = location;
        return true;
    });
    return first;
}

}  // namespace interlock::sql
