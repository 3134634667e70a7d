// The template's syntax tree, and the parser that makes it.
#pragma once

#include "core/chat/value.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Argument {
    std::string name; // empty: by position
    ExpressionPtr value;
};

struct Expression {
    enum class Kind {
        Literal,
        Name,
        Items,
        Mapping,
        Attribute,
        Index,
        Slice,
        Call,
        Filter,
        Test,
        Not,
        Negate,
        Plus,
        Binary,
        Compare,
        And,
        Or,
        Conditional
    };
    Kind kind = Kind::Literal;
    int line = 0, height = 1; // of the tree below
    Value literal;
    std::string name; // Name, Attribute, Filter, Test; the operator of Binary; "tuple" of Items
    // The operands. Mapping: key, value, key, value, ..; Slice: object, start, stop, step, of which all but the object
    // may be absent; Conditional: the value, the condition, and the other value, which may be absent.
    std::vector<ExpressionPtr> parts;
    std::vector<std::string> operators; // of Compare, between its parts: a < b <= c
    std::vector<Argument> arguments;    // Call, Filter, Test
};

struct Node;
using Nodes = std::vector<Node>;

struct Parameter {
    std::string name;
    ExpressionPtr fallback; // may be absent
};

struct Node {
    enum class Kind { Text, Print, If, For, Set, SetBlock, Macro, FilterBlock, Scope, Break, Continue };
    Kind kind = Kind::Text;
    int line = 0;
    std::string text;               // Text; name of a macro or filter
    std::vector<std::string> names; // For, Set: targets; two for the member of a namespace when `isMember`
    bool isMember = false;
    ExpressionPtr value;             // Print, If, For (what is walked), Set
    ExpressionPtr filter;            // For: only items for which it holds
    std::vector<Argument> arguments; // FilterBlock
    std::vector<Parameter> parameters;
    Nodes body, otherwise;
};

/// @throws TemplateError with the line
Nodes parseTemplate(std::string_view text);

} // namespace kvscope::chat
