// What the oracle knows of one selection: the attention that the method would have with every block, block by block.
#pragma once

#include <cstdint>

namespace kvscope {

/// One (layer, sequence, KV head) of one step. Mass: share of the attention's weight over all cached tokens, mean over
/// the group's query heads. The best blocks are those of the most mass, as many as were selected. "Far" leaves out the
/// sink and window, which every method attends: shares are of the other blocks' mass, the best ones among those.
struct OracleRecord {
    std::int32_t step = 0, layer = 0, sequence = 0, kvHead = 0;
    std::int32_t selected = 0, far = 0;                // blocks; far: chosen ones, neither sink nor window
    float mass = 0, bestMass = 0;                      // of the selected and of the best blocks
    float recall = 0;                                  // share of the selected that are among the best
    float farMass = 0, farBestMass = 0, farRecall = 0; // NaN where nothing is far or none was chosen
};

/// Called on the engine's thread, with SessionOptions::oracle, for every selection.
class OracleObserver {
public:
    virtual ~OracleObserver() = default;
    virtual void observe(const OracleRecord& record) = 0;
};

} // namespace kvscope
