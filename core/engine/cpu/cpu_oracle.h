// The oracle of the CPU backend: computes what the attention would have been with every block, to compare with what was
// selected.
#pragma once

#include "core/engine/cpu/view_attention.h"
#include "core/trace/oracle.h"
#include "core/trace/trace_sink.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

class CpuOracle {
public:
    /// @param ownKeys the method attends with other keys than the model's: the mass is summed from the model's
    /// attention of the selected blocks, not from the method's own log-sum-exps
    /// @param observer told of every selection, or null
    CpuOracle(const SelectorContext& context, bool ownKeys, OracleObserver* observer);

    /// Measures one layer of a step after its attention.
    /// @param work the layer's items; their lse is that of the attention over what was chosen. Their outputs stay as
    /// they are; item.views and item.rows.out then belong to the oracle
    /// @param firstSelection of the layer in record.selections, which gets the masses
    void measure(LayerId layerId, std::span<HeadStep> work, StepRecord& record, std::size_t firstSelection);

private:
    void attendEverything(LayerId layerId, std::span<HeadStep> work);
    void splitIntoUnits(HeadStep& item) const;
    void measureBlocks(HeadStep& item);
    void compareWithBest(LayerId layerId, HeadStep& item, int step, SelectionRecord& selection);

    const SelectorContext& context_;
    const bool ownKeys_;
    OracleObserver* const observer_;
    ViewAttention attention_;
    std::vector<float> out_;       // outputs of the attention, which nothing reads
    std::vector<float> blockLse_;  // [block or unit, group]
    std::vector<float> blockMass_; // [block or unit] share of the attention, mean over the group
    std::vector<std::int32_t> chosen_;
    std::vector<Origin> origins_;
};

} // namespace kvscope
