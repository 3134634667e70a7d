// One transfer kernel for a whole step, in place of one launch per layer: it waits in device memory for each layer's
// list, and the layer's attention waits there for its blocks.
#pragma once

#include "kernels/cuda/select.h"

namespace kvscope::cuda {

/// Words that only grow, so that nothing is cleared: how often a layer's list was there, [layers + 1], and its loads
/// done, [layers] counted by those who drive copies.
struct TransferFlags {
    std::uint32_t *listed = nullptr, *loaded = nullptr;
};

/// Layers [first, layers) of the step: loads of each, once it is listed, and the write-backs of the layer before, whose
/// token is there by then. listed[layers] comes after the last layer's token.
struct TransferLoopArgs {
    const GatherArgs* gathers = nullptr; // [layers] device memory
    int first = 0, layers = 0, blockSize = 0, dim = 0;
    std::uint32_t step = 0; // how many steps there were, with this one
    TransferFlags flags;
};
/// To be tried out before anything else: loading a kernel may wait for the loop, which waits for the kernel.
/// `blocks` thread blocks, which must find room beside all that runs meanwhile. Compute capability 9.
void runTransferLoop(const Launch& launch, const TransferLoopArgs& args, int blocks);

/// Between two kernels of the step: says that the list of layer `listed` is there, then waits until the loop's `blocks`
/// have loaded those of `awaited`. -1: neither.
void handOver(const Launch& launch, const TransferFlags& flags, int listed, int awaited, int blocks,
              std::uint64_t* readyMark);

} // namespace kvscope::cuda
