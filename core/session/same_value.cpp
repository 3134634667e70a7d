#include "core/session/same_value.h"

#include "core/select/method.h"
#include "core/transfer/link.h"

#include <charconv>
#include <cstdint>
#include <optional>

namespace kvscope {
namespace {

template <class Number> std::optional<Number> wholly(const std::string& text) {
    Number value{};
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    return code == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

} // namespace

bool sameNumber(const std::string& a, const std::string& b) {
    if (a == b) return true;
    const auto wholeA = wholly<std::uint64_t>(a), wholeB = wholly<std::uint64_t>(b);
    if (wholeA && wholeB) return *wholeA == *wholeB;
    const auto numberA = wholly<double>(a), numberB = wholly<double>(b);
    return numberA && numberB && *numberA == *numberB;
}

bool sameLink(const std::string& a, const std::string& b) {
    const Link first = Link::parse(a), second = Link::parse(b);
    return first.gigabytesPerSecond == second.gigabytesPerSecond && first.latencyUs == second.latencyUs;
}

bool sameSetting(const ModelConfig& config, const std::string& key, const std::string& a, const std::string& b) {
    if (sameNumber(a, b)) return true;
    for (const MethodEntry& method : methods()) {
        const std::vector<Parameter>& declared = parametersFor(method, config);
        const auto parameter =
            std::find_if(declared.begin(), declared.end(), [&](const Parameter& each) { return each.key == key; });
        if (parameter == declared.end() || parameter->type != ParameterType::Boolean) continue;
        ParameterValues first, second;
        first.set(declared, key, a);
        second.set(declared, key, b);
        return first.boolean(key) == second.boolean(key);
    }
    return false;
}

} // namespace kvscope
