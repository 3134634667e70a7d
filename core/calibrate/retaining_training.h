// Settings and results of training retaining heads: plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

struct RetainingTraining {
    int width = 0; // of the hidden layer; 0: a sixth of the inputs, at most the 1024 of the released heads
    int steps = 1500, batchRuns = 8;
    double learningRate =
        5e-4; // after a linear warm-up over the first tenth; betas 0.9, 0.95, gradient norm at most 0.5
    double smoothness = 0.0025; // weight of the squared difference between neighbouring scores in the loss
    std::uint64_t seed = 1;
    int threads = 0;
};

/// How well one layer's heads predict, on the texts left out.
struct RetainingQuality {
    double loss = 0; // SmoothL1 between score and label
    double kept = 0; // of the quarter of tokens with the highest labels, the share in the quarter of highest scores
};

struct RetainingReport {
    std::vector<RetainingQuality> before, after; // [layer]; before: with random weights, `kept` about a quarter
    int trainTokens = 0, testTokens = 0;
};

struct RetainingStep {
    int step = 0, steps = 0;
    double loss = 0;     // of this step's batch, mean over layers
    double testLoss = 0; // on the texts left out, measured from time to time; NaN otherwise
};

} // namespace kvscope
