#include "core/serve/serves.h"

#include "core/select/overlap.h"

#include <fmt/format.h>

namespace kvscope::serve {
namespace {

constexpr int kGpuPiece = 2048, kLeastGpuChunk = 512; // tokens of a prompt that a GPU projects together

Error refusal(const char* what, const char* mend) {
    return {ErrorKind::Unsupported, fmt::format("the CUDA backend does not serve {}", what), mend};
}

std::optional<Error> whyNotInChunks(const MethodEntry& method, const MethodUse& use, int chunkTokens) {
    if (method.hasSelector(use.values) && method.readsWholePrompts)
        return Error(ErrorKind::Unsupported,
                     fmt::format("method {} works through prompts layer by layer on a GPU, and cannot read them in "
                                 "chunks",
                                 method.name),
                     "use prefill=layers, or another method");
    if (chunkTokens < kGpuPiece && (chunkTokens < kLeastGpuChunk || kGpuPiece % chunkTokens != 0))
        return Error(ErrorKind::BadInput, fmt::format("chunk_tokens {} does not suit the CUDA backend", chunkTokens),
                     "use chunk_tokens=512, 1024, or a multiple of 2048");
    return {};
}

} // namespace

std::string whyNotServed(const MethodEntry& method, Backend backend) {
    if (!method.decodesTokens) return "it denoises blocks of tokens, and requests are decoded token by token";
    if (backend == Backend::Cuda && !method.runsOnCuda()) return "it has no kernels for GPUs";
    return {};
}

std::optional<Error> whyNotWithKnobs(const MethodEntry& method, const MethodUse& use, const SchedulerOptions& knobs) {
    if (select::overlapsHalves(use.values))
        return Error(ErrorKind::Unsupported,
                     "overlap=halves is for the sequences of one run: rows of a server come and go, and make no halves",
                     "use overlap=none");
    if (use.backend != Backend::Cuda) {
        if (knobs.d2h == StorePlan::Runs) return {};
        return Error(ErrorKind::Unsupported,
                     "on the CPU the blocks of prompts are written where they lie, and nothing copies them",
                     "use d2h=runs, or --backend cuda");
    }
    if (knobs.prefill == PrefillPlan::Chunks)
        if (std::optional<Error> why = whyNotInChunks(method, use, knobs.chunkTokens)) return why;
    if (knobs.parking != Parking::Device)
        return refusal("with activations of prompts parked anywhere but on the device", "use parking=device");
    if (!knobs.offload) return {};
    // Whether the method moves blocks by kernels of its own, or loads them while a layer computes.
    const bool movesItself = use.spec.ownDeviceTier || abilitiesOf(method, use).looksAhead();
    if (knobs.cache == CachePlan::GlobalLru && knobs.batchInvariant)
        return refusal("rows that multiply by themselves with one pool of slots",
                       "use cache=partition, or batch_invariant=false");
    if (knobs.cache == CachePlan::GlobalLru && movesItself)
        return Error(ErrorKind::Unsupported,
                     fmt::format("method {} loads its blocks while a layer computes, before all rows have chosen, so "
                                 "that rows cannot share a pool of slots",
                                 method.name),
                     "use cache=partition, or another method");
    if (knobs.transfers != TransferPlan::Kernel && movesItself)
        return Error(ErrorKind::Unsupported,
                     fmt::format("method {} moves its blocks by kernels of its own, or while a layer computes, which "
                                 "copy calls cannot",
                                 method.name),
                     "use transfers=kernel, or another method");
    return {};
}

} // namespace kvscope::serve
