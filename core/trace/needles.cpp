#include "core/trace/needles.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace kvscope {

std::string needlesJson(std::span<const NeedlePlace> needles) {
    auto list = nlohmann::ordered_json::array();
    for (const NeedlePlace& needle : needles)
        list.push_back({{"sequence", needle.sequence},
                        {"first", needle.first},
                        {"tokens", needle.tokens},
                        {"name", needle.name},
                        {"value", needle.value},
                        {"asked", needle.asked}});
    return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<NeedlePlace> parseNeedles(const std::string& json) {
    std::vector<NeedlePlace> needles;
    const auto list = nlohmann::json::parse(json, nullptr, false);
    if (!list.is_array()) return needles;
    constexpr std::int64_t kMost = std::numeric_limits<int>::max() / 2;
    const auto numberOf = [](const nlohmann::json& entry, const char* key) {
        const auto found = entry.find(key);
        if (found == entry.end() || !found->is_number_integer()) return std::int64_t(-1);
        const auto value = found->get<std::int64_t>();
        return value <= kMost ? value : -1;
    };
    const auto textOf = [](const nlohmann::json& entry, const char* key) {
        const auto found = entry.find(key);
        return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    for (const auto& entry : list) {
        if (!entry.is_object()) continue;
        const std::int64_t sequence = numberOf(entry, "sequence"), first = numberOf(entry, "first"),
                           tokens = numberOf(entry, "tokens");
        NeedlePlace needle{int(sequence),          int(first), int(tokens), textOf(entry, "name"),
                           textOf(entry, "value"), false};
        const auto asked = entry.find("asked");
        needle.asked = asked != entry.end() && asked->is_boolean() && asked->get<bool>();
        if (sequence >= 0 && first >= 0 && tokens > 0 && !needle.value.empty()) needles.push_back(std::move(needle));
    }
    return needles;
}

} // namespace kvscope
