// Executes a SelectionSpec with the shared primitives: block index, scores, pooling, two-phase top-k.
#include "core/select/selector.h"

#include <algorithm>

namespace kvscope {
namespace {

class SpecSelector final : public Selector {
public:
    explicit SpecSelector(const SelectorContext& context)
        : kernels_(context.kernels), spec_(context.spec), rules_(context.rules), dim_(context.shape.dim),
          group_(context.group()) {}

    void append(std::span<HeadStep> heads) override;
    void score(std::span<HeadStep> heads) override;
    void choose(std::span<HeadStep> heads) override;

private:
    void chooseOne(HeadStep& item) const;

    Kernels& kernels_;
    const SelectionSpec& spec_;
    const AttentionRules& rules_;
    const int dim_, group_;
    std::vector<GroupScoreItem> groupItems_;
    std::vector<RangeBoundItem> rangeItems_;
};

void SpecSelector::append(std::span<HeadStep> heads) {
    forEachItem(kernels_, heads, [&](HeadStep& item) { item.head->index.append(item.rows.key, item.rows.score); });
}

void SpecSelector::score(std::span<HeadStep> heads) {
    groupItems_.clear();
    rangeItems_.clear();
    for (HeadStep& item : heads) {
        if (item.dense) continue;
        if (spec_.queryScore == QueryScore::PooledSoftmax) {
            const int windows = spec_.grid.windows(item.position + 1);
            const int hidden = item.firstToken - spec_.grid.kernel + 1; // windows that end before the first token
            const int first = hidden > 0 ? (hidden + spec_.grid.stride - 1) / spec_.grid.stride : 0;
            item.windowScores.resize(windows);
            groupItems_.push_back(
                {item.rows.q, item.head->index.tiles(), windows, item.windowScores.data(), std::min(first, windows)});
        } else if (spec_.queryScore == QueryScore::RangeBound) {
            const int blocks = item.position / spec_.blockSize + 1;
            item.queryAware.resize(blocks);
            rangeItems_.push_back({item.rows.q, item.head->index.rangesFrom(BlockId{item.firstBlock}),
                                   blocks - item.firstBlock, item.queryAware.data() + item.firstBlock});
        }
    }
    if (!groupItems_.empty())
        kernels_.groupScores({group_, dim_, BlockIndex::kTileWindows, dim_, rules_.scale, groupItems_});
    if (!rangeItems_.empty()) kernels_.rangeBound({group_, dim_, dim_, spec_.rangeReduce, rangeItems_});
}

void SpecSelector::choose(std::span<HeadStep> heads) {
    forEachItem(kernels_, heads, [&](HeadStep& item) {
        if (!item.dense) chooseOne(item);
    });
}

void SpecSelector::chooseOne(HeadStep& item) const {
    const int current = item.position / spec_.blockSize;
    const int blocks = current + 1;
    if (spec_.queryScore == QueryScore::PooledSoftmax) {
        item.queryAware.resize(blocks);
        poolToBlocks(spec_.grid, item.windowScores, item.queryAware);
    }
    if (spec_.agnosticScore != AgnosticScore::None) {
        item.queryAgnostic.resize(blocks);
        const int windows = spec_.grid.windows(item.position + 1);
        poolToBlocks(spec_.grid, item.head->index.pooledScores().first(windows), item.queryAgnostic);
    }
    chooseBlocks(spec_, item);
}

} // namespace

void chooseBlocks(const SelectionSpec& spec, HeadStep& item) {
    // selectBlocks counts from the first visible block, so its results are moved on by item.firstBlock at the end.
    SelectionBudget budget = spec.budget;
    if (item.firstBlock > 0) { // the sink has left the window: its share goes to the method's choice
        if (!item.queryAware.empty())
            budget.queryAware += budget.sink;
        else if (!item.queryAgnostic.empty())
            budget.queryAgnostic += budget.sink;
        budget.sink = 0;
    }
    const auto visible = [&](const std::vector<float>& scores) {
        return NumberedSpan<const float>(scores).from(scores.empty() ? 0 : item.firstBlock);
    };
    selectBlocks(budget, item.position / spec.blockSize - item.firstBlock, visible(item.queryAware),
                 visible(item.queryAgnostic), item.selected);
    item.wanted.clear();
    for (SelectedBlock& block : item.selected) {
        block.block += item.firstBlock;
        item.wanted.push_back(block.block);
    }
}

std::unique_ptr<Selector> makeSpecSelector(const SelectorContext& context) {
    return std::make_unique<SpecSelector>(context);
}

} // namespace kvscope
