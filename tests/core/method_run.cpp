#include "tests/core/method_run.h"

#include "base/clock.h"
#include "core/cache/cache_policy.h"
#include "core/engine/cpu/cpu_attention.h"
#include "core/engine/cpu/cpu_prompt_attention.h"
#include "core/select/method.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace kvscope::test {
namespace {

/// A decode step's stages with given projections in place of the model's, and nothing around the attention.
class GivenRows final : public CpuAttention {
public:
    GivenRows(const SelectorContext& context, Selector& selector, CpuTransfers& transfers, StageClock& clock,
              std::optional<Oracle> oracle, std::function<TokenRows(int)> rows)
        : CpuAttention(context, selector, transfers, clock, oracle), rows_(std::move(rows)) {}

    using CpuAttention::beginStep;
    void embed() override {}
    void project(LayerId layer) override {
        clock().beginLayer(recordOf(layer));
        beginLayer(layer, rows_(active().front().position));
    }
    void finish(LayerId) override {}
    void head() override {}

private:
    const std::function<TokenRows(int)> rows_; // of the token at a position
};

/// What a step recorded of one KV head's selection, without its output.
MethodRun::Head headOf(const StepRecord& record, const SelectionRecord& selection) {
    const auto chosen = record.blocksOf(selection);
    const auto scores = record.scores.begin() + selection.first;
    return {selection,
            idsOf(chosen),
            originsOf(chosen),
            hitsOf(chosen),
            {scores, scores + selection.selected},
            std::vector<double>{}};
}

} // namespace

MethodRun::MethodRun(const std::string& name, const MethodSettings& settings, const Shape& shape) : shape_(shape) {
    static const auto model = Model::load(kDefaultModel); // its head shapes are the constants above
    const MethodEntry& method = findMethod(name);
    ParameterValues values;
    for (const Parameter& parameter : method.parameters)
        values.set(method.parameters, parameter.key, parameter.defaultValue);
    for (const auto& [key, value] : settings) values.set(method.parameters, key, value);
    spec_ = method.make(values, model->config());
    if (!shape.bias) spec_.bias.scale = 0;

    const int tokens = shape.promptTokens + shape.steps;
    std::mt19937 random(shape.seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& to, int heads) {
        to.resize(std::size_t(tokens * heads * kDim));
        for (float& x : to) x = normal(random);
    };
    fill(plainQ_, kQueryHeads);
    fill(plainK_, kKvHeads);
    fill(v_, kKvHeads);
    scores_.resize(std::size_t(tokens * kKvHeads));
    for (float& x : scores_) x = normal(random);
    const int lengths[] = {shape.promptTokens}, most[] = {tokens};
    rope_ = RopeTables(model->config().rope, lengths, most);
    const auto rotateAll = [&](const std::vector<float>& plain, std::vector<float>& to, int heads) {
        to.resize(plain.size());
        for (int token = 0; token < tokens; ++token)
            for (int h = 0; h < heads; ++h) {
                const auto turned = rotated(row(plain, token, h, heads), token);
                std::copy(turned.begin(), turned.end(), to.begin() + (token * heads + h) * kDim);
            }
    };
    rotateAll(plainQ_, q_, kQueryHeads);
    rotateAll(plainK_, k_, kKvHeads);

    const auto kernels = makeCpuKernels(2);
    KvCacheOptions options;
    options.shape = {1, kKvHeads, kDim, kDim};
    options.layout = {spec_.blockSize, kDim, shape.bias, -1};
    options.maxTokens = {tokens};
    const int blocks = (tokens + spec_.blockSize - 1) / spec_.blockSize;
    options.slots = std::min(blocks, std::max(spec_.deviceSlots, spec_.budgetBlocks() + spec_.spareSlots));
    options.plans = LayerPlans(1, spec_, {.offload = shape.offload, .remembers = true});
    const CachePolicy& policy = findCachePolicy(shape.policy);
    KvCache cache(options, spec_, policy);
    const AttentionRules rules{kQueryHeads, 1.f / 8, {}};
    const SelectorContext context{
        *kernels, cache,         *model,
        spec_,    cache.plans(), abilitiesOf(method, {values, spec_, model->config(), Backend::Cpu, shape.offload}),
        rules,    options.shape, rope_,
        {tokens}, shape.offload, policy.byWorth};
    auto selector = method.makeSelector ? method.makeSelector(values, context) : nullptr;
    if (!selector) selector = makeSpecSelector(context);

    out_.resize(std::size_t(tokens * kQueryHeads * kDim));
    const auto rows = [&](int token) {
        const auto at = [&](const std::vector<float>& values2, int heads) {
            return values2.data() + std::size_t(token * heads * kDim);
        };
        return TokenRows{at(q_, kQueryHeads),
                         at(k_, kKvHeads),
                         at(v_, kKvHeads),
                         scores_.data() + std::size_t(token * kKvHeads),
                         out_.data() + std::size_t(token * kQueryHeads * kDim),
                         at(plainQ_, kQueryHeads),
                         at(plainK_, kKvHeads),
                         nullptr};
    };
    StageClock clock(steadyNowNs());
    CpuTransfers transfers(context, *selector, Link{});
    CpuPromptAttention prompt(context, *selector, transfers, clock);
    const auto oracle = shape.oracle ? std::optional(CpuAttention::Oracle{}) : std::nullopt;
    GivenRows stages(context, *selector, transfers, clock, oracle, rows);
    clock.beginStep();
    LayerRecord prefill;
    for (int first = 0; first < shape.promptTokens; first += 100) // chunks that end inside blocks
        prompt.read(
            {LayerId{0}, RowId{0}, first, std::min(100, shape.promptTokens - first), shape.promptTokens, rows(first)},
            prefill);
    prompt.finish(LayerId{0}, RowId{0}, shape.promptTokens, prefill);
    for (int step = 0; step < shape.steps; ++step) {
        Step result;
        StepRecord record;
        record.step = step + 1;
        record.layers.resize(1);
        const ActiveSequence active{RowId{0}, shape.promptTokens + step};
        clock.beginStep();
        stages.beginStep({&active, 1}, record);
        runStep(stages, 1);
        result.layer = record.layers.front();
        for (const SelectionRecord& s : record.selections) {
            result.heads.push_back(headOf(record, s));
            const float* own = out_.data() + std::size_t((active.position * kQueryHeads + s.kvHead * kGroup) * kDim);
            result.heads.back().out.assign(own, own + kGroup * kDim);
        }
        steps_.push_back(std::move(result));
    }
}

std::vector<double> MethodRun::rotated(const float* plain, int position) const {
    std::vector<double> to(kDim);
    const float* cos = rope_.cos() + std::size_t(position * kDim / 2);
    const float* sin = rope_.sin() + std::size_t(position * kDim / 2);
    for (int i = 0; i < kDim / 2; ++i) {
        const double a = double(plain[i]), b = double(plain[i + kDim / 2]);
        to[std::size_t(i)] = a * double(cos[i]) - b * double(sin[i]);
        to[std::size_t(i + kDim / 2)] = b * double(cos[i]) + a * double(sin[i]);
    }
    return to;
}

std::vector<double> MethodRun::attention(int token, int head, const std::vector<std::int32_t>& over) const {
    std::vector<double> weights;
    for (const std::int32_t t : over)
        weights.push_back(scale() *
                          std::inner_product(q(token, head), q(token, head) + kDim, k(t, head / kGroup), 0.0));
    weights = softmax(weights);
    std::vector<double> result(kDim, 0.0);
    for (std::size_t i = 0; i < over.size(); ++i)
        for (int c = 0; c < kDim; ++c) result[std::size_t(c)] += weights[i] * double(v(over[i], head / kGroup)[c]);
    return result;
}

double MethodRun::outputError(std::size_t step, int kvHead, const std::vector<std::int32_t>& over) const {
    double worst = 0;
    for (int h = 0; h < kGroup; ++h) {
        const auto expected = attention(position(step), kvHead * kGroup + h, over);
        for (int c = 0; c < kDim; ++c)
            worst = std::max(worst, std::abs(expected[std::size_t(c)] -
                                             steps_[step].heads[std::size_t(kvHead)].out[std::size_t(h * kDim + c)]));
    }
    return worst;
}

void expectBest(const std::vector<std::int32_t>& chosen, const std::vector<std::int32_t>& ids,
                const std::vector<double>& scores, int count, double tolerance) {
    ASSERT_EQ(ids.size(), scores.size());
    const std::size_t expected = std::min(ids.size(), std::size_t(count));
    ASSERT_EQ(chosen.size(), expected);
    if (expected == 0) return;
    std::vector<double> sorted = scores;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const double limit = sorted[expected - 1];
    const std::set<std::int32_t> in(chosen.begin(), chosen.end());
    ASSERT_EQ(in.size(), chosen.size());
    std::size_t known = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool isIn = in.count(ids[i]) > 0;
        known += isIn ? 1 : 0;
        if (isIn) {
            EXPECT_GE(scores[i], limit - tolerance) << ids[i] << " was chosen";
        } else {
            EXPECT_LE(scores[i], limit + tolerance) << ids[i] << " was left out";
        }
    }
    EXPECT_EQ(known, chosen.size()) << "something was chosen that could not be";
}

std::vector<double> softmax(std::vector<double> x) {
    const double largest = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (double& value : x) sum += value = std::exp(value - largest);
    for (double& value : x) value /= sum;
    return x;
}

} // namespace kvscope::test
