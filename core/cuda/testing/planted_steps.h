// What benchmarks change in an engine's steps: selections with a given locality, misses without transfers, and
// sequences that share blocks of the host store.
#pragma once

#include "core/cuda/engine_changes.h"
#include "kernels/cuda/transfer/gather.h"

namespace kvscope {

struct PlantedSteps final : EngineChanges {
    float planted = -1;     // see cuda::SelectArgs
    bool moveBlocks = true; // false: the engine lists misses but moves no block; a selector with a tier of its own does
    int stored = 0;         // see storedSequences

    void change(cuda::SelectArgs& choice) const override { choice.planted.share = planted; }
    void change(cuda::GatherArgs& transfer, std::uint32_t* nobodys) const override {
        if (!moveBlocks) transfer.moves.counts = nobodys;
    }
    int storedSequences() const override { return stored; }
};

} // namespace kvscope
