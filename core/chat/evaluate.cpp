#include "core/chat/evaluate.h"

#include "core/chat/library.h"

#include <fmt/format.h>

namespace kvscope::chat {
namespace {

/// The names that a block has set. find() also looks in the blocks around it.
struct Scope {
    Dict names;
    const Scope* outer = nullptr;

    const Value* find(const std::string& name) const {
        for (const Scope* scope = this; scope; scope = scope->outer)
            if (const Value* value = scope->names.find(name)) return value;
        return nullptr;
    }
    /// How many names find() looks through.
    std::size_t size() const {
        std::size_t count = 0;
        for (const Scope* scope = this; scope; scope = scope->outer) count += scope->names.entries().size();
        return count;
    }
};

constexpr std::size_t kCharactersOfAName = 16; // compared while a name is looked up among others

enum class Flow { Next, Break, Continue };

class Evaluator {
public:
    explicit Evaluator(const Dict& names) {
        addFunctions(functions_.names, budget_);
        root_.outer = &functions_;
        for (const auto& [name, value] : names.entries()) root_.names.set(name, value);
    }

    std::string run(const Nodes& nodes) {
        std::string out;
        execute(nodes, root_, out);
        return out;
    }

private:
    struct Deeper {
        explicit Deeper(int& counter) : depth(counter) {
            if (++depth > 200) throw TemplateError{"macros call each other too deeply"};
        }
        ~Deeper() { --depth; }
        int& depth;
    };

    void append(std::string& out, const std::string& text) {
        budget_.grow(text.size());
        out += text;
    }

    Flow execute(const Nodes& nodes, Scope& scope, std::string& out) {
        for (const Node& node : nodes) {
            Flow flow = Flow::Next;
            try {
                budget_.step();
                flow = execute(node, scope, out);
            } catch (TemplateError& error) {
                if (!error.message.starts_with("line "))
                    error.message = fmt::format("line {}: {}", node.line, error.message);
                throw;
            }
            if (flow != Flow::Next) return flow;
        }
        return Flow::Next;
    }

    Flow execute(const Node& node, Scope& scope, std::string& out) {
        switch (node.kind) {
        case Node::Kind::Text:
            append(out, node.text);
            break;
        case Node::Kind::Print:
            append(out, shownAs(value(*node.value, scope), budget_));
            break;
        case Node::Kind::If:
            return execute(value(*node.value, scope).truthy() ? node.body : node.otherwise, scope, out);
        case Node::Kind::For:
            executeFor(node, scope, out);
            break;
        case Node::Kind::Set:
            assign(node, value(*node.value, scope), scope);
            break;
        case Node::Kind::SetBlock: {
            Value text = captured(node.body, scope);
            assign(node, node.text.empty() ? text : applyFilter(node.text, text, given(node.arguments, scope), budget_),
                   scope);
            break;
        }
        case Node::Kind::FilterBlock: {
            const Value text = captured(node.body, scope);
            append(out, shownAs(applyFilter(node.text, text, given(node.arguments, scope), budget_), budget_));
            break;
        }
        case Node::Kind::Macro:
            scope.names.set(node.text, macro(node));
            break;
        case Node::Kind::Scope: {
            Scope inner;
            inner.outer = &scope;
            return execute(node.body, inner, out);
        }
        case Node::Kind::Break:
            return Flow::Break;
        case Node::Kind::Continue:
            return Flow::Continue;
        }
        return Flow::Next;
    }

    Value captured(const Nodes& body, Scope& scope) {
        Scope inner;
        inner.outer = &scope;
        std::string text;
        execute(body, inner, text);
        return text;
    }

    void assign(const Node& node, Value made, Scope& scope) {
        if (node.isMember) {
            const Value* target = scope.find(node.names[0]);
            if (!target || !target->isNamespace())
                throw TemplateError{fmt::format("'{}' is not a namespace", node.names[0])};
            if (made.holdsNamespace()) throw TemplateError{"a namespace cannot hold a namespace"};
            target->members().set(node.names[1], std::move(made));
            return;
        }
        bind(node.names, std::move(made), scope);
    }

    void bind(const std::vector<std::string>& names, Value made, Scope& scope) {
        if (names.size() == 1) return scope.names.set(names[0], std::move(made));
        const List items = itemsOf(made, budget_);
        if (items.size() != names.size())
            throw TemplateError{fmt::format("{} values are given for {} names", items.size(), names.size())};
        for (std::size_t i = 0; i < names.size(); ++i) scope.names.set(names[i], items[i]);
    }

    void executeFor(const Node& node, Scope& scope, std::string& out) {
        List items = itemsOf(value(*node.value, scope), budget_);
        if (node.filter) {
            List kept;
            for (const Value& item : items) {
                budget_.step();
                Scope inner;
                inner.outer = &scope;
                bind(node.names, item, inner);
                if (value(*node.filter, inner).truthy()) kept.push_back(item);
            }
            items = std::move(kept);
        }
        const auto count = std::int64_t(items.size());
        for (std::int64_t i = 0; i < count; ++i) {
            budget_.step(); // the body may be empty
            Scope inner;
            inner.outer = &scope;
            bind(node.names, items[std::size_t(i)], inner);
            Dict loop;
            loop.set("index", i + 1);
            loop.set("index0", i);
            loop.set("revindex", count - i);
            loop.set("revindex0", count - i - 1);
            loop.set("first", i == 0);
            loop.set("last", i + 1 == count);
            loop.set("length", count);
            loop.set("previtem", i > 0 ? items[std::size_t(i - 1)] : Value(Undefined{"previtem"}));
            loop.set("nextitem", i + 1 < count ? items[std::size_t(i + 1)] : Value(Undefined{"nextitem"}));
            loop.set("cycle", Callable{"cycle", [i](const Arguments& choices) {
                                           if (choices.empty())
                                               throw TemplateError{"cycle: there is nothing to choose"};
                                           return choices[std::size_t(i) % choices.size()].second;
                                       }});
            inner.names.set("loop", std::move(loop));
            if (execute(node.body, inner, out) == Flow::Break) break;
        }
        if (count == 0) execute(node.otherwise, scope, out);
    }

    /// The callable that a macro defines. When it is called, it sees its arguments and the names that the template
    /// itself has at that time.
    Value macro(const Node& node) {
        return Callable{node.text, [this, &node](const Arguments& arguments) -> Value {
                            const Deeper deeper(macros_);
                            Scope scope;
                            scope.outer = &root_;
                            const Given given(node.text, arguments);
                            for (std::size_t i = 0; i < node.parameters.size(); ++i) {
                                const Parameter& parameter = node.parameters[i];
                                const Value* argument = given.find(i, parameter.name.c_str());
                                scope.names.set(parameter.name, argument ? *argument
                                                                : parameter.fallback
                                                                    ? value(*parameter.fallback, scope)
                                                                    : Value(Undefined{parameter.name}));
                            }
                            if (given.positional() > node.parameters.size()) given.wrong("it has too many arguments");
                            std::string text;
                            execute(node.body, scope, text);
                            return text;
                        }};
    }

    Arguments given(const std::vector<Argument>& arguments, Scope& scope) {
        Arguments out;
        for (const Argument& argument : arguments) out.emplace_back(argument.name, value(*argument.value, scope));
        return out;
    }

    Value value(const Expression& e, Scope& scope) {
        using Kind = Expression::Kind;
        budget_.step();
        const auto part = [&](std::size_t i) { return value(*e.parts[i], scope); };
        const auto bound = [&](std::size_t i) { return e.parts[i] ? part(i) : Value(None{}); };
        switch (e.kind) {
        case Kind::Literal:
            return e.literal;
        case Kind::Name: {
            budget_.read(kCharactersOfAName * scope.size());
            const Value* found = scope.find(e.name);
            return found ? *found : Value(Undefined{e.name});
        }
        case Kind::Items: {
            List items;
            for (std::size_t i = 0; i < e.parts.size(); ++i) items.push_back(part(i));
            return e.name.empty() ? Value(std::move(items)) : Value::makeTuple(std::move(items));
        }
        case Kind::Mapping: {
            Dict dict;
            for (std::size_t i = 0; i + 1 < e.parts.size(); i += 2) {
                const Value key = part(i);
                if (!key.isString()) throw TemplateError{"a mapping's key is not text"};
                dict.set(key.string(), part(i + 1));
            }
            return dict;
        }
        case Kind::Attribute:
            return attributeOf(part(0), e.name, budget_);
        case Kind::Index:
            return itemOf(part(0), part(1), budget_);
        case Kind::Slice:
            return sliceOf(part(0), bound(1), bound(2), bound(3), budget_);
        case Kind::Call: {
            const Value callee = part(0);
            if (callee.isUndefined()) throw TemplateError{fmt::format("'{}' is undefined", callee.undefinedName())};
            if (!callee.isCallable()) throw TemplateError{fmt::format("{} cannot be called", callee.typeName())};
            return callee.callable().call(given(e.arguments, scope));
        }
        case Kind::Filter:
            return applyFilter(e.name, part(0), given(e.arguments, scope), budget_);
        case Kind::Test:
            return applyTest(e.name, part(0), given(e.arguments, scope), budget_);
        case Kind::Not:
            return !part(0).truthy();
        case Kind::Negate:
            return binaryResult("-", 0, part(0), budget_);
        case Kind::Plus:
            return binaryResult("+", 0, part(0), budget_);
        case Kind::Binary:
            return binaryResult(e.name, part(0), part(1), budget_);
        case Kind::Compare: {
            Value left = part(0);
            for (std::size_t i = 0; i < e.operators.size(); ++i) {
                Value right = part(i + 1);
                if (!compared(e.operators[i], left, right, budget_)) return false;
                left = std::move(right);
            }
            return true;
        }
        case Kind::And: {
            Value left = part(0);
            return left.truthy() ? part(1) : left;
        }
        case Kind::Or: {
            Value left = part(0);
            return left.truthy() ? left : part(1);
        }
        case Kind::Conditional:
            if (part(1).truthy()) return part(0);
            return e.parts.size() > 2 ? part(2) : Value(Undefined{"the other value of an if"});
        }
        return {};
    }

    Budget budget_;
    Scope functions_, root_;
    int macros_ = 0;
};

} // namespace

std::string evaluate(const Nodes& nodes, const Dict& names) { return Evaluator(names).run(nodes); }

} // namespace kvscope::chat
