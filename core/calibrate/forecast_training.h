// Settings and results of training Forecast projections: plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

/// What the Forecast learns to predict. Attention: exact attention over the fine grid, as in SparDA's training.
/// Backbone: the scores by which the backbone itself would choose blocks, which are one softmax per query head over the
/// pooled keys, summed over the group.
enum class ForecastTeacher { Attention, Backbone };

struct ForecastTraining {
    int steps = 1500, batch = 64; // steps of AdamW, and sampled queries of a step
    double learningRate = 5e-4;   // constant; betas 0.9 and 0.95, weight decay 0.01, gradient norm at most 0.5
    ForecastTeacher teacher = ForecastTeacher::Backbone; // the better one as measured (docs/calibrate.md)
    int farBlocks = 4;                                   // blocks beside sink and local window that the teacher names
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
    double recall = 0; // share of the blocks chosen by InfLLM-V2's own score that the Forecast chooses too
    double mass = 0;   // share of the exact attention beyond sink and local window that the chosen blocks receive
};

struct ForecastReport {
    std::vector<ForecastQuality> before, after; // [target layer], on text that was not trained on
    int trainQueries = 0, testQueries = 0;
};

struct ForecastStep {
    int step = 0, steps = 0;
    double loss = 0;     // of this step's batch, mean over layers
    double testLoss = 0; // on the texts left out, measured from time to time; NaN otherwise
};

} // namespace kvscope
