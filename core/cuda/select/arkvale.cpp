#include "core/cuda/device_copy.h"
#include "core/cuda/select/first_slots.h"
#include "core/cuda/select/guessed_queries.h"
#include "core/cuda/select/scored_pages.h"

#include "core/select/arkvale_budget.h"

#include <algorithm>

namespace kvscope {
namespace {

class DeviceArkVale final : public DeviceSelector {
public:
    DeviceArkVale(const ParameterValues& values, const DeviceSelectorContext& context)
        : context_(context), budget_(values), shared_(values.text("groups") == "layer" ? context.shape.kvHeads : 1),
          ahead_(values.integer("prefetch_layers") > 0),
          pages_(context_, values.text("digest") != "bounds", shared_, cuda::PageScore::Mean), guess_(context_),
          resident_(context.config.layers) {}

    void plan(DeviceArena& arena) override;
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;
    void append(const DeviceStep& step) override { pages_.append(step); }
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override {
        pages_.score(step);
        choosePages(step, step.layer, args);
    }
    void lookAhead(const DeviceStep& step, LayerId target, cuda::SelectArgs& args) override {
        pages_.scoreAhead(step, target, guess_.make(step, target));
        choosePages(step, target, args);
    }

private:
    cuda::PageChoiceArgs choiceOf(LayerId layer, RowId firstRow) const;
    void choosePages(const DeviceStep& step, LayerId layer, cuda::SelectArgs& args) const;

    const DeviceSelectorContext context_;
    const select::PageBudget budget_;
    const int shared_; // number of KV heads that share a page set
    const bool ahead_; // a layer's pages are chosen in the layer before it
    ScoredPages pages_;
    GuessedQueries guess_;
    PerLayer<std::uint8_t*> resident_;   // each [rows, page sets, maxBlocks]
    __nv_bfloat16* lastQuery_ = nullptr; // [queryHeads*dim] of the prompt that is being read
    float* chosenScores_ = nullptr;
    PackedBlock* chosen_ = nullptr;
    std::int32_t* chosenCount_ = nullptr;
};

void DeviceArkVale::plan(DeviceArena& arena) {
    const int heads = context_.heads();
    const Elements lists(context_.rows(), pages_.sets(), context_.maxBlocks);
    pages_.plan(arena);
    if (ahead_) guess_.plan(arena, "activations");
    for (const LayerId i : resident_.ids())
        if (context_.layers[i].sparse)
            arena.plan(resident_[i], lists, {"resident_pages", "resident pages", Holds::Index});
    arena.plan(lastQuery_, {context_.shape.queryHeads, context_.shape.dim}, "activations");
    arena.plan(chosen_, {heads, context_.capacity}, "selections");
    arena.plan(chosenScores_, {heads, context_.capacity}, "selections");
    arena.plan(chosenCount_, heads, "selections");
}

void DeviceArkVale::prompt(const DevicePromptPiece& piece) {
    if (piece.first + piece.n < piece.promptTokens) return;
    const RowsOf queries(piece.q, context_.queryWidth());
    copyOnStream(lastQuery_, queries[piece.n - 1], queries.width(), cudaMemcpyDeviceToDevice, context_.launch.stream,
                 "keeping the last query");
}

cuda::PageChoiceArgs DeviceArkVale::choiceOf(LayerId layer, RowId firstRow) const {
    cuda::PageChoiceArgs args;
    args.kvHeads = context_.shape.kvHeads;
    args.shared = shared_;
    args.maxPages = context_.maxBlocks;
    args.pageTokens = context_.shape.blockSize;
    args.scores = pages_.scores();
    args.sink = budget_.sink;
    args.window = budget_.window;
    args.dynamic = budget_.dynamic;
    args.budget = budget_.resident;
    args.resident = RowsOf(resident_[layer], {pages_.sets(), context_.maxBlocks})[int(firstRow)];
    args.capacity = context_.capacity;
    args.chosen = chosen_;
    args.chosenCount = chosenCount_;
    args.chosenScores = chosenScores_;
    return args;
}

/// Makes the digests of the prompt's pages and fills the device tier with as many pages as the budget allows: those
/// that score best for the query of the last prompt token.
void DeviceArkVale::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                               std::int64_t headStride) {
    const DeviceLayerState& state = context_.layers[layer];
    if (!state.sparse) return;
    pages_.promptDone(layer, sequence, tokens, blocks, headStride);
    pages_.scoreAt(layer, sequence, tokens - 1, lastQuery_);
    cuda::PageChoiceArgs choice = choiceOf(layer, sequence);
    choice.rows = 1;
    choice.at = tokens - 1;
    const int pages = context_.spec.grid.blocks(tokens);
    const RowsOf residentOf(choice.resident, context_.maxBlocks);
    // At first all pages of the prompt count as resident; the choice then leaves only the best ones.
    for (int set = 0; set < pages_.sets(); ++set)
        cuda::check(cudaMemsetAsync(residentOf[set], 1, Elements(pages), context_.launch.stream),
                    "choosing the first pages");
    cuda::choosePages(context_.launch, choice);
    if (state.offloaded) fillFirstSlots(context_, layer, sequence, tokens, blocks, headStride, chosen_, chosenCount_);
}

void DeviceArkVale::choosePages(const DeviceStep& step, LayerId layer, cuda::SelectArgs& args) const {
    cuda::PageChoiceArgs choice = choiceOf(layer, RowId{0});
    choice.rows = context_.rows();
    choice.position = step.position;
    choice.active = step.active;
    choice.mark = step.poolingMark;
    cuda::choosePages(context_.launch, choice);
    args.chosen = {chosen_, chosenCount_, chosenScores_};
}

} // namespace

std::unique_ptr<DeviceSelector> arkvaleOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<DeviceArkVale>(values, context);
}

} // namespace kvscope
