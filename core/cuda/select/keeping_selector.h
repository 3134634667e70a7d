// What the methods share that keep some tokens of each KV head and forget the rest for good: their store on the
// device, a place for every new token, attention over what is kept, and the records. The prompt is theirs.
#pragma once

#include "core/cuda/select/token_report.h"
#include "kernels/cuda/methods/kept_tokens.h"

namespace kvscope {

class KeepingSelector : public DeviceSelector {
public:
    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override { return report_.bytes(); }
    void choose(const DeviceStep& step, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(int layer, const char* report, std::span<const int> active, LayerRecord& out, StepRecord& record,
              std::size_t) const override {
        report_.fill(layer, report, active, out, record, Origin::QueryAgnostic,
                     [&](int sequence, std::int32_t newest) { return firstRecent(sequence, newest); });
    }

protected:
    /// capacity: most tokens that a KV head keeps at a time.
    KeepingSelector(const DeviceSelectorContext& context, int capacity, bool countsMass);
    /// See TokenReport::FirstRecent.
    virtual std::int32_t firstRecent(int /*sequence*/, std::int32_t newest) const { return newest + 1; }
    /// How a decode step's token comes; see cuda::KeepTokenArgs.
    virtual void comes(cuda::KeepTokenArgs&) const {}

    /// One sequence's prompt in one layer, as promptDone has it.
    struct Prompt {
        int layer, sequence;
        const __nv_bfloat16* blocks;
        std::int64_t headStride;
    };
    /// Chooses `wanted` of the first `length` tokens by promptScores, for keep().
    void keepFromPrompt(int length, int wanted);
    /// Keeps what is listed (null: nothing) and [tailFirst, tailEnd). scored: with promptScores.
    void keep(const Prompt& prompt, const cuda::TokenLists* listed, bool scored, int tailFirst, int tailEnd);
    const cuda::KeptTokens& kept(int layer) const { return kept_[std::size_t(layer)]; }
    /// Index of a sequence's first token among the eviction scores; its heads are tokenStride apart.
    std::int64_t firstToken(int sequence) const;
    std::int64_t tokenStride(int sequence) const;
    const float* evictionScores(int layer) const { return context_.layers[std::size_t(layer)].index.tokenScores; }
    const float* biases(int layer) const { return context_.spec.bias.scale != 0.f ? evictionScores(layer) : nullptr; }

    const DeviceSelectorContext context_;
    const int capacity_, mostTokens_; // mostTokens_: of a sequence
    float* promptScores_ = nullptr;   // [kvHeads, mostTokens_] of the prompt being read
    double* promptMass_ = nullptr;    // likewise, where mass is counted
    cuda::TokenLists chosen_;         // what choosePrompt chose

private:
    const bool countsMass_;
    const int blocks_; // of a head's places
    const TokenReport report_;
    std::vector<cuda::KeptTokens> kept_;                          // [layer]
    std::int64_t *packedFirst_ = nullptr, *placeFirst_ = nullptr; // [heads] a head's first block and place
    float* partial_ = nullptr;
};

} // namespace kvscope
