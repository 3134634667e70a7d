#include "core/cuda/select/token_store.h"

#include "kernels/cuda/methods/token_pack.h"

namespace kvscope {

std::size_t TokenStore::tokenElements() const {
    return latent() ? Elements(context_.shape.dim) : Elements(cuda::tokenElements(context_.shape.dim));
}

std::int64_t TokenStore::tokenBytes() const { return std::int64_t(tokenElements() * sizeof(__nv_bfloat16)); }

std::int64_t TokenStore::storedBytes(RowId sequence) const {
    const auto tokens = std::int64_t(context_.promptTokens[sequence]);
    return context_.offload ? tokens * context_.shape.kvHeads * tokenBytes() : 0;
}

std::int64_t TokenStore::tokenStride(RowId sequence) const {
    return std::int64_t(context_.spec.grid.blocks(context_.maxTokens[sequence])) * context_.shape.blockSize;
}

std::int64_t TokenStore::firstToken(RowId sequence) const {
    std::int64_t first = 0;
    for (const RowId s : idsUpTo<RowId>(int(sequence))) first += tokenStride(s) * context_.shape.kvHeads;
    return first;
}

std::size_t TokenStore::layerElements() const { return Elements(firstToken(RowId{context_.rows()}), tokenElements()); }

std::size_t TokenStore::bytes() const {
    std::size_t own = 0;
    for (const DeviceLayerState& layer : context_.layers) own += layer.ownTier ? 1 : 0;
    return own * layerElements() * sizeof(__nv_bfloat16);
}

void TokenStore::plan(DeviceArena& arena) {
    constexpr const char* kKey = "token_store";
    if (context_.offload)
        return arena.planStore(host_, bytes() / sizeof(__nv_bfloat16), {kKey, "the KV store", Holds::Kv},
                               context_.store);
    for (const LayerId i : layers_.ids())
        if (context_.layers[i].ownTier) arena.plan(layers_[i], layerElements(), {kKey, "resident KV cache", Holds::Kv});
}

void TokenStore::begin() {
    if (!context_.offload) return;
    void* seen = nullptr;
    cuda::check(cudaHostGetDevicePointer(&seen, host_, 0), "mapping the KV store");
    auto* next = static_cast<__nv_bfloat16*>(seen);
    for (const LayerId i : layers_.ids())
        if (context_.layers[i].ownTier) layers_[i] = next, next += layerElements();
}

void TokenStore::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                            std::int64_t headStride) const {
    __nv_bfloat16* const store = RowsOf(of(layer), tokenElements())[firstToken(sequence)];
    if (latent()) { // the blocks of the one KV head hold token behind token
        const std::size_t bytes = Elements(tokens, tokenElements()) * sizeof(__nv_bfloat16);
        return cuda::check(cudaMemcpyAsync(store, blocks, bytes, cudaMemcpyDefault, context_.launch.stream),
                           "storing a prompt");
    }
    cuda::UnpackArgs unpack;
    unpack.shape = context_.shape;
    unpack.tokens = tokens;
    unpack.blocks = blocks;
    unpack.headStride = headStride;
    unpack.store = store;
    unpack.storeStride = tokenStride(sequence);
    cuda::unpackPrompt(context_.launch, unpack);
}

} // namespace kvscope
