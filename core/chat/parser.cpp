#include "core/chat/lexer.h"
#include "core/chat/syntax.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <initializer_list>
#include <utility>

namespace kvscope::chat {
namespace {

using Kind = Expression::Kind;

class Parser {
public:
    explicit Parser(std::string_view text) : tokens_(lex(text)) {}

    Nodes parse() {
        Nodes nodes = parseNodes({});
        if (now().kind != Token::Kind::End) fail("a block ends that did not begin");
        return nodes;
    }

private:
    /// Counts how deeply the parser's functions call each other, and fails where a template would exhaust the stack.
    struct Deeper {
        explicit Deeper(Parser& owner) : parser(owner) {
            if (++parser.depth_ > 150) parser.fail("it is nested too deeply");
        }
        ~Deeper() { --parser.depth_; }
        Parser& parser;
    };

    const Token& now() const { return tokens_[at_]; }
    const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
    [[noreturn]] void fail(const std::string& what) const {
        throw TemplateError{fmt::format("line {}: {}", now().line, what)};
    }
    bool isOperator(const char* text) const { return now().kind == Token::Kind::Operator && now().text == text; }
    bool isName(const char* text) const { return now().kind == Token::Kind::Name && now().text == text; }
    bool skipOperator(const char* text) { return isOperator(text) && (take(), true); }
    bool skipName(const char* text) { return isName(text) && (take(), true); }
    void expectOperator(const char* text) {
        if (!skipOperator(text)) fail(fmt::format("'{}' is missing", text));
    }
    std::string expectName() {
        if (now().kind != Token::Kind::Name) fail("a name is missing");
        return take().text;
    }
    void expectBlockEnd() {
        if (now().kind != Token::Kind::BlockEnd) fail("the block goes on where it should end");
        take();
    }
    ExpressionPtr make(Kind kind) const {
        auto expression = std::make_unique<Expression>();
        expression->kind = kind;
        expression->line = now().line;
        return expression;
    }
    template <class... Parts> ExpressionPtr make(Kind kind, Parts... parts) const {
        auto expression = make(kind);
        (add(*expression, std::move(parts)), ...);
        return expression;
    }
    /// Makes `parent` higher than its part `child`, and fails where it gets too high: evaluating and destroying an
    /// expression recurse, and a chain of operators is as high as it is long.
    void raise(Expression& parent, const ExpressionPtr& child) const {
        if (child) parent.height = std::max(parent.height, child->height + 1);
        if (parent.height > 600) fail("an expression is too long");
    }
    void add(Expression& parent, ExpressionPtr child) const {
        raise(parent, child);
        parent.parts.push_back(std::move(child));
    }
    ExpressionPtr literal(Value value) const {
        auto expression = make(Kind::Literal);
        expression->literal = std::move(value);
        return expression;
    }

    // Statements

    bool atBlock(std::initializer_list<const char*> names) const {
        return now().kind == Token::Kind::BlockBegin && ahead().kind == Token::Kind::Name &&
               std::any_of(names.begin(), names.end(), [&](const char* name) { return ahead().text == name; });
    }

    Nodes parseNodes(std::initializer_list<const char*> ends) {
        const Deeper deeper(*this);
        Nodes nodes;
        while (now().kind != Token::Kind::End && !atBlock(ends)) {
            Node node;
            node.line = now().line;
            const Token token = take();
            if (token.kind == Token::Kind::Text) {
                node.text = token.text;
            } else if (token.kind == Token::Kind::PrintBegin) {
                node.kind = Node::Kind::Print;
                node.value = parseTuple();
                if (now().kind != Token::Kind::PrintEnd) fail("'}}' is missing");
                take();
            } else {
                parseStatement(node);
            }
            nodes.push_back(std::move(node));
        }
        return nodes;
    }

    Nodes parseBody(const char* end) {
        Nodes body = parseNodes({end});
        if (now().kind == Token::Kind::End) fail(fmt::format("'{}' is missing", end));
        take(), take(); // {% end
        return body;
    }

    void parseStatement(Node& node) {
        const std::string name = expectName();
        if (name == "if")
            parseIf(node);
        else if (name == "for")
            parseFor(node);
        else if (name == "set")
            parseSet(node);
        else if (name == "macro")
            parseMacro(node);
        else if (name == "break" || name == "continue") {
            node.kind = name == "break" ? Node::Kind::Break : Node::Kind::Continue;
            if (loops_ == 0) fail(fmt::format("'{}' is outside a loop", name));
            expectBlockEnd();
        } else if (name == "generation") { // marks what the model says; it changes no text
            node.kind = Node::Kind::Scope;
            expectBlockEnd();
            node.body = parseBody("endgeneration");
            expectBlockEnd();
        } else if (name == "filter") {
            node.kind = Node::Kind::FilterBlock;
            node.text = expectName();
            if (isOperator("(")) node.arguments = parseArguments();
            expectBlockEnd();
            node.body = parseBody("endfilter");
            expectBlockEnd();
        } else {
            fail(fmt::format("'{}' is not supported in a chat template", name));
        }
    }

    void parseIf(Node& node) {
        node.kind = Node::Kind::If;
        node.value = parseTuple();
        expectBlockEnd();
        node.body = parseNodes({"elif", "else", "endif"});
        if (now().kind == Token::Kind::End) fail("'endif' is missing");
        take();
        const std::string next = expectName();
        if (next == "elif") {
            const Deeper deeper(*this);
            Node& inner = node.otherwise.emplace_back();
            inner.line = now().line;
            return parseIf(inner);
        }
        expectBlockEnd();
        if (next == "endif") return;
        node.otherwise = parseBody("endif");
        expectBlockEnd();
    }

    void parseTargets(Node& node) {
        const bool brackets = skipOperator("(");
        do {
            if (!node.names.empty() && now().kind != Token::Kind::Name) break; // a trailing comma
            node.names.push_back(expectName());
        } while (skipOperator(","));
        if (brackets) expectOperator(")");
    }

    void parseFor(Node& node) {
        node.kind = Node::Kind::For;
        parseTargets(node);
        if (!skipName("in")) fail("'in' is missing");
        node.value = parseTuple(false);
        if (skipName("if")) node.filter = parseExpression();
        if (isName("recursive")) fail("recursive loops are not supported");
        expectBlockEnd();
        ++loops_;
        node.body = parseNodes({"else", "endfor"});
        --loops_;
        if (now().kind == Token::Kind::End) fail("'endfor' is missing");
        take();
        const bool hasElse = expectName() == "else";
        expectBlockEnd();
        if (!hasElse) return;
        node.otherwise = parseBody("endfor");
        expectBlockEnd();
    }

    void parseSet(Node& node) {
        if (ahead().kind == Token::Kind::Operator && ahead().text == ".") {
            node.isMember = true;
            node.names.push_back(expectName());
            take();
            node.names.push_back(expectName());
        } else {
            parseTargets(node);
        }
        if (skipOperator("=")) {
            node.kind = Node::Kind::Set;
            node.value = parseTuple();
            return expectBlockEnd();
        }
        node.kind = Node::Kind::SetBlock;
        if (skipOperator("|")) {
            node.text = expectName();
            if (isOperator("(")) node.arguments = parseArguments();
        }
        expectBlockEnd();
        node.body = parseBody("endset");
        expectBlockEnd();
    }

    void parseMacro(Node& node) {
        node.kind = Node::Kind::Macro;
        node.text = expectName();
        expectOperator("(");
        while (!skipOperator(")")) {
            Parameter& parameter = node.parameters.emplace_back();
            parameter.name = expectName();
            if (skipOperator("=")) parameter.fallback = parseExpression();
            if (!isOperator(")")) expectOperator(",");
        }
        expectBlockEnd();
        const int loops = std::exchange(loops_, 0);
        node.body = parseBody("endmacro");
        loops_ = loops;
        if (now().kind == Token::Kind::Name) take(); // the end may repeat the name
        expectBlockEnd();
    }

    // Expressions, weakest binding first

    ExpressionPtr parseTuple(bool conditional = true) {
        ExpressionPtr first = conditional ? parseExpression() : parseOr();
        if (!isOperator(",")) return first;
        auto list = make(Kind::Items, std::move(first));
        list->name = "tuple";
        while (skipOperator(",")) {
            if (now().kind == Token::Kind::BlockEnd || now().kind == Token::Kind::PrintEnd || isOperator(")")) break;
            add(*list, conditional ? parseExpression() : parseOr());
        }
        return list;
    }

    ExpressionPtr parseExpression() {
        const Deeper deeper(*this);
        ExpressionPtr value = parseOr();
        while (skipName("if")) {
            auto choice = make(Kind::Conditional, std::move(value), parseOr());
            if (skipName("else")) add(*choice, parseExpression());
            value = std::move(choice);
        }
        return value;
    }

    ExpressionPtr parseOr() {
        ExpressionPtr left = parseAnd();
        while (skipName("or")) left = make(Kind::Or, std::move(left), parseAnd());
        return left;
    }

    ExpressionPtr parseAnd() {
        ExpressionPtr left = parseNot();
        while (skipName("and")) left = make(Kind::And, std::move(left), parseNot());
        return left;
    }

    ExpressionPtr parseNot() {
        const Deeper deeper(*this);
        if (isName("not")) {
            take();
            return make(Kind::Not, parseNot());
        }
        return parseCompare();
    }

    ExpressionPtr parseCompare() {
        ExpressionPtr left = parseSum();
        std::vector<std::string> operators;
        ExpressionPtr compare;
        while (true) {
            std::string name;
            for (const char* known : {"==", "!=", "<=", ">=", "<", ">"})
                if (isOperator(known)) name = known;
            if (isName("in")) name = "in";
            if (isName("not") && ahead().kind == Token::Kind::Name && ahead().text == "in") name = "not in", take();
            if (name.empty()) return compare ? std::move(compare) : std::move(left);
            take();
            if (!compare) compare = make(Kind::Compare, std::move(left));
            compare->operators.push_back(name);
            add(*compare, parseSum());
        }
    }

    ExpressionPtr binary(std::initializer_list<const char*> operators, ExpressionPtr (Parser::*operand)()) {
        ExpressionPtr left = (this->*operand)();
        while (true) {
            const auto found =
                std::find_if(operators.begin(), operators.end(), [&](auto name) { return isOperator(name); });
            if (found == operators.end()) return left;
            take();
            left = make(Kind::Binary, std::move(left), (this->*operand)());
            left->name = *found;
        }
    }
    ExpressionPtr parseSum() { return binary({"+", "-"}, &Parser::parseConcatenation); }
    ExpressionPtr parseConcatenation() { return binary({"~"}, &Parser::parseProduct); }
    ExpressionPtr parseProduct() { return binary({"*", "/", "//", "%"}, &Parser::parsePower); }
    ExpressionPtr parsePower() { return binary({"**"}, &Parser::parseUnary); }
    ExpressionPtr parseUnary() { return parseSigned(true); }

    ExpressionPtr parseSigned(bool filtered) {
        const Deeper deeper(*this);
        ExpressionPtr value;
        if (isOperator("-") || isOperator("+")) {
            const Kind kind = take().text == "-" ? Kind::Negate : Kind::Plus;
            value = make(kind, parseSigned(false));
        } else {
            value = parsePostfix(parsePrimary());
        }
        return filtered ? parseFilters(std::move(value)) : std::move(value);
    }

    ExpressionPtr parsePrimary() {
        const Token token = take();
        switch (token.kind) {
        case Token::Kind::Name:
            if (token.text == "true" || token.text == "True") return literal(true);
            if (token.text == "false" || token.text == "False") return literal(false);
            if (token.text == "none" || token.text == "None") return literal(None{});
            {
                auto name = make(Kind::Name);
                name->name = token.text;
                return name;
            }
        case Token::Kind::String: {
            std::string text = token.text;
            while (now().kind == Token::Kind::String) text += take().text;
            return literal(text);
        }
        case Token::Kind::Integer: {
            std::int64_t value = 0;
            const auto [end, code] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
            if (code != std::errc()) fail("a number is too large");
            return literal(value);
        }
        case Token::Kind::Float: {
            double value = 0;
            std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
            return literal(value);
        }
        case Token::Kind::Operator:
            if (token.text == "(") {
                if (skipOperator(")")) {
                    auto empty = make(Kind::Items);
                    empty->name = "tuple";
                    return empty;
                }
                ExpressionPtr inner = parseTuple();
                expectOperator(")");
                return inner;
            }
            if (token.text == "[") return parseList();
            if (token.text == "{") return parseDict();
            break;
        default:
            break;
        }
        fail("an expression is missing");
    }

    ExpressionPtr parseList() {
        auto list = make(Kind::Items);
        while (!skipOperator("]")) {
            add(*list, parseExpression());
            if (!isOperator("]")) expectOperator(",");
        }
        return list;
    }

    ExpressionPtr parseDict() {
        auto dict = make(Kind::Mapping);
        while (!skipOperator("}")) {
            add(*dict, parseExpression());
            expectOperator(":");
            add(*dict, parseExpression());
            if (!isOperator("}")) expectOperator(",");
        }
        return dict;
    }

    ExpressionPtr parsePostfix(ExpressionPtr value) {
        while (true) {
            if (skipOperator(".")) {
                if (now().kind == Token::Kind::Integer) {
                    value = make(Kind::Index, std::move(value), parsePrimary());
                    continue;
                }
                auto attribute = make(Kind::Attribute, std::move(value));
                attribute->name = expectName();
                value = std::move(attribute);
            } else if (skipOperator("[")) {
                value = parseSubscript(std::move(value));
            } else if (isOperator("(")) {
                value = parseCall(std::move(value));
            } else {
                return value;
            }
        }
    }

    ExpressionPtr parseCall(ExpressionPtr callee) {
        auto call = make(Kind::Call, std::move(callee));
        call->arguments = parseArguments(call.get());
        return call;
    }

    ExpressionPtr parseSubscript(ExpressionPtr object) {
        const auto bound = [&]() -> ExpressionPtr {
            return isOperator(":") || isOperator("]") ? nullptr : parseExpression();
        };
        ExpressionPtr start = bound();
        if (skipOperator("]")) {
            if (!start) fail("an index is missing");
            return make(Kind::Index, std::move(object), std::move(start));
        }
        expectOperator(":");
        ExpressionPtr stop = bound(), step;
        if (skipOperator(":")) step = bound();
        expectOperator("]");
        return make(Kind::Slice, std::move(object), std::move(start), std::move(stop), std::move(step));
    }

    std::vector<Argument> parseArguments(Expression* parent = nullptr) {
        expectOperator("(");
        std::vector<Argument> arguments;
        while (!skipOperator(")")) {
            Argument& argument = arguments.emplace_back();
            if (now().kind == Token::Kind::Name && ahead().kind == Token::Kind::Operator && ahead().text == "=")
                argument.name = take().text, take();
            if (isOperator("*") || isOperator("**")) fail("unpacked arguments are not supported");
            argument.value = parseExpression();
            if (parent) raise(*parent, argument.value);
            if (!isOperator(")")) expectOperator(",");
        }
        return arguments;
    }

    ExpressionPtr parseFilters(ExpressionPtr value) {
        while (true) {
            if (skipOperator("|")) {
                auto filter = make(Kind::Filter, std::move(value));
                filter->name = expectName();
                if (isOperator("(")) filter->arguments = parseArguments(filter.get());
                value = std::move(filter);
            } else if (isName("is")) {
                value = parseTest(std::move(value));
            } else if (isOperator("(")) {
                value = parseCall(std::move(value));
            } else {
                return value;
            }
        }
    }

    ExpressionPtr parseTest(ExpressionPtr value) {
        take();
        const bool negated = skipName("not");
        auto test = make(Kind::Test, std::move(value));
        test->name = expectName();
        const Token::Kind next = now().kind;
        if (isOperator("("))
            test->arguments = parseArguments(test.get());
        else if (next == Token::Kind::String || next == Token::Kind::Integer || next == Token::Kind::Float ||
                 isOperator("[") || isOperator("{") ||
                 (next == Token::Kind::Name && !isName("else") && !isName("or") && !isName("and") && !isName("if") &&
                  !isName("is") && !isName("in") && !isName("not")))
            test->arguments.push_back({"", parsePostfix(parsePrimary())});
        return negated ? make(Kind::Not, std::move(test)) : std::move(test);
    }

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    int depth_ = 0, loops_ = 0;
};

} // namespace

Nodes parseTemplate(std::string_view text) { return Parser(text).parse(); }

} // namespace kvscope::chat
