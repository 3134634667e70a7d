// The token store: keys and values token by token, for methods with their own device tier that attend to single tokens.
// With latent attention a token is its key alone. The store lies in pinned host memory, or on the device where nothing
// is offloaded.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

class TokenStore {
public:
    /// The context must outlive this object.
    explicit TokenStore(const DeviceSelectorContext& context) : context_(context), layers_(context.config.layers) {}

    void plan(DeviceArena& arena);
    void begin();
    /// Stores a prompt; see DeviceSelector::promptDone.
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) const;

    /// The store of a layer, [tokens of all heads, 2*dim or, with latent attention, dim], as the device sees it. Heads
    /// begin at SelectorTables::tokenFirst.
    __nv_bfloat16* of(LayerId layer) const { return layers_[layer]; }
    /// Where a KV head of a sequence begins in a layer's store, in tokens.
    std::int64_t firstOf(RowId sequence, KvHeadId kvHead) const {
        return firstToken(sequence) + int(kvHead) * tokenStride(sequence);
    }
    std::int64_t tokenBytes() const;
    /// See DeviceSelector::storedBytes.
    std::int64_t storedBytes(RowId sequence) const;

private:
    std::int64_t tokenStride(RowId sequence) const;
    std::int64_t firstToken(RowId sequence) const;
    bool latent() const { return context_.shape.latentValue > 0; }
    std::size_t tokenElements() const;
    std::size_t layerElements() const;
    std::size_t bytes() const;

    const DeviceSelectorContext& context_;
    __nv_bfloat16* host_ = nullptr; // host memory: the store of all layers, where something is offloaded
    PerLayer<__nv_bfloat16*> layers_;
};

} // namespace kvscope
