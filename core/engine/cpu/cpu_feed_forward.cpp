#include "core/engine/cpu/cpu_feed_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

namespace kvscope {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

const float* dataOrNull(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

float sigmoid(float x) { return 1.f / (1.f + std::exp(-x)); }

/// Indices of the `count` largest scores, best first; of equal scores the lower index first.
std::vector<std::size_t> best(const std::vector<float>& scores, int count) {
    Numbered<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0u);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](std::size_t a, std::size_t b) {
        return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    });
    order.resize(count);
    return order;
}

std::vector<float> scoresOf(const ExpertConfig& config, const float* logits) {
    std::vector<float> scores(logits, logits + config.count);
    if (config.score == ExpertScore::Sigmoid) {
        for (float& score : scores) score = sigmoid(score);
        return scores;
    }
    const float most = *std::max_element(scores.begin(), scores.end());
    float sum = 0;
    for (float& score : scores) sum += score = std::exp(score - most);
    for (float& score : scores) score /= sum;
    return scores;
}

/// Excludes all experts but those of the best groups.
void keepBestGroups(const ExpertConfig& config, std::vector<float>& scores) {
    if (config.groupsUsed == config.groups) return;
    const int size = config.count / config.groups;
    const Extents<int, int> scoreAt(config.groups, size);
    std::vector<float> groups;
    for (int g = 0; g < config.groups; ++g) {
        float first = kLowest, second = kLowest;
        for (const float score : scoreAt.part(std::span(scores), g)) {
            second = std::max(second, std::min(first, score));
            first = std::max(first, score);
        }
        groups.push_back(config.groupScore == GroupScore::Max || size == 1 ? first : first + second);
    }
    Numbered<bool> kept(groups.size(), false);
    for (const std::size_t g : best(groups, config.groupsUsed)) kept[g] = true;
    for (int g = 0; g < config.groups; ++g)
        if (!kept[g]) std::ranges::fill(scoreAt.part(std::span(scores), g), kLowest);
}

} // namespace

void chooseExperts(const ExpertConfig& config, const float* logits, const float* choiceBias,
                   std::vector<ExpertChoice>& chosen) {
    const std::vector<float> scores = scoresOf(config, logits);
    std::vector<float> ranking = scores;
    if (choiceBias != nullptr)
        for (std::size_t e = 0; e < ranking.size(); ++e) ranking[e] += choiceBias[e];
    keepBestGroups(config, ranking);
    chosen.clear();
    float sum = 0;
    for (const std::size_t e : best(ranking, config.used)) {
        chosen.push_back({int(e), scores[e]});
        sum += scores[e];
    }
    const float factor = config.normalise ? config.scale / (sum + 1e-20f) : config.scale;
    for (ExpertChoice& choice : chosen) choice.weight *= factor;
}

CpuFeedForward::CpuFeedForward(Kernels& kernels, const Model& model, std::size_t rows)
    : kernels_(kernels), model_(model), config_(model.config()) {
    int width = config_.ffn;
    if (config_.experts) {
        const ExpertConfig& experts = *config_.experts;
        width = std::max({width, experts.width, experts.sharedWidth});
        streamAt_ = Extents<int, int>(int(rows), config_.hidden);
        logitAt_ = Extents<int, int>(int(rows), experts.count);
        logits_ = AlignedBuffer<float>(logitAt_.size());
        gathered_ = AlignedBuffer<float>(streamAt_.size());
        result_ = AlignedBuffer<float>(streamAt_.size());
        sum_ = AlignedBuffer<float>(streamAt_.size());
        sharedGate_ = AlignedBuffer<float>(rows);
        choices_.resize(rows);
        rowsOf_.resize(experts.count);
    }
    hidden_ = AlignedBuffer<float>(rows * std::size_t(width));
}

void CpuFeedForward::apply(const FeedForwardWeights& mlp, const std::vector<float>& norm, const float* x, int n,
                           float* out, bool accumulate) {
    GatedArgs gated{x, n, norm.data(), config_.streamNormEps(), mlp.gate, mlp.up, hidden_.data()};
    gated.gateBias = dataOrNull(mlp.gateBias);
    gated.upBias = dataOrNull(mlp.upBias);
    if (config_.boundedGate) {
        gated.slope = config_.boundedGate->slope;
        gated.limit = config_.boundedGate->limit;
    }
    kernels_.gatedLinear(gated);
    const LinearTarget target{mlp.down, dataOrNull(mlp.downBias), out, config_.hidden, accumulate};
    kernels_.linear({hidden_.data(), n, mlp.down.cols, nullptr, 0.f, {&target, 1}});
}

void CpuFeedForward::run(LayerId layer, float* x, int n) {
    const LayerWeights& weights = model_.layer(int(layer));
    if (config_.hasExperts(int(layer)))
        runExperts(weights, x, n);
    else
        apply(weights.mlp, weights.postNorm, x, n, x, true);
}

void CpuFeedForward::output(LayerId layer, const float* x, int n, float* out) {
    const LayerWeights& weights = model_.layer(int(layer));
    apply(weights.mlp, weights.postNorm, x, n, out, false);
}

/// Runs one expert after the other. The rows that chose an expert go through it together, so that its weights are read
/// once.
void CpuFeedForward::runExperts(const LayerWeights& weights, float* x, int n) {
    const ExpertConfig& experts = *config_.experts;
    const std::size_t hidden = streamAt_.under(0);
    const LinearTarget router{weights.moe.router, nullptr, logits_.data(), experts.count, false};
    kernels_.linear({x, n, config_.hidden, weights.postNorm.data(), config_.streamNormEps(), {&router, 1}});
    for (auto& rows : rowsOf_) rows.clear();
    for (int row = 0; row < n; ++row) {
        auto& chosen = choices_[row];
        chooseExperts(experts, logits_.data() + logitAt_.first(row), dataOrNull(weights.moe.choiceBias), chosen);
        for (const ExpertChoice& choice : chosen) rowsOf_[choice.expert].push_back(row);
    }
    std::fill_n(sum_.data(), std::size_t(n) * hidden, 0.f);
    for (int e = 0; e < experts.count; ++e) {
        const auto& rows = rowsOf_[e];
        if (rows.empty()) continue;
        const int count = int(rows.size());
        kernels_.forEach(count, [&](int i) {
            std::copy_n(x + streamAt_.first(rows[std::size_t(i)]), hidden, gathered_.data() + streamAt_.first(i));
        });
        apply(weights.moe.experts[std::size_t(e)], weights.postNorm, gathered_.data(), count, result_.data(), false);
        kernels_.forEach(count, [&](int i) {
            const int row = rows[std::size_t(i)];
            const auto& chosen = choices_[row];
            const float weight = std::find_if(chosen.begin(), chosen.end(), [&](const ExpertChoice& choice) {
                                     return choice.expert == e;
                                 })->weight;
            const float* from = result_.data() + streamAt_.first(i);
            float* to = sum_.data() + streamAt_.first(row);
            for (std::size_t c = 0; c < hidden; ++c) to[c] += weight * from[c];
        });
    }
    if (weights.moe.sharedGate.rows > 0) {
        const LinearTarget gate{weights.moe.sharedGate, nullptr, sharedGate_.data(), 1, false};
        kernels_.linear({x, n, config_.hidden, weights.postNorm.data(), config_.streamNormEps(), {&gate, 1}});
    }
    const bool shared = weights.moe.shared.gate.rows > 0, gated = weights.moe.sharedGate.rows > 0;
    if (shared) apply(weights.moe.shared, weights.postNorm, x, n, result_.data(), false);
    kernels_.forEach(n, [&](int row) {
        const std::size_t at = streamAt_.first(row);
        const float weight = gated ? sigmoid(sharedGate_[std::size_t(row)]) : 1.f;
        for (std::size_t c = 0; c < hidden; ++c) x[at + c] += sum_[at + c] + (shared ? weight * result_[at + c] : 0.f);
    });
}

} // namespace kvscope
