#include "profiler/read/span_search.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace kvscope {
namespace {

std::string lower(std::string_view text) {
    std::string result(text);
    for (char& c : result) c = char(std::tolower(static_cast<unsigned char>(c)));
    return result;
}

bool isMatch(const std::vector<bool>& matches, int name) {
    return std::size_t(name) < matches.size() && matches[std::size_t(name)];
}

} // namespace

void matchNewNames(const SpanIndex& index, std::string_view text,
                   const std::function<std::string(std::string_view component)>& also, std::vector<bool>& matches) {
    std::vector<std::string> words;
    const std::string all = lower(text);
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t begin = all.find_first_not_of(' ', at);
        if (begin == std::string::npos) break;
        at = std::min(all.find(' ', begin), all.size());
        words.push_back(all.substr(begin, at - begin));
    }
    if (words.empty()) return;
    while (matches.size() < index.names().size()) {
        std::string plain = lower(index.names()[matches.size()]);
        if (also) plain += '\n' + lower(also(index.components()[matches.size()]));
        matches.push_back(std::all_of(words.begin(), words.end(),
                                      [&](const std::string& word) { return plain.find(word) != std::string::npos; }));
    }
}

std::vector<bool> namesMatching(const SpanIndex& index, std::string_view text,
                                const std::function<std::string(std::string_view component)>& also) {
    std::vector<bool> matches;
    matchNewNames(index, text, also, matches);
    return matches;
}

std::size_t matchCount(const SpanIndex& index, const std::vector<bool>& matches) {
    std::size_t count = 0;
    for (std::size_t name = 0; name < matches.size(); ++name)
        if (matches[name]) count += index.nameCounts()[name];
    return count;
}

std::size_t matchNumber(const SpanIndex& index, const std::vector<bool>& matches, SpanRef ref) {
    const TimelineSpan wanted = index.at(ref);
    if (!isMatch(matches, wanted.name)) return 0;
    const SpanIndex::NameSet names = SpanIndex::namesIn(matches);
    std::size_t number = 1;
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        // At the same start, lower lanes come first; within a lane, earlier spans.
        std::uint32_t end =
            lane == ref.lane ? ref.index : index.lowerBound(lane, wanted.startNs + (lane < ref.lane ? 1 : 0));
        end = std::min(end, index.lane(lane).spans);
        for (std::uint32_t i = index.nextLike(lane, 0, names); i < end; i = index.nextLike(lane, i + 1, names))
            if (isMatch(matches, index.nameAt({lane, i}))) ++number;
    }
    return number;
}

std::optional<SpanRef> nextMatch(const SpanIndex& index, const std::vector<bool>& matches,
                                 const std::optional<SpanRef>& from, std::int64_t ns) {
    if (from) ns = index.at(*from).startNs;
    const SpanIndex::NameSet names = SpanIndex::namesIn(matches);
    std::optional<SpanRef> best;
    std::int64_t bestStart = 0;
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        std::uint32_t i = index.lowerBound(lane, ns);
        if (from && lane == from->lane) i = from->index + 1;
        const std::uint32_t end = index.lane(lane).spans;
        for (i = index.nextLike(lane, i, names); i < end; i = index.nextLike(lane, i + 1, names)) {
            const TimelineSpan span = index.at({lane, i});
            if (best && span.startNs >= bestStart) break; // an earlier lane wins at the same start
            const bool passed = from && span.startNs == ns && lane < from->lane;
            if (passed || !isMatch(matches, span.name)) continue;
            best = SpanRef{lane, i};
            bestStart = span.startNs;
            break;
        }
    }
    return best;
}

std::optional<SpanRef> previousMatch(const SpanIndex& index, const std::vector<bool>& matches,
                                     const std::optional<SpanRef>& from, std::int64_t ns) {
    if (from) ns = index.at(*from).startNs;
    const SpanIndex::NameSet names = SpanIndex::namesIn(matches);
    std::optional<SpanRef> best;
    std::int64_t bestStart = 0;
    for (int lane = index.laneCount() - 1; lane >= 0; --lane) {
        std::uint32_t i = index.lowerBound(lane, from ? ns + 1 : ns);
        if (from && lane == from->lane) i = from->index;
        for (i = index.previousLike(lane, i, names); i > 0; i = index.previousLike(lane, i - 1, names)) {
            const TimelineSpan span = index.at({lane, i - 1});
            if (best && span.startNs <= bestStart) break;
            const bool passed = from && span.startNs == ns && lane > from->lane;
            if (passed || !isMatch(matches, span.name)) continue;
            best = SpanRef{lane, i - 1};
            bestStart = span.startNs;
            break;
        }
    }
    return best;
}

} // namespace kvscope
