#include "profiler/import/text_pool.h"

#include "base/utf8.h"

#include <algorithm>

namespace kvscope {
namespace {

bool isPlain(std::string_view text) {
    return text.size() <= TextPool::kLongest &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string presentable(std::string_view text) {
    const bool cut = text.size() > TextPool::kLongest;
    if (cut) {
        std::size_t end = TextPool::kLongest;
        // Moves back to the start of a character.
        while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
        text = text.substr(0, end);
    }
    std::string result = toValidUtf8(text);
    for (char& c : result)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    return cut ? result + "…" : result;
}

} // namespace

std::uint32_t TextPool::id(std::string_view text) {
    if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
    // A plain text is stored as it came and can be looked up directly. Any other text is first made presentable, and
    // the changed text is looked up.
    if (!isPlain(text)) {
        std::string changed = presentable(text);
        if (changed != text) {
            if (const auto known = ids_.find(changed); known != ids_.end()) return known->second;
            const auto added = ids_.emplace(std::move(changed), std::uint32_t(texts_.size())).first;
            texts_.push_back(&added->first);
            return added->second;
        }
    }
    const auto added = ids_.emplace(std::string(text), std::uint32_t(texts_.size())).first;
    texts_.push_back(&added->first);
    return added->second;
}

} // namespace kvscope
