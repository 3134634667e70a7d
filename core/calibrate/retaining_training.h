// What training retaining heads takes and gives: plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

struct RetainingTraining {
    int width = 0; // of the hidden layer; 0: a sixth of the inputs, the released 1024 at most
    int steps = 1500, batchRuns = 8;
    double learningRate =
        5e-4; // after a linear warm-up over the first tenth; betas 0.9, 0.95, gradient norm at most 0.5
    double smoothness = 0.0025; // weight of the squared difference of neighbouring scores
    std::uint64_t seed = 1;
    int threads = 0;
};

/// Of one layer, on texts left out.
struct RetainingQuality {
    double loss = 0; // SmoothL1 between score and label
    double kept = 0; // of the quarter of the tokens with the largest labels: share that the best-scored quarter holds
};

struct RetainingReport {
    std::vector<RetainingQuality> before, after; // [layer]; before: at random, where `kept` is a quarter by chance
    int trainTokens = 0, testTokens = 0;
};

struct RetainingStep {
    int step = 0, steps = 0;
    double loss = 0;     // mean over layers of this step's batch
    double testLoss = 0; // of the texts left out, from time to time; NaN otherwise
};

} // namespace kvscope
