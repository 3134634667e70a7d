// The stages of a decode step of rows that come and go, on the CPU backend.
#pragma once

#include "core/engine/cpu/cpu_attention.h"
#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/engine/cpu/cpu_sequences.h"
#include "core/session/row_engine.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// The attention of one row. CpuRowStages does what the rows of a step have in common.
class CpuRowAttention final : public CpuAttention {
public:
    CpuRowAttention(CpuSequences& sequences, StageClock& clock)
        : CpuAttention(sequences.context, *sequences.selector, sequences.transfers, clock, {}) {}

    /// The row's next step feeds the token at `position` and writes to `record`.
    void begin(int position, StepRecord& record) {
        sequence_.position = position;
        beginStep({&sequence_, 1}, record);
    }
    using CpuAttention::beginLayer;

    void embed() override {}
    void project(LayerId) override {}
    void finish(LayerId) override {}
    void head() override {}

private:
    ActiveSequence sequence_;
};

/// Embeddings, projections, feed-forwards and logits of all rows together, so that weights are read once; between them
/// each row attends by itself.
class CpuRowStages final : public Stages {
public:
    /// A row of the step.
    struct Row {
        CpuRowAttention* attention = nullptr;
        StepRecord* record = nullptr; // what is the row's alone
        const RopeTables* rope = nullptr;
        RowToken token;
    };
    /// Everything passed must outlive this object. Memory: x [rows, hidden], logits [rows, vocab].
    CpuRowStages(CpuLayerPasses& passes, StageClock& clock, int layers, float* x, float* logits);

    /// The next step feeds these rows. They must live until it is done.
    void begin(std::span<const Row> rows);

    void embed() override;
    void project(LayerId layer) override;
    void append(LayerId layer) override;
    void choose(LayerId layer) override;
    void lookAhead(LayerId layer) override;
    void load(LayerId layer) override;
    void attend(LayerId layer) override;
    void after(LayerId layer) override;
    void measure(LayerId layer) override;
    void finish(LayerId layer) override;
    void head() override;

private:
    template <class Work> void each(Work&& work) {
        for (const Row& row : rows_) work(*row.attention);
    }
    int count() const { return int(rows_.size()); }

    CpuLayerPasses& passes_;
    StageClock& clock_;
    float *const x_, *const logits_;
    std::span<const Row> rows_;
    std::vector<std::int32_t> tokens_;
    StepRecord shared_; // has the times of the work that rows share
};

} // namespace kvscope
