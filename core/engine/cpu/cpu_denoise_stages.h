// The stages of a denoising forward on the CPU backend: several queries per row, and keys and values that stay only
// after a block's clean forward.
#pragma once

#include "core/engine/cpu/cpu_block_attention.h"
#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/engine/step_order.h"
#include "core/session/denoise_engine.h"

#include <vector>

namespace kvscope {

/// Memory is taken once, but for the lists of a forward, which keep theirs between forwards. How stages are counted,
/// where a method chooses pages: compression compares queries with those before and names the active tokens; stage1
/// scores pages; pooling chooses and unites them; offloading keeps what the next forward and the next blocks need;
/// stage2 is the attention, or `attention` where every row attends to the whole prefix. Without pages all of that is
/// `attention`.
class CpuDenoiseStages final : public Stages {
public:
    /// Memory of a forward's tokens, [rows * block, hidden], and of its wanted logits, [rows * block, vocab].
    struct Rows {
        float* x = nullptr;
        float* logits = nullptr;
    };
    /// Everything outlives the object.
    CpuDenoiseStages(const DenoiseSetup& setup, Kernels& kernels, KvCache& cache, const RopeTables& rope,
                     CpuLayerPasses& passes, StageClock& clock, Rows rows);

    /// The next forward is of these rows; its results go to `record`, which has its layers. Both last until it is done.
    void begin(std::span<const DenoiseRow> rows, StepRecord& record);
    /// Keys and values of tokens become part of a sequence's prefix. k, v [tokens, kvHeads, dim]
    void keep(int layer, int sequence, int first, int tokens, const float* k, const float* v);
    /// Views of the first `tokens` tokens of a KV head's prefix.
    void viewPrefix(int layer, int sequence, int kvHead, int tokens, std::vector<KvBlockView>& views);

    void embed() override;
    void project(int layer) override;
    void append(int layer) override;
    void choose(int layer) override;
    void lookAhead(int) override {}
    void load(int) override {}
    void attend(int layer) override;
    void after(int layer) override;
    void measure(int layer) override;
    void finish(int layer) override;
    void head() override;

    std::span<const float> logits(int row, int token) const;

private:
    /// What a sequence's layer remembers from one forward of a block to the next.
    struct Memory {
        AlignedBuffer<float> queries;    // [block, queryHeads, dim]
        AlignedBuffer<float> prefix;     // [block, queryHeads, valueDim] attention over the prefix
        AlignedBuffer<float> prefixSums; // [block, queryHeads] its log sums
    };
    /// One KV head of a row in the present layer.
    struct Head {
        std::uint64_t active = 0;               // tokens that attend to the prefix
        std::vector<std::uint8_t> chosen;       // [pages]
        std::vector<std::int32_t> pages;        // united, ascending; only where sparse
        std::vector<KvBlockView> prefix, block; // what they attend to
        AlignedBuffer<float> own;               // keys and values of the block, as KV blocks
    };
    Memory& memory(int layer, int sequence);
    Head& headOf(std::size_t row, int kvHead) {
        return heads_[row * std::size_t(config_.kvHeads) + std::size_t(kvHead)];
    }
    LayerRecord& recordOf(int layer) { return record_->layers[std::size_t(layer)]; }
    template <class Work> void timed(int layer, Stage stage, Work&& work) {
        clock_.run(recordOf(layer), options_.pages ? stage : Stage::Attention, work);
    }
    const float* queriesOf(std::size_t row) const;
    bool compares(const DenoiseRow& row) const { return row.step > 0 && (comparesAlways_ || isSparse(row)); }
    bool isSparse(const DenoiseRow& row) const;
    void compare(int layer, std::size_t row);
    void nameActive(std::size_t row);
    void packOwn(std::size_t row, int kvHead);
    void scorePages(int layer);
    void unite(int layer, std::size_t row, int kvHead);
    void attendPrefix(int layer);
    void attendBlock();
    void merge(int layer, std::size_t row);
    void recordHead(int layer, std::size_t row, int kvHead);
    int pagesOf(int tokens) const { return (tokens + layout_.blockSize - 1) / layout_.blockSize; }

    const DenoiseOptions options_;
    const ModelConfig& config_;
    const bool comparesAlways_; // changes are recorded, whether or not anything follows from them
    DenoiseObserver* const observer_;
    Kernels& kernels_;
    KvCache& cache_;
    const BlockLayout layout_;
    const RopeTables& rope_;
    CpuLayerPasses& passes_;
    StageClock& clock_;
    const Rows buffers_;
    CpuBlockAttention attention_;
    std::vector<Memory> memories_; // [sequence * layers]

    std::span<const DenoiseRow> rows_;
    StepRecord* record_ = nullptr;
    std::vector<std::int32_t> tokens_; // ids of all rows' blocks
    std::vector<Head> heads_;          // [sequence * kvHeads]
    std::vector<float> changes_;       // [row, 1 or kvHeads, block]
    std::vector<CpuBlockAttention::Work> work_;
    std::vector<RangeBoundItem> bounds_; // one for each active query
    std::vector<std::size_t> boundsOf_;  // [rows * kvHeads + 1] first of each head's
    std::vector<float> scores_;          // of all bounds
    std::vector<std::int32_t> order_;
    std::vector<float> block_, blockSums_; // attention within the blocks, [rows * block, queryHeads, ...]
    std::vector<int> logitsAt_;            // [rows * block] place among the logits; -1: not wanted
};

} // namespace kvscope
