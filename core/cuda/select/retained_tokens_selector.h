// What the methods share that retain some tokens of each KV head and forget all others for good: the store of retained
// tokens on the device, the place for every new token, the attention over the retained tokens, and the records. Each
// method decides itself which tokens of a prompt it retains.
#pragma once

#include "core/cuda/select/token_report.h"
#include "kernels/cuda/methods/retained_tokens.h"

namespace kvscope {

class RetainedTokensSelector : public DeviceSelector {
public:
    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override { return report_.bytes(); }
    void choose(const DeviceStep& step, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              std::size_t) const override {
        report_.fill(layer, report, active, out, record, Origin::QueryAgnostic,
                     [&](RowId sequence, std::int32_t newest) { return firstRecent(sequence, newest); });
    }

protected:
    /// capacity: most tokens that a KV head retains at a time.
    RetainedTokensSelector(const DeviceSelectorContext& context, int capacity, bool countsMass);
    /// See TokenReport::FirstRecent.
    virtual std::int32_t firstRecent(RowId /*sequence*/, std::int32_t newest) const { return newest + 1; }
    /// Sets how the token of a decode step enters the store; see cuda::RetainTokenArgs.
    virtual void comes(cuda::RetainTokenArgs&) const {}

    /// The prompt of one sequence in one layer, as promptDone gets it.
    struct Prompt {
        LayerId layer;
        RowId sequence;
        const __nv_bfloat16* blocks;
        std::int64_t headStride;
    };
    /// Chooses the `wanted` tokens with the highest promptScores_ among the first `length`, and lists them in chosen_
    /// for retain().
    void retainFromPrompt(int length, int wanted);
    /// Puts the listed tokens (null: none) and the tokens [tailFirst, tailEnd) into the store. scored: stores
    /// promptScores_ with them.
    void retain(const Prompt& prompt, const cuda::TokenLists* listed, bool scored, int tailFirst, int tailEnd);
    const cuda::RetainedTokens& retained(LayerId layer) const { return retained_[layer]; }
    /// Index of a sequence's first token among the eviction scores. The scores of its heads are tokenStride apart.
    std::int64_t firstToken(RowId sequence) const;
    std::int64_t tokenStride(RowId sequence) const;
    const float* evictionScores(LayerId layer) const { return context_.layers[layer].index.tokenScores; }
    const float* biases(LayerId layer) const {
        return context_.spec.bias.scale != 0.f ? evictionScores(layer) : nullptr;
    }

    const DeviceSelectorContext context_;
    const int capacity_, mostTokens_; // mostTokens_: tokens of the longest sequence
    float* promptScores_ = nullptr;   // [kvHeads, mostTokens_] of the prompt that is being read
    double* promptMass_ = nullptr;    // [kvHeads, mostTokens_], if countsMass_
    cuda::TokenLists chosen_;         // what retainFromPrompt chose

private:
    const bool countsMass_;
    const int blocks_; // number of blocks of a head's store
    const TokenReport report_;
    PerLayer<cuda::RetainedTokens> retained_;
    std::int64_t *packedFirst_ = nullptr, *placeFirst_ = nullptr; // [heads] a head's first block and place
    float* partial_ = nullptr;
};

} // namespace kvscope
