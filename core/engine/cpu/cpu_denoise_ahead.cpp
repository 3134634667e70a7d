// Asks for LoSA's pages a step ahead, where the prefix waits on the host. Between two forwards of a block it is known
// which tokens were just written, and the queries of these tokens change most.
#include "base/indexed.h"
#include "core/engine/cpu/cpu_denoise_stages.h"

#include "core/diffusion/locality.h"

#include <algorithm>

namespace kvscope {

/// Asks for pages of every layer before the forward begins. They travel in the order of the layers while those compute.
/// No stage has this time: it counts as "other".
void CpuDenoiseStages::askAhead() {
    ahead_.asking.assign(forward_.rows.size(), 0);
    for (int row = 0; row < rowCount(); ++row) {
        const std::span<const std::int32_t> ids = rowAt(row).ids;
        std::vector<std::int32_t>& last = ahead_.lastIds[index(rowAt(row).sequence)];
        std::uint64_t& asking = ahead_.asking[std::size_t(row)];
        if (rowAt(row).step == 1) asking = allTokens(options_.block);
        for (std::size_t i = 0; rowAt(row).step > 1 && i < ids.size(); ++i)
            asking |= std::uint64_t(ids[i] != last[i]) << i;
        last.assign(ids.begin(), ids.end());
    }
    for (const LayerId layer : idsUpTo<LayerId>(config_.layers)) {
        forecast(layer);
        transfers_->sendAhead(layer);
    }
    clock_.skip();
}

/// Asks for the pages to which each KV head of a layer will probably attend: the pages to which it attended in the
/// forward before, and the pages that the written tokens would choose by their queries of that forward. In a block's
/// second forward no pages have been chosen before and any token may be active, so the queries of all tokens are taken.
void CpuDenoiseStages::forecast(LayerId layer) {
    bounds_.clear();
    const auto asks = [&](int row) { return isSparse(rowAt(row)) && rowAt(row).step > 0; };
    for (int row = 0; row < rowCount(); ++row)
        for (const KvHeadId g : kvHeads()) {
            const RowId sequence = rowAt(row).sequence;
            for (int token = 0; asks(row) && token < options_.block; ++token)
                for (int h = 0; h < config_.group() && (ahead_.asking[std::size_t(row)] >> token & 1) != 0; ++h)
                    bounds_.add(memory(layer, sequence).queries.data() + at_.query.first(token, g, h),
                                cache_.head(sequence, layer, g).index.ranges(), rowAt(row).first / options_.page);
            bounds_.endHead();
        }
    bounds_.score();
    Numbered<std::uint8_t> chosen;
    std::vector<std::int32_t> pages;
    for (int row = 0; row < rowCount(); ++row)
        for (const KvHeadId g : kvHeads()) {
            if (!asks(row)) continue;
            const RowId sequence = rowAt(row).sequence;
            const auto complete = std::size_t(rowAt(row).first / options_.page);
            const KvHead& head = cache_.head(sequence, layer, g);
            chosen.assign(complete, 0);
            choosePagesOf(layer, row, g, chosen);
            if (head.hasPrevious)
                for (const std::int32_t page : head.previous)
                    if (std::size_t(page) < complete) chosen[page] = 1;
            pages.clear();
            for (std::size_t page = 0; page < complete; ++page)
                if (chosen[page] != 0) pages.push_back(std::int32_t(page));
            transfers_->askAhead(layer, sequence, g, pages, forward_.record->step);
        }
}

} // namespace kvscope
