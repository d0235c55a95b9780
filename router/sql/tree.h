// What is asked of parse trees whatever nodes they are made of: through their descriptors, so that
// a field added by a later version of the parser is seen too.
#pragma once

#include "sql/scope.h"

#include <functional>

namespace interlock::sql {

/// Calls `seen` for each node at and below `node`, from the top; below one for which it returns
/// false nothing is visited.
void visit(const Node *node, const std::function<bool(const Node &)> &seen);

/// Whether two trees are the same but for where they stand in their texts.
[[nodiscard]] bool same_tree(const ProtobufCMessage *left, const ProtobufCMessage *right);
[[nodiscard]] bool same_node(const Node *left, const Node *right);
[[nodiscard]] bool same_nodes(Node **left, Node **right, std::size_t count);

/// Where an expression begins, as far as its own nodes say; -1 where they do not.
[[nodiscard]] int location_of(const Node *node);
/// The leftmost place in it that is known: an operator's own is that of its sign.
[[nodiscard]] int location_within(const Node *node);

}  // namespace interlock::sql
