#include "core/session/left_out.h"

#include "base/error.h"
#include "core/session/session_checks.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

class LeavingOut final : public Selector {
public:
    LeavingOut(std::unique_ptr<Selector> inner, const LeftOutBlock& block, int blockSize, int firstPosition)
        : inner_(std::move(inner)), block_(block), blockSize_(blockSize), firstPosition_(firstPosition) {}

    void attendPrompt(const PromptPiece& piece) override { inner_->attendPrompt(piece); }
    void prompt(const PromptPiece& piece) override { inner_->prompt(piece); }
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>& requests) override {
        inner_->promptDone(layer, sequence, tokens, requests);
    }
    void append(std::span<HeadStep> heads) override { inner_->append(heads); }
    void score(std::span<HeadStep> heads) override { inner_->score(heads); }
    void choose(std::span<HeadStep> heads) override {
        inner_->choose(heads);
        for (HeadStep& head : heads)
            if (!head.dense && !head.ofPrompt && head.sequence == RowId{block_.sequence} &&
                head.position >= firstPosition_)
                leaveOut(head);
    }
    void lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override {
        inner_->lookAhead(heads, requests);
    }
    Loads load(std::span<HeadStep> heads) override { return inner_->load(heads); }
    std::int64_t storedBytes(LayerId layer, int tokens) const override { return inner_->storedBytes(layer, tokens); }
    bool attend(std::span<HeadStep> heads) override {
        if (!inner_->attend(heads)) return false;
        throw Error(ErrorKind::Unsupported,
                    fmt::format("block {} cannot be left out: the method attends to its choice by a rule of its own",
                                block_.block),
                    "leave a block out of a run of another method, e.g. nosa or infllmv2");
    }
    void after(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override {
        inner_->after(heads, requests);
    }

private:
    void leaveOut(HeadStep& head) const {
        const auto isIt = [this](const SelectedBlock& chosen) { return chosen.block == block_.block; };
        if (head.selected.size() < 2 || std::none_of(head.selected.begin(), head.selected.end(), isIt)) return;
        if (head.byToken) {
            const auto inIt = [this](std::int32_t token) { return token / blockSize_ == block_.block; };
            if (std::all_of(head.tokens.begin(), head.tokens.end(), inIt)) return;
            std::erase_if(head.tokens, inIt);
        }
        std::erase_if(head.selected, isIt);
        std::erase(head.wanted, block_.block);
    }

    const std::unique_ptr<Selector> inner_;
    const LeftOutBlock block_;
    const int blockSize_, firstPosition_;
};

} // namespace

std::unique_ptr<Selector> leavingOut(std::unique_ptr<Selector> inner, const LeftOutBlock& block,
                                     const SelectorContext& context, const std::vector<int>& promptTokens) {
    const int first = promptTokens[std::size_t(block.sequence)] + block.fromStep - 1; // what that step feeds
    return std::make_unique<LeavingOut>(std::move(inner), block, context.spec.blockSize, first);
}

void checkLeftOut(const LeftOutBlock& block, const SelectionSpec& spec, const SessionOptions& options,
                  const std::vector<int>& promptTokens) {
    if (options.backend == Backend::Cuda)
        throw Error(ErrorKind::Unsupported,
                    "no block can be left out on a GPU, where the kernels of a step choose and attend in one go",
                    "leave it out on the CPU (--backend cpu)");
    if (spec.dense || spec.ownDeviceTier || spec.unitTokens() != spec.blockSize)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("method {} {}, so that no block can be left out", options.method,
                                spec.dense ? "attends to everything" : "does not choose among blocks of the cache"),
                    "use a method that selects blocks, e.g. nosa");
    if (block.sequence < 0 || std::size_t(block.sequence) >= promptTokens.size())
        refuse(fmt::format("there is no sequence {} to leave a block out of", block.sequence),
               fmt::format("use 0 to {}", promptTokens.size() - 1));
    if (block.fromStep < 1)
        refuse("a block is left out of decode steps, which begin with 1; step 0 reads the prompt",
               "name a step from 1 on");
    const int current = (promptTokens[std::size_t(block.sequence)] + block.fromStep - 1) / spec.blockSize;
    if (block.block < 0 || block.block >= current)
        refuse(fmt::format("block {} cannot be left out from step {} on: the step's own token is in block {}",
                           block.block, block.fromStep, current),
               current > 0 ? fmt::format("name a block of 0 to {}", current - 1) : "use a longer prompt");
}

} // namespace kvscope
