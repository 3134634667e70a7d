// Damaged inputs, reproducibly: JSON documents with one value changed, and bytes flipped, overwritten, cut or repeated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace kvscope::test {

/// Every place of a document; of long lists and objects the first and the last few.
inline void collectPlaces(const nlohmann::json& value, const nlohmann::json::json_pointer& here,
                          std::vector<nlohmann::json::json_pointer>& out) {
    constexpr std::size_t kept = 6;
    if (!here.empty()) out.push_back(here);
    std::size_t index = 0;
    const auto wanted = [&] { return index < kept || index + kept >= value.size(); };
    if (value.is_object())
        for (const auto& [key, member] : value.items()) {
            if (wanted()) collectPlaces(member, here / key, out);
            ++index;
        }
    if (value.is_array())
        for (const auto& entry : value) {
            if (wanted()) collectPlaces(entry, here / index, out);
            ++index;
        }
}

inline std::vector<nlohmann::json::json_pointer> placesOf(const nlohmann::json& document) {
    std::vector<nlohmann::json::json_pointer> out;
    collectPlaces(document, nlohmann::json::json_pointer(), out);
    return out;
}

/// Values that files put where something else belongs, by accident or on purpose.
inline const std::vector<nlohmann::json>& wrongValues() {
    using Json = nlohmann::json;
    static const std::vector<Json> values{nullptr,
                                          true,
                                          false,
                                          0,
                                          -1,
                                          1,
                                          2,
                                          3,
                                          7,
                                          64,
                                          65537,
                                          1'000'000'000,
                                          std::numeric_limits<std::int64_t>::max(),
                                          std::numeric_limits<std::int64_t>::min(),
                                          std::numeric_limits<std::uint64_t>::max(),
                                          0.5,
                                          -0.0,
                                          1e-300,
                                          1e300,
                                          "",
                                          "x",
                                          "0",
                                          "../../etc/passwd",
                                          "/etc/passwd",
                                          "a\nb\x01",
                                          std::string(100'000, 'y'),
                                          "\xC3\x28",
                                          Json::array(),
                                          Json::object(),
                                          Json::array({0}),
                                          Json::array({-1, 1e30}),
                                          Json::array({"a", nullptr}),
                                          Json::object({{"", Json::object({{"a", 1}})}})};
    return values;
}

/// The document with one place changed or removed, as text; bytes that are no UTF-8 stay as they are.
inline std::string withOneChange(nlohmann::json document, const std::vector<nlohmann::json::json_pointer>& places,
                                 std::mt19937& random) {
    const auto& place = places[random() % places.size()];
    const std::size_t choice = random() % (wrongValues().size() + 3);
    nlohmann::json& parent = document.at(place.parent_pointer());
    if (choice < wrongValues().size())
        document.at(place) = wrongValues()[choice];
    else if (parent.is_array())
        parent.push_back(document.at(place)); // one entry too many
    else
        parent.erase(place.back());
    std::string text = document.dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
    if (random() % 50 == 0) text.resize(random() % text.size());
    return text;
}

/// One to three changes within the first `within` bytes.
inline std::string withChangedBytes(std::string bytes, std::size_t within, std::mt19937& random) {
    for (unsigned changes = 1 + random() % 3; changes > 0 && !bytes.empty(); --changes) {
        const std::size_t at = random() % std::min(within, bytes.size());
        switch (random() % 5) {
        case 0:
            bytes[at] = char(bytes[at] ^ char(1u << random() % 8));
            break;
        case 1:
            bytes[at] = char(random());
            break;
        case 2: {
            constexpr std::uint64_t telling[] = {0, 1, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
            const std::uint64_t value = telling[random() % std::size(telling)];
            std::memcpy(&bytes[at], &value, std::min<std::size_t>(random() % 2 ? 4 : 8, bytes.size() - at));
            break;
        }
        case 3:
            bytes.erase(at, 1 + random() % 16);
            break;
        default:
            bytes.insert(at, bytes.substr(random() % bytes.size(), 1 + random() % 16));
        }
    }
    return bytes;
}

} // namespace kvscope::test
