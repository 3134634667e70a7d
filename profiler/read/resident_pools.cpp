#include "profiler/read/resident_pools.h"

#include "profiler/format/trace_keys.h"

#include <algorithm>

namespace kvscope {

namespace {
constexpr std::int64_t kWorthASeek = 8; // selections that take as long to read as finding a place in the file
}

void ResidentPools::select(std::int64_t pool, std::int64_t misses, bool opensBlock) {
    const auto number = std::size_t(pool >> 20 & 1023), sequence = std::size_t(pool >> 10 & 1023),
               head = std::size_t(pool & 1023);
    if (layers_.size() <= number) layers_.resize(number + 1);
    Layer& layer = layers_[number];
    if (layer.held.size() <= sequence) layer.held.resize(sequence + 1);
    std::vector<std::int32_t>& heads = layer.held[sequence];
    if (heads.size() <= head) heads.resize(head + 1, -1);
    std::int32_t& held = heads[head];
    const bool isNew = held < 0;
    // A first selection that opens a block counts that one; else the prompt's last block was there already.
    const std::int64_t before = isNew ? 0 : held, begun = isNew && !opensBlock ? 1 : before;
    held = std::int32_t(std::clamp<std::int64_t>(begun + misses + (opensBlock ? 1 : 0), 0, slots_));
    blocks_ += held - before;
    const bool filled = held == slots_ && (isNew || before < slots_);
    if (!isNew && !filled) return;
    pools_ += isNew;
    layer.seen += isNew;
    layer.full += filled;
    // The run has more pools than it says, so the number that it says is not used any more.
    if (layer.seen > perLayer_) perLayer_ = 0;
    stale_ = true;
}

ResidentPools::State ResidentPools::stateOf(int layer) const {
    if (perLayer_ < kWorthASeek || std::size_t(layer) >= layers_.size()) return State::Unknown;
    const Layer& pools = layers_[layer];
    if (pools.seen < perLayer_) return State::Unknown;
    return pools.full == pools.seen ? State::Full : State::Known;
}

const std::vector<ResidentPools::Layers>& ResidentPools::changing() {
    if (!stale_) return changing_;
    stale_ = false;
    changing_.clear();
    for (int layer = 0; layer < int(layers_.size()); ++layer) {
        const State state = stateOf(layer);
        if (state == State::Full) continue;
        const bool all = state == State::Unknown;
        if (!changing_.empty() && changing_.back().last + 1 == layer && changing_.back().all == all)
            changing_.back().last = layer;
        else
            changing_.push_back({layer, layer, all});
    }
    // Layers behind the last one may begin to select.
    if (!changing_.empty() && changing_.back().all && changing_.back().last + 1 == int(layers_.size()))
        changing_.back().last = trace::kMaxLayers - 1;
    else
        changing_.push_back({int(layers_.size()), trace::kMaxLayers - 1, true});
    return changing_;
}

} // namespace kvscope
