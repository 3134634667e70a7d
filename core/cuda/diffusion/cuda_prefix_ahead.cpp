#include "core/cuda/diffusion/cuda_prefix_ahead.h"

namespace kvscope {

void CudaPrefixAhead::plan(DeviceArena& arena) {
    constexpr MemoryKind kLists = "lists of pages to move", kForecast = "forecasts of pages";
    const BatchLayout& layout = p_.layout;
    const Elements heads = layout.heads(), pages(heads, layout.maxBlocks), slots(heads, p_.slots),
                   tokens(layout.rows, p_.block);
    cuda::PageUnionArgs sizes;
    sizes.rows.shape = layout.shape, sizes.rows.block = p_.block;
    sizes.maxPages = layout.maxBlocks;
    const Elements words(heads, sizes.wordsOf());
    for (Layer& layer : layers_) {
        arena.plan(layer.asked, words, kLists);
        arena.plan(layer.travelled, words, kLists);
        arena.plan(layer.loads, slots, kLists);
    }
    arena.plan(q_, {tokens, layout.shape.queryHeads, layout.dim}, kForecast);
    arena.plan(scores_, {heads, sizes.rows.queries(), sizes.scoreStride()}, kForecast);
    arena.plan(words_, words, kForecast);
    arena.plan(arrivals_, heads, kForecast);
    arena.plan(foreseen_, words, kForecast);
    arena.plan(pages_, pages, kForecast);
    arena.plan(count_, heads, kForecast);
    arena.plan(missing_, pages, kForecast);
    arena.plan(freeSlots_, slots, kForecast);
    arena.plan(lastIds_, tokens, kForecast);
    arena.plan(asking_, heads, kForecast);
}

void CudaPrefixAhead::open() {
    begins_ = cuda::Event::make();
    for (Layer& layer : layers_) layer.foreseen = cuda::Event::make(), layer.loaded = cuda::Event::make();
    forecasts_ = cuda::Stream::make();
    transfers_ = cuda::Stream::make(cuda::StreamKind::Urgent);
}

cuda::Launch CudaPrefixAhead::on(const cuda::Stream& stream) const {
    cuda::Launch how = p_.launch;
    how.stream = stream.get();
    how.joined = true;
    return how;
}

cuda::Launch CudaPrefixAhead::join(const cuda::Event& event) const {
    cuda::check(cudaStreamWaitEvent(p_.launch.stream, event.get()), "waiting for pages");
    cuda::Launch how = p_.launch;
    how.joined = true;
    return how;
}

cuda::Launch CudaPrefixAhead::joinPages(LayerId layer) const {
    cuda::stampNow(p_.launch, p_.report.mark(layer, DenoiseReport::kReady));
    return join(layers_[layer].loaded);
}

cuda::PrefixAhead CudaPrefixAhead::aheadOf(LayerId layer) const {
    return {layers_[layer].asked, layers_[layer].travelled, p_.report.cameOf(layer)};
}

void CudaPrefixAhead::ask(const cuda::BlockRow* table, const std::int32_t* ids,
                          const std::function<cuda::PrefixPagesArgs(LayerId)>& pagesOf) const {
    cuda::check(cudaEventRecord(begins_.get(), p_.launch.stream), "asking for pages");
    cuda::check(cudaStreamWaitEvent(forecasts_.get(), begins_.get()), "asking for pages");
    const cuda::BlockRows rows{p_.layout.shape, p_.layout.rows, p_.block, table, nullptr, p_.rows.blockFirst};
    cuda::nameAsking(on(forecasts_), {rows, ids, lastIds_, asking_});
    for (const LayerId layer : layers_.ids()) {
        cuda::PrefixPagesArgs pages = pagesOf(layer);
        pages.rows = rows;
        pages.missing = missing_, pages.freeSlots = freeSlots_;
        pages.moves.loads = layers_[layer].loads;
        pages.moves.counts += cuda::PrefixPagesArgs::kAsked;
        pages.ahead = aheadOf(layer);
        p_.stages.at(layer, Stage::Offloading);
        foresee(layer, pages);
        cuda::check(cudaEventRecord(layers_[layer].foreseen.get(), forecasts_.get()), "asking for pages");
        cuda::check(cudaStreamWaitEvent(transfers_.get(), layers_[layer].foreseen.get()), "asking for pages");
        load(layer, pages);
        cuda::check(cudaEventRecord(layers_[layer].loaded.get(), transfers_.get()), "asking for pages");
    }
}

/// Gives slots to the pages that a layer will probably attend to.
void CudaPrefixAhead::foresee(LayerId layer, const cuda::PrefixPagesArgs& pages) const {
    const cuda::Launch how = on(forecasts_);
    cuda::roundQueries(how, pages.rows, p_.layers[layer].before, q_);
    cuda::PageUnionArgs choice;
    choice.rows = pages.rows;
    choice.rows.active = asking_;
    choice.q = q_;
    choice.ranges = p_.layers[layer].ranges;
    choice.maxPages = pages.maxPages;
    choice.pagesPerQuery = p_.pagesPerQuery;
    choice.always = p_.report.agnosticOf(layer);
    choice.scores = scores_;
    choice.words = words_;
    choice.arrivals = arrivals_;
    choice.pages = pages_;
    choice.count = count_;
    choice.record = foreseen_;
    cuda::scoreUnionPages(how, choice);
    cuda::unitePages(how, choice);
    cuda::askPrefixPages(how, {pages, foreseen_, p_.report.pagesOf(layer)});
}

void CudaPrefixAhead::load(LayerId layer, const cuda::PrefixPagesArgs& pages) const {
    constexpr int kBlocks = 4; // as few as keep the link busy
    cuda::GatherArgs gather;
    gather.shape = p_.layout.shape;
    gather.moves = pages.moves;
    gather.store = pages.store;
    gather.pool = const_cast<__nv_bfloat16*>(RowsOf(pages.blocks, p_.layout.blockElements)[pages.firstSlot]);
    gather.part = cuda::GatherArgs::Part::Loads;
    gather.beside = true;
    gather.mark = p_.report.mark(layer, DenoiseReport::kSent);
    gather.endMark = p_.report.mark(layer, DenoiseReport::kCame);
    gather.ready = p_.report.mark(layer, DenoiseReport::kReady);
    gather.begin = p_.report.stepMarks + DenoiseReport::kEmbed;
    gather.late = p_.report.lateOf(layer);
    gather.slots = p_.slots;
    cuda::gatherBlocks(on(transfers_), gather, kBlocks);
}

} // namespace kvscope
