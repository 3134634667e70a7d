// The modelled link, for which transfers queue. Modelled time is the engine's clock plus all stalls modelled so far.
#pragma once

#include "core/transfer/link.h"

#include <algorithm>
#include <cstdint>

namespace kvscope {

class LinkTimeline {
public:
    explicit LinkTimeline(const Link& link) : link_(link) {}

    struct Transfer {
        std::int64_t startNs = 0, doneNs = 0, bytes = 0;
    };

    const Link& link() const { return link_; }
    /// The modelled time at which the engine's clock, which does not stall, says `wallNs`.
    std::int64_t modelled(std::int64_t wallNs) const { return wallNs + stalledNs_; }

    /// Queues a transfer that may begin at `readyNs` (modelled time) and begins when the link is free.
    Transfer start(std::int64_t readyNs, std::int64_t bytes) {
        if (bytes == 0) return {readyNs, readyNs, 0};
        const std::int64_t begin = std::max(readyNs, busyUntilNs_);
        busyUntilNs_ = begin + link_.transferNs(bytes);
        return {begin, busyUntilNs_, bytes};
    }
    /// The engine waits from `nowNs` (modelled) until `doneNs`. @return the exposed time
    std::int64_t wait(std::int64_t nowNs, std::int64_t doneNs) {
        const std::int64_t exposed = std::max<std::int64_t>(0, doneNs - nowNs);
        stalledNs_ += exposed;
        return exposed;
    }
    /// The bytes of `transfer` that have not arrived at `nowNs` (modelled). Bytes arrive evenly after the latency.
    std::int64_t missingBytes(const Transfer& transfer, std::int64_t nowNs) const {
        if (transfer.bytes == 0 || nowNs >= transfer.doneNs) return 0;
        const double left = double(transfer.doneNs - nowNs) * link_.gigabytesPerSecond;
        return std::min(transfer.bytes, std::int64_t(left + 0.5));
    }

private:
    Link link_;
    std::int64_t busyUntilNs_ = 0, stalledNs_ = 0;
};

} // namespace kvscope
