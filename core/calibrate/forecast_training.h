// What training Forecast projections takes and gives: plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

/// What the Forecast learns to point at: the exact attention over the fine grid, as SparDA trains, or the score by
/// which the backbone itself would choose blocks (one softmax per query head over the pooled keys, summed over the
/// group).
enum class ForecastTeacher { Attention, Backbone };

struct ForecastTraining {
    int steps = 1500, batch = 64; // AdamW steps of so many sampled queries each
    double learningRate = 5e-4;   // constant; betas 0.9 and 0.95, weight decay 0.01, gradient norm at most 0.5
    ForecastTeacher teacher = ForecastTeacher::Backbone; // what measures better (docs/calibrate.md)
    int farBlocks = 4; // blocks beside sink and window that the teacher names
    std::uint64_t seed = 1;
    int threads = 0;
};

/// Weights as a checkpoint names them: future[l] scores layer l + 1 (the last layer has none), own scores layer 0.
struct ForecastWeights {
    std::vector<std::vector<float>> future; // [layer]: [kvHeads*dim, hidden]; the last one empty
    std::vector<float> own;                 // [kvHeads*dim, hidden]
};

struct ForecastQuality {
    double loss = 0;   // mean KL
    double recall = 0; // share of the blocks by InfLLM-V2's own score that the Forecast's choice holds
    double mass = 0;   // of the exact attention beyond sink and window, share that lies on the Forecast's choice
};

struct ForecastReport {
    std::vector<ForecastQuality> before, after; // [target layer], on text that was not trained on
    int trainQueries = 0, testQueries = 0;
};

struct ForecastStep {
    int step = 0, steps = 0;
    double loss = 0;     // mean over layers of this step's batch
    double testLoss = 0; // of the texts left out, from time to time; NaN otherwise
};

} // namespace kvscope
