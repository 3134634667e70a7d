#include "core/session/planted_selector.h"

namespace kvscope {
namespace {

class Planting final : public Selector {
public:
    Planting(std::unique_ptr<Selector> inner, std::vector<PlantedStream> streams, const SelectorContext& context)
        : inner_(std::move(inner)), streams_(std::move(streams)), kernels_(context.kernels), spec_(context.spec) {}

    void attendPrompt(const PromptPiece& piece) override { inner_->attendPrompt(piece); }
    void prompt(const PromptPiece& piece) override { inner_->prompt(piece); }
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>& requests) override {
        inner_->promptDone(layer, sequence, tokens, requests);
    }
    void append(std::span<HeadStep> heads) override { inner_->append(heads); }
    void score(std::span<HeadStep> heads) override { inner_->score(heads); }
    void choose(std::span<HeadStep> heads) override {
        if (!heads.empty() && heads.front().ofPrompt) return inner_->choose(heads);
        forEachItem(kernels_, heads, [&](HeadStep& item) {
            if (!item.dense) chooseOne(item);
        });
    }
    void lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override {
        inner_->lookAhead(heads, requests);
    }
    Loads load(std::span<HeadStep> heads) override { return inner_->load(heads); }
    std::int64_t storedBytes(LayerId layer, int tokens) const override { return inner_->storedBytes(layer, tokens); }
    bool attend(std::span<HeadStep> heads) override { return inner_->attend(heads); }
    void after(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override {
        inner_->after(heads, requests);
    }

private:
    void chooseOne(HeadStep& item) const {
        const PlantedStream& of = streams_[index(item.layer)];
        const std::uint32_t head = plantedHead(of.stream, int(item.kvHead));
        const auto blocks = std::size_t(item.position / spec_.blockSize + 1);
        item.queryAware.resize(blocks);
        item.queryAgnostic.resize(spec_.agnosticScore != AgnosticScore::None ? blocks : 0);
        for (std::size_t b = 0; b < blocks; ++b) {
            item.queryAware[b] = plantedScore(head, int(b), item.position, of.rate);
            if (!item.queryAgnostic.empty()) item.queryAgnostic[b] = plantedPrior(head, int(b));
        }
        chooseBlocks(spec_, item);
    }

    const std::unique_ptr<Selector> inner_;
    const std::vector<PlantedStream> streams_;
    Kernels& kernels_;
    const SelectionSpec& spec_;
};

} // namespace

std::unique_ptr<Selector> plantingSelections(std::unique_ptr<Selector> inner, std::vector<PlantedStream> streams,
                                             const SelectorContext& context) {
    return std::make_unique<Planting>(std::move(inner), std::move(streams), context);
}

} // namespace kvscope
