#include "profiler/read/step_counters.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope {
namespace {
constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
}

const CounterInfo& StepCounters::info(Counter counter) {
    static constexpr CounterInfo table[kCount] = {
        {"token-rate", "tokens per second", "tokens/s",
         "Tokens fed in a decode step over its wall time, all sequences"},
        {"hit-rate", "hit rate", "share", "Selected blocks that were resident, of all selected in the step"},
        {"to-device", "host to device", "bytes/s",
         "KV bytes of the step over its wall time: what the link carried on average, not its speed while busy"},
        {"to-host", "device to host", "bytes/s", "KV bytes written back in the step over its wall time"},
        {"occupancy", "device slots filled (at most)", "share",
         "Blocks loaded since the decode began, of the device tier's slots, at most all: an upper bound that counts "
         "every miss as a new slot until none is empty"},
        {"kv-tokens", "KV tokens on the device", "tokens",
         "Tokens fed so far, all sequences: without a device tier the KV of every one of them stays resident"},
    };
    return table[counter];
}

void StepCounters::append(const std::vector<StepRow>& steps) {
    for (const StepRow& step : steps) {
        // Times that run backwards (a damaged file) would break the search; such a step keeps its predecessor's place.
        const std::int64_t start = start_.empty() ? step.startNs : std::max(step.startNs, start_.back());
        start_.push_back(start);
        end_.push_back(std::max(start, step.startNs + step.durationNs));
        lastEnd_ = end_.size() == 1 ? end_.back() : std::max(lastEnd_, end_.back());
        const bool decode = step.phase == Phase::Decode;
        // The number is known only if all steps from the first one on were appended.
        bool follows = number_.empty() ? !decode : step.step == number_.back() + 1;
        // A prompt that is read later may take the place of another request's tokens.
        follows = follows && !(firstDecode_ != kNowhere && step.promptTokens > 0);
        fedTokens_ = follows && fedTokens_ >= 0 ? fedTokens_ + step.tokens : -1;
        if (decode && firstDecode_ == kNowhere) firstDecode_ = number_.size();
        number_.push_back(step.step);
        const double seconds = double(step.durationNs) * 1e-9;
        const auto perSecond = [&](std::int64_t amount) {
            return seconds > 0 && amount >= 0 ? float(double(amount) / seconds) : kNone;
        };
        if (decode) loadedBlocks_ += std::max<std::int64_t>(0, step.misses);
        loadedAt_.push_back(decode ? loadedBlocks_ : -1);
        fedAt_.push_back(fedTokens_);
        const float values[kCount] = {
            decode ? perSecond(step.decodeTokens()) : kNone,
            step.hits + step.misses > 0 ? float(double(step.hits) / double(step.hits + step.misses)) : kNone,
            perSecond(step.h2dBytes),
            perSecond(step.d2hBytes),
            occupancyOf(number_.size() - 1),
            kvTokensOf(number_.size() - 1),
        };
        for (int c = 0; c < kCount; ++c) add(c, values[c]);
    }
}

float StepCounters::occupancyOf(std::size_t i) const {
    const bool known = slotBlocks_ > 0 && loadedAt_[i] >= 0;
    return known ? float(std::min(1.0, double(loadedAt_[i]) / double(slotBlocks_))) : kNone;
}

float StepCounters::kvTokensOf(std::size_t i) const {
    return slotBlocks_ == 0 && fedAt_[i] > 0 ? float(fedAt_[i]) : kNone;
}

void StepCounters::add(int counter, float value) {
    if (values_[counter].size() % kGroup == 0) groups_[counter].push_back({kNone, kNone});
    Extremes& group = groups_[counter].back();
    group.low = std::fmin(group.low, value); // NaN gives way
    group.high = std::fmax(group.high, value);
    values_[counter].push_back(value);
    if (value > largest_[counter]) largest_[counter] = double(value);
}

void StepCounters::setSlotBlocks(std::int64_t slotBlocks) {
    if (slotBlocks == slotBlocks_) return;
    slotBlocks_ = slotBlocks;
    for (const Counter counter : {Occupancy, KvTokens}) {
        values_[counter].clear();
        groups_[counter].clear();
        largest_[counter] = 0;
        for (std::size_t i = 0; i < number_.size(); ++i)
            add(counter, counter == Occupancy ? occupancyOf(i) : kvTokensOf(i));
    }
}

std::size_t StepCounters::indexAt(std::int64_t ns) const {
    const auto after = std::upper_bound(start_.begin(), start_.end(), ns);
    return after == start_.begin() ? start_.size() : std::size_t(after - start_.begin()) - 1;
}

bool StepCounters::isOver(Counter counter, std::size_t step, std::int64_t ns) const {
    return ns >= end_[step] && ns > start_[step] && (!holds(counter) || step + 1 == start_.size());
}

StepCounters::Extremes StepCounters::of(Counter counter, std::size_t first, std::size_t last) const {
    Extremes all{kNone, kNone};
    const auto take = [&](Extremes part) {
        all.low = std::fmin(all.low, part.low);
        all.high = std::fmax(all.high, part.high);
    };
    for (std::size_t i = first; i < last;) {
        if (i % kGroup == 0 && i + kGroup <= last) {
            take(groups_[counter][i / kGroup]);
            i += kGroup;
        } else {
            take({values_[counter][i], values_[counter][i]});
            ++i;
        }
    }
    return all;
}

bool StepCounters::range(Counter counter, std::int64_t fromNs, std::int64_t toNs, float& low, float& high) const {
    if (start_.empty() || toNs <= start_.front()) return false;
    std::size_t first = indexAt(fromNs);
    if (first == start_.size())
        first = 0;
    else if (isOver(counter, first, fromNs))
        ++first;
    const auto last = std::size_t(std::lower_bound(start_.begin(), start_.end(), toNs) - start_.begin());
    if (first >= last) return false;
    const Extremes found = of(counter, first, last);
    low = found.low;
    high = found.high;
    return std::isfinite(high);
}

double StepCounters::at(Counter counter, std::int64_t ns) const {
    const std::size_t i = indexAt(ns);
    return i == start_.size() || isOver(counter, i, ns) ? double(kNone) : double(values_[counter][i]);
}

int StepCounters::stepAt(std::int64_t ns) const {
    const std::size_t i = indexAt(ns);
    return i == start_.size() ? -1 : number_[i];
}

bool StepCounters::timesOf(int step, std::int64_t& startNs, std::int64_t& endNs) const {
    const auto at = std::lower_bound(number_.begin(), number_.end(), step);
    if (at == number_.end() || *at != step) return false;
    startNs = start_[std::size_t(at - number_.begin())];
    endNs = end_[std::size_t(at - number_.begin())];
    return true;
}

bool StepCounters::timesOfAll(bool decodeOnly, std::int64_t& startNs, std::int64_t& endNs) const {
    const std::size_t first = decodeOnly ? firstDecode_ : 0;
    if (first >= start_.size()) return false;
    startNs = start_[first];
    endNs = lastEnd_;
    return true;
}

} // namespace kvscope
