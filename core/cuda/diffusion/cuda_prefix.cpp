#include "core/cuda/diffusion/cuda_prefix.h"

#include "core/cache/cache_policy.h"
#include "kernels/cuda/transfer/store_blocks.h"

namespace kvscope {

CudaPrefix::CudaPrefix(const Parts& parts, int slots, const std::string& policy)
    : p_(parts), slots_(slots), byUse_(findCachePolicy(policy).byLastUse), layers_(int(p_.layers.size())) {
    cuda::checkPrefixPages(p_.launch, p_.layout.maxBlocks, slots_);
}

void CudaPrefix::plan(DeviceArena& arena) {
    constexpr MemoryKind kMaps = "slot maps", kLists = "lists of pages to move";
    const BatchLayout& layout = p_.layout;
    const int size = layout.shape.blockSize;
    const Elements heads = layout.heads(), pages(heads, layout.maxBlocks), slots(heads, slots_),
                   blocks(layout.blocksTotal);
    arena.plan(blocks_, {blocks + Elements(int(layers_.size()), slots), layout.blockElements},
               {"kv_slots", "KV slots and the blocks of a layer", Holds::Kv});
    for (Layer& layer : layers_) {
        if (hasTails())
            arena.plan(layer.tails, {heads, layout.blockElements},
                       {"kv_tails", "KV blocks that are being written", Holds::Kv});
        cuda::PrefixSlots& of = layer.slots;
        of.count = slots_, of.byUse = byUse_;
        arena.plan(of.slotOf, pages, kMaps);
        arena.plan(of.usedAt, pages, kMaps);
        arena.plan(of.pageIn, slots, kMaps);
        arena.plan(of.filled, heads, kMaps);
        arena.plan(of.turn, heads, kMaps);
    }
    arena.plan(places_, pages, kLists);
    arena.plan(missing_, pages, kLists);
    arena.plan(freeSlots_, slots, kLists);
    arena.plan(loads_, blocks, kLists);
    arena.plan(stores_, heads * Elements((p_.block + size - 2) / size + 1), kLists);
    arena.planStore(store_, {int(layers_.size()), blocks, layout.blockElements},
                    {"kv_store", "the KV store", Holds::Kv});
}

void CudaPrefix::open() {
    void* seen = nullptr;
    cuda::check(cudaHostGetDevicePointer(&seen, store_, 0), "mapping the KV store");
    const RowsOf stores(static_cast<Bf16*>(seen), {p_.layout.blocksTotal, p_.layout.blockElements});
    for (const LayerId layer : layers_.ids()) {
        layers_[layer].store = stores[int(layer)];
        p_.layers[layer].blocks = blocks_;
    }
}

void CudaPrefix::begin() const {
    const Elements counts(int(layers_.size()), int{cuda::PrefixPagesArgs::kCounts});
    cuda::check(cudaMemsetAsync(p_.report.moved, 0, counts * sizeof(std::uint32_t), p_.launch.stream),
                "preparing a forward");
}

void CudaPrefix::restore(LayerId layer, const cuda::BlockRows& rows) const {
    if (hasTails()) cuda::restorePrefixTails(p_.launch, {rows, blocks_, layers_[layer].tails});
}

void CudaPrefix::keep(LayerId layer, const cuda::BlockRows& rows) const {
    if (hasTails()) cuda::keepPrefixTails(p_.launch, {rows, blocks_, layers_[layer].tails});
}

void CudaPrefix::load(LayerId layer, const cuda::PageUnionArgs& choice) const {
    const BatchLayout& layout = p_.layout;
    const Layer& of = layers_[layer];
    cuda::PrefixPagesArgs args;
    args.rows = choice.rows;
    args.slots = of.slots;
    args.firstSlot = layout.blocksTotal + std::int64_t(int(layer)) * slotsOfLayer();
    args.maxPages = layout.maxBlocks;
    args.pages = choice.pages;
    args.count = choice.count;
    args.united = choice.record;
    args.places = places_;
    args.hits = p_.report.hitsOf(layer);
    args.missing = missing_;
    args.freeSlots = freeSlots_;
    args.blocks = blocks_;
    args.store = of.store;
    args.moves = {loads_, stores_, p_.report.movedOf(layer), int(pageBytes() / cuda::kStoreUnit)};
    cuda::placePrefixPages(p_.launch, args);
    cuda::GatherArgs gather;
    gather.shape = layout.shape;
    gather.moves = args.moves;
    gather.store = of.store;
    gather.storeOut = of.store;
    gather.pool = blocks_;
    gather.mark = p_.report.mark(layer, DenoiseReport::kLoad);
    gather.endMark = p_.report.mark(layer, DenoiseReport::kLoaded);
    cuda::gatherBlocks(p_.launch, gather);
}

void CudaPrefix::storePrompt(LayerId layer, RowId sequence, int tokens) const {
    const BatchLayout& layout = p_.layout;
    const int pages = tokens / layout.shape.blockSize;
    const std::size_t bytes = cuda::blockBytes(layout.shape), first = layout.firstElement(sequence);
    cuda::StoreBlocksArgs args;
    args.from = blocks_ + first;
    args.to = layers_[layer].store + first;
    args.bytes = Elements(pages, bytes);
    args.fromStride = args.toStride = Elements(layout.headStride(sequence)) * sizeof(Bf16);
    args.heads = layout.kvHeads;
    cuda::storeBlocks(p_.launch, args);
    if (!hasTails() || tokens % layout.shape.blockSize == 0) return;
    Bf16* const tails = RowsOf(layers_[layer].tails, layout.blockElements)[layout.headOf(sequence)];
    cuda::check(cudaMemcpy2DAsync(tails, bytes, RowsOf(blocks_ + first, layout.blockElements)[pages], args.fromStride,
                                  bytes, Elements(layout.kvHeads), cudaMemcpyDeviceToDevice, p_.launch.stream),
                "keeping incomplete pages");
}

} // namespace kvscope
