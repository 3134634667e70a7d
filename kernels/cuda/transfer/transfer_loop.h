// Methods that choose a layer ahead (SparDA, NOSA and InfLLM-V2 with ahead=forecast, InfiniGen, ArkVale with
// prefetch_layers=1): one transfer kernel for a whole step, in place of one launch for each layer. The kernel waits
// until a layer's list of loads is there, and a kernel before the layer's attention waits until the loads are done.
// Both waits read words in device memory.
#pragma once

#include "kernels/cuda/transfer/gather.h"

namespace kvscope::cuda {

/// Counters that are never cleared. listed [layers + 1]: in how many steps a layer's list was there. loaded [layers]:
/// every thread that drives a ring adds 1 when its share of the layer's loads is done.
struct TransferFlags {
    std::uint32_t *listed = nullptr, *loaded = nullptr;
};

/// For each of the layers [first, layers) the loop waits until the layer is listed, does its loads, and then the
/// write-backs of the layer before, whose token is in its block by then. listed[layers] says that the last layer's
/// token is in its block.
/// A thread that has asked for all of its pieces of a layer asks for pieces of the next layer, if that is listed, while
/// the last ones of this layer are under way: the link idles at no layer's end.
struct TransferLoopArgs {
    const GatherArgs* gathers = nullptr; // [layers] device memory
    int first = 0, layers = 0;
    int blockBytes = 0;     // of all layers
    bool writesBack = true; // false: another kernel makes the write-backs, and reports them
    std::uint32_t step = 0; // the number of this step, counted from 1: listed of this step's layers reaches it
    TransferFlags flags;
};
/// Starts the loop with `blocks` thread blocks, which must find room beside every kernel of the step. The first step
/// must have run once without the loop: CUDA may load a kernel at its first launch and wait for running kernels to end,
/// while the loop waits for that launch. Needs compute capability 9.
void runTransferLoop(const Launch& launch, const TransferLoopArgs& args, int blocks);

/// Whether a kernel on `one` stream sees what a kernel on the `other`, launched after it, writes. It does not where a
/// tool runs kernels one at a time. Waits for both, at most 20 ms. Uses the first words of the flags and clears them.
bool kernelsRunTogether(const Launch& one, const Launch& other, const TransferFlags& flags);

/// A kernel between two others of the step: says that the list of layer `listed` is there, then waits until the loop
/// with `blocks` thread blocks has done the loads of layer `awaited`. -1: no such layer. loopRuns: an earlier kernel of
/// the step has awaited a layer, so that all of the loop's thread blocks have found room; then the next kernel may take
/// its own while this one waits.
void handOver(const Launch& launch, const TransferFlags& flags, int listed, int awaited, int blocks, bool loopRuns,
              std::uint64_t* readyMark);

} // namespace kvscope::cuda
