// The example of docs/adding-a-method.md: blocks are kept for their keys of small norm.
//   A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression (Devoto et al., 2024)
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/selector.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace kvscope {
namespace {

class SmallNormSelector final : public Selector {
public:
    explicit SmallNormSelector(const SelectorContext& context) : context_(context) {}
    void prompt(const PromptPiece& piece) override { // every key of the prompt, piece by piece
        const KeyExtents keyAt = context_.keys(piece.n);
        for (int i = 0; i < piece.n; ++i)
            for (const KvHeadId g : context_.kvHeads())
                add({piece.layer, piece.sequence, g}, piece.first + i, piece.rows.k + keyAt.first(i, g));
    }
    void append(std::span<HeadStep> heads) override { // and of every new token
        for (const HeadStep& item : heads) add({item.layer, item.sequence, item.kvHead}, item.position, item.rows.key);
    }
    void choose(std::span<HeadStep> heads) override { // one score per block; forced blocks and ties are shared code
        for (HeadStep& item : heads) {
            item.queryAgnostic = scores_[{item.layer, item.sequence, item.kvHead}];
            if (!item.dense) chooseBlocks(context_.spec, item);
        }
    }

private:
    using Place = std::tuple<LayerId, RowId, KvHeadId>;

    void add(const Place& place, int position, const float* key) {
        float norm = 0;
        for (int c = 0; c < context_.shape.dim; ++c) norm += key[c] * key[c];
        std::vector<float>& scores = scores_[place];
        const std::size_t block = std::size_t(position / context_.spec.blockSize);
        if (scores.size() <= block) scores.resize(block + 1, -INFINITY);
        scores[block] = std::max(scores[block], -std::sqrt(norm)); // the smallest norm in the block
    }
    const SelectorContext context_;
    std::map<Place, std::vector<float>> scores_; // [block]
};

} // namespace

MethodEntry smallNormMethod() {
    MethodEntry entry;
    entry.name = "small-norm";
    entry.title = "Small norms";
    entry.source = "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression";
    entry.summary = "Keeps the blocks that hold the keys of smallest norm, whatever the query.";
    entry.parameters = {select::blockSize(),         select::sinkBlocks(),  select::windowBlocks(16),
                        select::windowAddsCurrent(), select::totalBlocks(), select::bias(),
                        select::biasScale()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.budget.queryAgnostic = select::remainingBlocks(values, spec, 0);
        return spec;
    };
    entry.makeSelector = [](const ParameterValues&, const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<SmallNormSelector>(context);
    };
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.prompt = true; // calls of prompt
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        return {select::indexOf("norms", "smallest norms", Per::KvHead, s.blocks * 4)};
    };
    return entry;
}

} // namespace kvscope
