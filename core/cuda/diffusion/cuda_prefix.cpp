#include "core/cuda/diffusion/cuda_prefix.h"

#include "core/cache/cache_policy.h"
#include "kernels/cuda/transfer/store_blocks.h"

namespace kvscope {

CudaPrefix::CudaPrefix(const Parts& parts, int slots, const std::string& policy)
    : p_(parts), slots_(slots), byUse_(findCachePolicy(policy).byLastUse),
      ahead_(p_.options.fetchAhead ? std::make_unique<CudaPrefixAhead>(CudaPrefixAhead::Parts{
                                         p_.layout, p_.launch, p_.stages, p_.report, p_.rows, p_.layers,
                                         p_.options.block, p_.options.pagesPerQuery, slots})
                                   : nullptr),
      layers_(int(p_.layers.size())) {
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
    arena.plan(stores_, heads * Elements((p_.options.block + size - 2) / size + 1), kLists);
    arena.planStore(store_, {int(layers_.size()), blocks, layout.blockElements},
                    {"kv_store", "the KV store", Holds::Kv});
    if (ahead_) ahead_->plan(arena);
}

void CudaPrefix::open() {
    void* seen = nullptr;
    cuda::check(cudaHostGetDevicePointer(&seen, store_, 0), "mapping the KV store");
    const RowsOf stores(static_cast<Bf16*>(seen), {p_.layout.blocksTotal, p_.layout.blockElements});
    for (const LayerId layer : layers_.ids()) {
        layers_[layer].store = stores[int(layer)];
        p_.layers[layer].blocks = blocks_;
    }
    if (ahead_) ahead_->open();
}

void CudaPrefix::begin() const {
    const auto clear = [&](void* at, std::size_t bytes) {
        cuda::check(cudaMemsetAsync(at, 0, bytes, p_.launch.stream), "preparing a forward");
    };
    const Elements layers(int(layers_.size()));
    clear(p_.report.moved, Elements(layers, int{cuda::PrefixPagesArgs::kCounts}) * sizeof(std::uint32_t));
    if (ahead_) clear(p_.report.late, Elements(layers, p_.layout.heads()) * sizeof(cuda::SelectionHead));
}

void CudaPrefix::askAhead(const cuda::BlockRow* table, const std::int32_t* ids) const {
    if (ahead_) ahead_->ask(table, ids, [&](LayerId layer) { return argsOf(layer); });
}

cuda::Launch CudaPrefix::restore(LayerId layer, const cuda::BlockRows& rows) const {
    const cuda::Launch how = ahead_ ? ahead_->joinForecast(layer) : p_.launch;
    if (!hasTails()) return how;
    cuda::restorePrefixTails(how, {rows, blocks_, layers_[layer].tails});
    return p_.launch;
}

void CudaPrefix::keep(LayerId layer, const cuda::BlockRows& rows) const {
    if (hasTails()) cuda::keepPrefixTails(p_.launch, {rows, blocks_, layers_[layer].tails});
}

/// What all that gives slots in a layer is told.
cuda::PrefixPagesArgs CudaPrefix::argsOf(LayerId layer) const {
    const Layer& of = layers_[layer];
    cuda::PrefixPagesArgs args;
    args.slots = of.slots;
    args.firstSlot = p_.layout.blocksTotal + std::int64_t(int(layer)) * slotsOfLayer();
    args.maxPages = p_.layout.maxBlocks;
    args.blocks = blocks_;
    args.store = of.store;
    args.moves = {loads_, stores_, p_.report.movedOf(layer), int(pageBytes() / cuda::kStoreUnit)};
    return args;
}

void CudaPrefix::load(LayerId layer, const cuda::PageUnionArgs& choice) const {
    cuda::PrefixPagesArgs args = argsOf(layer);
    args.rows = choice.rows;
    args.pages = choice.pages;
    args.count = choice.count;
    args.united = choice.record;
    args.places = places_;
    args.hits = p_.report.hitsOf(layer);
    args.missing = missing_;
    args.freeSlots = freeSlots_;
    if (ahead_) args.ahead = ahead_->aheadOf(layer);
    cuda::placePrefixPages(ahead_ ? ahead_->joinPages(layer) : p_.launch, args);
    cuda::GatherArgs gather;
    gather.shape = p_.layout.shape;
    gather.moves = args.moves;
    gather.store = args.store;
    gather.storeOut = layers_[layer].store;
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
