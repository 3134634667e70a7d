// Stage ffn of mixtures of experts, without the products: the router, the choice of experts, each expert's list of
// tokens, and the sum of the experts' results. The host takes no part, so that a step with experts is one graph too.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/linear/linear.h"

#include <cstdint>

namespace kvscope::cuda {

/// How experts are chosen; see ExpertConfig (core/model/model_config.h).
struct ExpertRule {
    int count = 0, used = 0;        // at most kMostExperts, kMostUsed
    int groups = 1, groupsUsed = 1; // groups of equal size, at most 32
    bool sigmoid = false, bestTwo = false;
    bool normalise = false;
    float scale = 1;
};
constexpr int kMostExperts = 1024, kMostUsed = 32, kMostExpertGroups = 32;

/// logits[i, e] = norm(x_i) . router[e], in float32, because rounded weights or inputs would choose other experts.
struct RouteArgs {
    const float* x = nullptr; // [n, hidden]
    int n = 0, hidden = 0;    // hidden a multiple of 4
    Norm norm;
    const float* router = nullptr; // [rows, hidden]
    int rows = 0;                  // experts, and the shared expert's gate if it has one
    float* logits = nullptr;       // [n, rows]
};
void routeTokens(const Launch& launch, const RouteArgs& args);

/// Chooses every token's experts and lists every expert's tokens.
struct ChooseArgs {
    ExpertRule rule;
    int n = 0, stride = 0; // tokens; logits of one
    const float* logits = nullptr;
    const float* choiceBias = nullptr; // [count] or null
    std::int32_t* chosen = nullptr;    // [n, used]
    float* weights = nullptr;          // [n, used]
    std::int32_t* counts = nullptr;    // [count]
    std::int32_t* pairs = nullptr;     // [count, capacity]: token * used + choice, ascending
    int capacity = 0;                  // at least n
};
void chooseExpertsOnDevice(const Launch& launch, const ChooseArgs& args);

/// x_i += shared_i + the sum over the token's experts of weight * result. With a gate, shared_i is multiplied by
/// sigmoid(gate_i) first.
struct CombineArgs {
    float* x = nullptr; // [n, hidden]
    int n = 0, hidden = 0, used = 0;
    const float* results = nullptr;    // [n * used, hidden]
    const float* weights = nullptr;    // [n, used]
    const float* shared = nullptr;     // [n, hidden] or null
    const float* sharedGate = nullptr; // of token i at sharedGate[i * gateStride], or null
    int gateStride = 0;
};
void combineExperts(const Launch& launch, const CombineArgs& args);

} // namespace kvscope::cuda
