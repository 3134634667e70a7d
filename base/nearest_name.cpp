#include "base/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <numeric>
#include <utility>

namespace kvscope {
namespace {

constexpr std::size_t kLongestName = 200; // the work grows with the square; longer names are written like none

std::string_view lettersOf(std::string_view name) {
    return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

/// How many letters must be added, left out, replaced or exchanged with the next one to make `a` of `b`.
std::size_t lettersApart(std::string_view a, std::string_view b) {
    std::vector<std::size_t> beforeLast, last(b.size() + 1), row(b.size() + 1); // of a's beginnings, by b's
    std::iota(last.begin(), last.end(), std::size_t(0));
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], beforeLast[j - 2] + 1);
        }
        beforeLast = std::exchange(last, row);
    }
    return last.back();
}

} // namespace

std::string didYouMean(std::string_view wrong, const std::vector<std::string>& names) {
    const std::string_view letters = lettersOf(wrong);
    if (letters.size() > kLongestName) return {};
    std::size_t least = (letters.size() + 2) / 3;
    const std::string* nearest = nullptr;
    for (const std::string& name : names)
        if (const std::size_t apart = lettersApart(letters, lettersOf(name));
            apart <= least && (!nearest || apart < least))
            least = apart, nearest = &name;
    return nearest ? fmt::format(" (did you mean {}?)", *nearest) : "";
}

} // namespace kvscope
