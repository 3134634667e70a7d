#include "profiler/cupti/pm_tracks.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvscope {

PmTracks::PmTracks(std::vector<PmMetric> metrics, std::int64_t intervalNs)
    : metrics_(std::move(metrics)), intervalNs_(intervalNs), open_(metrics_.size()) {}

void PmTracks::give(std::size_t metric) {
    Open& open = open_[metric];
    if (open.endNs > open.startNs)
        done_.push_back({metrics_[metric].track, open.startNs, open.endNs - open.startNs, open.value});
    open = {};
}

void PmTracks::add(std::span<const PmSample> samples) {
    for (const PmSample& sample : samples) {
        if (sample.endNs <= sample.startNs || sample.startNs < lastEndNs_) {
            ++invalid_;
            continue;
        }
        if (lastEndNs_ > 0) missing_ += (sample.startNs - lastEndNs_ + intervalNs_ / 2) / intervalNs_;
        lastEndNs_ = sample.endNs;
        for (std::size_t i = 0; i < metrics_.size(); ++i) {
            const double counted = std::isfinite(sample.values[i]) ? std::max(0.0, sample.values[i]) : 0.0;
            const std::int64_t value = std::llround(counted);
            Open& open = open_[i];
            if (value == 0 && open.value == 0 && open.endNs == sample.startNs) {
                open.endNs = sample.endNs;
                continue;
            }
            give(i);
            open = {sample.startNs, sample.endNs, value};
        }
    }
}

std::vector<CounterSample> PmTracks::take(std::int64_t originNs) {
    for (std::size_t i = 0; i < metrics_.size(); ++i) give(i);
    std::vector<CounterSample> taken = std::exchange(done_, {});
    for (CounterSample& sample : taken) sample.startNs -= originNs;
    return taken;
}

} // namespace kvscope
