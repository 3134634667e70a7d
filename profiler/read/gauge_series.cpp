#include "profiler/read/gauge_series.h"

#include <algorithm>
#include <cmath>

namespace kvscope {
namespace {

constexpr double kMost = 1e37; // what a float holds, with room for the axis

/// "memory (bytes)" gives "memory" and "bytes"; no unit where there are no brackets at the end.
std::pair<std::string_view, std::string_view> splitUnit(std::string_view name) {
    if (name.empty() || (name.back() != ')' && name.back() != ']')) return {name, {}};
    const auto open = name.rfind(name.back() == ')' ? '(' : '[');
    if (open == std::string_view::npos || open == 0) return {name, {}};
    std::string_view title = name.substr(0, open);
    while (!title.empty() && title.back() == ' ') title.remove_suffix(1);
    return {title.empty() ? name : title, name.substr(open + 1, name.size() - open - 2)};
}

} // namespace

GaugeInfo describeGauge(GaugeInfo::Source source, std::string_view track) {
    GaugeInfo info;
    info.source = source;
    info.track = track;
    if (source == GaugeInfo::Source::Interval) {
        info.title = track;
        if (const auto bytes = info.title.find("bytes "); bytes != std::string::npos) {
            info.title.erase(bytes, 6); // "PCIe bytes to device" is shown per second
            info.unit = GaugeUnit::BytesPerSecond;
        }
        return info;
    }
    const auto [title, unit] = splitUnit(track);
    info.title = title;
    if (unit == "bytes" || unit == "B") {
        info.unit = GaugeUnit::Bytes;
    } else if (unit == "bytes/s" || unit == "B/s") {
        info.unit = GaugeUnit::BytesPerSecond;
    } else if (unit == "%") {
        info.unit = GaugeUnit::Percent;
        info.ceiling = 100;
    } else {
        info.unitName = unit;
    }
    return info;
}

void GaugeSeries::Extremes::take(Extremes other) {
    low = std::min(low, other.low);
    high = std::max(high, other.high);
}

void GaugeSeries::append(std::vector<Sample> samples) {
    std::erase_if(samples, [](const Sample& sample) { return !(std::abs(sample.value) <= kMost); });
    if (samples.empty()) return;
    const auto earlier = [](const Sample& a, const Sample& b) { return a.startNs < b.startNs; };
    std::stable_sort(samples.begin(), samples.end(), earlier);
    // Samples behind the first new one are taken out and merged with the new ones. Usually there are none.
    const auto kept =
        std::size_t(std::lower_bound(start_.begin(), start_.end(), samples.front().startNs) - start_.begin());
    std::vector<Sample> late;
    for (std::size_t i = kept; i < start_.size(); ++i) late.push_back({start_[i], end_[i], double(values_[i])});
    late.insert(late.end(), samples.begin(), samples.end());
    std::inplace_merge(late.begin(), late.end() - std::ptrdiff_t(samples.size()), late.end(), earlier);
    start_.resize(kept);
    end_.resize(kept);
    values_.resize(kept);
    for (const Sample& sample : late) {
        if (start_.size() > kept && start_.back() == sample.startNs) {
            start_.pop_back();
            end_.pop_back();
            values_.pop_back();
        }
        start_.push_back(sample.startNs);
        end_.push_back(std::max(sample.endNs, sample.startNs));
        values_.push_back(float(sample.value));
    }
    rebuild(kept);
    all_ = under(0, 0, values_.size());
}

void GaugeSeries::rebuild(std::size_t from) {
    std::size_t below = values_.size();
    for (std::size_t level = 0; below > 1; ++level) {
        if (levels_.size() == level) levels_.emplace_back();
        const std::size_t count = (below + kFan - 1) / kFan;
        levels_[level].resize(count);
        from /= kFan;
        for (std::size_t node = from; node < count; ++node) {
            Extremes all;
            for (std::size_t i = node * kFan; i < std::min((node + 1) * kFan, below); ++i)
                all.take(level == 0 ? Extremes{values_[i], values_[i]} : levels_[level - 1][i]);
            levels_[level][node] = all;
        }
        below = count;
    }
}

std::int64_t GaugeSeries::lastNs() const {
    if (start_.empty()) return 0;
    return end_.back() == kOpen ? start_.back() : end_.back();
}

/// The extremes of the nodes first..last of a level. Level 0 are the samples.
GaugeSeries::Extremes GaugeSeries::under(std::size_t level, std::size_t first, std::size_t last) const {
    Extremes all;
    while (first < last) {
        if (first % kFan == 0 && first + kFan <= last && level < levels_.size()) {
            const std::size_t whole = (last - first) / kFan;
            all.take(under(level + 1, first / kFan, first / kFan + whole));
            first += whole * kFan;
        } else {
            all.take(level == 0 ? Extremes{values_[first], values_[first]} : levels_[level - 1][first]);
            ++first;
        }
    }
    return all;
}

bool GaugeSeries::range(std::int64_t fromNs, std::int64_t toNs, float& low, float& high) const {
    auto first = std::size_t(std::upper_bound(start_.begin(), start_.end(), fromNs) - start_.begin());
    if (first > 0 && end_[first - 1] > fromNs) --first;
    const auto last = std::size_t(std::lower_bound(start_.begin(), start_.end(), toNs) - start_.begin());
    if (first >= last) return false;
    const Extremes found = under(0, first, last);
    low = found.low;
    high = found.high;
    return true;
}

double GaugeSeries::at(std::int64_t ns) const {
    const auto after = std::size_t(std::upper_bound(start_.begin(), start_.end(), ns) - start_.begin());
    if (after == 0 || ns >= end_[after - 1]) return std::nan("");
    return double(values_[after - 1]);
}

std::size_t GaugeSeries::memoryBytes() const {
    std::size_t bytes = start_.capacity() * (2 * sizeof(std::int64_t) + sizeof(float));
    for (const auto& level : levels_) bytes += level.capacity() * sizeof(Extremes);
    return bytes;
}

} // namespace kvscope
