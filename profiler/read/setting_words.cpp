#include "profiler/read/setting_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace kvscope {
namespace {

bool isDecimalDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::vector<std::string> wordsOf(std::string_view key) {
    std::vector<std::string> words{""};
    for (const char c : key) {
        if (c == '_' || c == '-')
            words.emplace_back();
        else
            words.back() += c;
    }
    return words;
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
    return text;
}

std::string grouped(std::string digits) {
    for (int at = int(digits.size()) - 3; at > 0; at -= 3) digits.insert(std::size_t(at), 1, ',');
    return digits;
}

bool isCounted(std::string_view word) {
    constexpr std::array<std::string_view, 14> kCounted{"blocks", "tokens", "slots",     "layers", "heads",
                                                        "steps",  "bits",   "pages",     "bytes",  "channels",
                                                        "chunks", "groups", "sequences", "ranks"};
    return std::find(kCounted.begin(), kCounted.end(), word) != kCounted.end();
}

} // namespace

std::string settingWords(std::string_view key, std::string_view value) {
    std::vector<std::string> words = wordsOf(key);
    const bool isSymbol = words.size() > 1 && std::any_of(words.begin(), words.end(),
                                                          [](const std::string& word) { return word.size() < 2; });
    const std::string shown(value == "true" ? "on" : value == "false" ? "off" : value);
    if (key.empty() || isSymbol) return std::string(key) + (key.empty() ? "" : " ") + shown;
    const bool isNumber = !shown.empty() && std::all_of(shown.begin(), shown.end(), isDecimalDigit);
    if (!isNumber || !isCounted(words.back())) return joined(words) + ' ' + shown;
    if (words.size() > 1 && words.front() == "max") words.erase(words.begin()); // "7 new tokens"
    if (shown == "1") words.back().pop_back();
    return grouped(shown) + ' ' + joined(words);
}

std::string changeWords(const std::string& change) {
    const std::size_t end = change.find(' ');
    const std::string_view key = std::string_view(change).substr(0, end);
    if (end == std::string::npos || change.find(' ', end + 1) != std::string::npos ||
        key.find_first_of("_-") == std::string_view::npos)
        return change;
    return settingWords(key, std::string_view(change).substr(end + 1));
}

} // namespace kvscope
