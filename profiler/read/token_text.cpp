#include "profiler/read/token_text.h"

#include "base/utf8.h"
#include "profiler/format/trace_keys.h"

#include <algorithm>

namespace kvscope {
namespace {

std::string inLowerCase(std::string bytes) {
    for (char& c : bytes)
        if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    return bytes;
}

} // namespace

void TokenText::add(const TokenRow& token) {
    if (token.position < 0 || token.position > trace::kMaxStep) return;
    const int block = token.position / blockSize_;
    begins_.emplace_back(bytes_.size(), block);
    bytes_ += token.bytes;
    lower_ += inLowerCase(token.bytes);
    blocks_ = std::max(blocks_, std::size_t(block) + 1);
}

std::vector<std::size_t> TokenText::firstMatches(const std::string& text) const {
    std::vector<std::size_t> matches(blocks_, kNowhere);
    const std::string wanted = inLowerCase(text);
    if (wanted.empty()) return matches;
    for (auto at = lower_.find(wanted); at != std::string::npos; at = lower_.find(wanted, at + 1)) {
        auto token = std::upper_bound(begins_.begin(), begins_.end(), at,
                                      [](std::size_t place, const auto& begin) { return place < begin.first; });
        for (--token; token != begins_.end() && token->first < at + wanted.size(); ++token)
            matches[std::size_t(token->second)] = std::min(matches[std::size_t(token->second)], at);
    }
    return matches;
}

std::string TokenText::around(std::size_t at, std::size_t length, std::size_t before, std::size_t after) const {
    const auto continues = [&](std::size_t i) {
        return i < bytes_.size() && (static_cast<unsigned char>(bytes_[i]) & 0xC0) == 0x80;
    };
    std::size_t first = at > before ? at - before : 0, end = std::min(at + length + after, bytes_.size());
    while (first > 0 && continues(first)) --first;
    while (continues(end)) ++end;
    if (first > 0)
        if (const std::size_t space = bytes_.find(' ', first); space < at) first = space + 1;
    if (end < bytes_.size())
        if (const std::size_t space = bytes_.rfind(' ', end); space != kNowhere && space >= at + length) end = space;
    return (first > 0 ? "…" : "") + toValidUtf8(std::string_view(bytes_).substr(first, end - first)) +
           (end < bytes_.size() ? "…" : "");
}

} // namespace kvscope
