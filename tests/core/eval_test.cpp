// Perplexity against the reference's logits, attention mass and recall against a float64 attention written here.
#include "core/eval/eval.h"

#include "base/error.h"
#include "core/prompt/prompts.h"
#include "tests/core/backend.h"
#include "tests/core/golden_file.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> loaded = Model::load(kDefaultModel);
    return loaded;
}

double nllOf(std::span<const float> logits, std::int32_t id) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double(logit));
    return std::log(sum) - double(logits[std::size_t(id)]);
}

class TextScoreOf : public testing::TestWithParam<const char*> {};

TEST_P(TextScoreOf, IsThatOfTheReferencesLogits) {
    const std::string method = GetParam();
    const std::string fixture = test::source("tests/golden/golden_mid.safetensors");
    if (!std::filesystem::exists(fixture)) GTEST_SKIP() << "this checkout leaves out " << fixture;
    const test::GoldenFile golden(fixture);
    const auto prompt = golden.ints("prompt_ids"), generated = golden.ints(method + ".generated_ids");
    auto text = prompt;
    text.insert(text.end(), generated.begin(), generated.end());
    SessionOptions options;
    options.method = method;
    const TextScore score = scoreText(model(), options, text, int(prompt.size()), int(generated.size()));
    ASSERT_EQ(score.nll.size(), 25u);
    const auto first = golden.floats("prefill.logits"), rest = golden.floats(method + ".logits");
    const std::size_t vocab = first.size();
    EXPECT_NEAR(score.nll[0], nllOf(first, generated[0]), 2e-3); // logits agree to 1e-3
    double sum = score.nll[0];
    for (std::size_t i = 1; i < score.nll.size(); ++i) {
        // The reference's are rounded to half precision.
        EXPECT_NEAR(score.nll[i], nllOf(std::span(rest).subspan((i - 1) * vocab, vocab), generated[i]), 2e-2) << i;
        sum += score.nll[i];
    }
    EXPECT_DOUBLE_EQ(score.perplexity(), std::exp(sum / 25));
    EXPECT_DOUBLE_EQ(score.perplexity(0, 1), std::exp(score.nll[0]));
    EXPECT_TRUE(std::isnan(TextScore{}.perplexity()));
}

INSTANTIATE_TEST_SUITE_P(Methods, TextScoreOf, testing::Values("full", "nosa", "quest"));

/// Attention of the first layer, which depends on nothing but the tokens, in float64 from the weights.
class FirstLayer {
public:
    explicit FirstLayer(std::vector<std::int32_t> ids) : ids_(std::move(ids)), config_(model()->config()) {
        for (std::size_t t = 0; t < ids_.size(); ++t) {
            const std::vector<double> x = normed(ids_[t]);
            keys_.push_back(rotated(product(weights().k, x), int(t)));
            if (t + 1 == ids_.size()) query_ = rotated(product(weights().q, x), int(t));
        }
    }
    /// [block] share of the last token's attention, mean over the query heads of a KV head.
    std::vector<double> masses(int kvHead, int blockSize) const {
        std::vector<double> result((ids_.size() + std::size_t(blockSize) - 1) / std::size_t(blockSize));
        const int dim = config_.headDim;
        for (int h = kvHead * config_.group(); h < (kvHead + 1) * config_.group(); ++h) {
            std::vector<double> weight;
            for (const std::vector<double>& key : keys_)
                weight.push_back(std::exp(std::inner_product(query_.begin() + h * dim, query_.begin() + (h + 1) * dim,
                                                             key.begin() + kvHead * dim, 0.) /
                                          std::sqrt(double(dim))));
            const double all = std::accumulate(weight.begin(), weight.end(), 0.);
            for (std::size_t t = 0; t < weight.size(); ++t)
                result[t / std::size_t(blockSize)] += weight[t] / all / config_.group();
        }
        return result;
    }

private:
    static const LayerWeights& weights() { return model()->layer(0); }
    static double at(const WeightMatrix& m, std::size_t i) {
        if (m.type == DType::F32) return double(static_cast<const float*>(m.data)[i]);
        EXPECT_EQ(m.type, DType::BF16);
        std::uint16_t half = 0;
        std::memcpy(&half, static_cast<const char*>(m.data) + 2 * i, 2);
        const std::uint32_t bits = std::uint32_t(half) << 16;
        float value = 0;
        std::memcpy(&value, &bits, 4);
        return double(value);
    }
    std::vector<double> normed(std::int32_t id) const {
        std::vector<double> x(std::size_t(config_.hidden));
        double squares = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = at(model()->embedding(), std::size_t(id) * x.size() + i);
            squares += x[i] * x[i];
        }
        const double scale = 1 / std::sqrt(squares / double(x.size()) + double(config_.rmsNormEps));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] *= scale * double(weights().inputNorm[i]);
        return x;
    }
    static std::vector<double> product(const WeightMatrix& m, const std::vector<double>& x) {
        std::vector<double> y(std::size_t(m.rows));
        for (std::size_t r = 0; r < y.size(); ++r)
            for (std::size_t c = 0; c < x.size(); ++c) y[r] += at(m, r * x.size() + c) * x[c];
        return y;
    }
    std::vector<double> rotated(std::vector<double> x, int position) const {
        const auto dim = std::size_t(config_.headDim), half = dim / 2;
        for (std::size_t head = 0; head < x.size(); head += dim)
            for (std::size_t i = 0; i < half; ++i) {
                const double angle = position * std::pow(config_.rope.theta, -double(i) / double(half));
                const double a = x[head + i], b = x[head + half + i];
                x[head + i] = a * std::cos(angle) - b * std::sin(angle);
                x[head + half + i] = b * std::cos(angle) + a * std::sin(angle);
            }
        return x;
    }

    std::vector<std::int32_t> ids_;
    const ModelConfig& config_;
    std::vector<std::vector<double>> keys_;
    std::vector<double> query_;
};

struct Observed final : OracleObserver {
    std::vector<OracleRecord> records;
    void observe(const OracleRecord& record) override { records.push_back(record); }
};

TEST(Oracle, FindsTheBestBlocksAsAFloat64AttentionDoes) {
    NeedleOptions needle;
    needle.tokens = 1300;
    const auto prompt = model()->tokenizer().encode(makeNeedlePrompt(model()->tokenizer(), needle).text);
    SessionOptions options;
    options.backend = test::backend();
    options.method = "nosa";
    options.settings = {{"bias", "none"}, {"total_blocks", "10"}, {"window_blocks", "3"}, {"select_blocks", "3"}};
    options.maxNewTokens = 2;
    options.stopAtEos = false;
    options.oracle = true;
    Observed observed;
    options.oracleObserver = &observed;
    CollectingSink sink;
    DecodeSession session(model(), {prompt}, options, sink);
    session.prefill();
    ASSERT_TRUE(session.step());
    auto ids = prompt;
    ids.push_back(session.generated().front().front());
    const FirstLayer attention(ids);
    const StepRecord& step = sink.steps.back();
    int compared = 0;
    for (const OracleRecord& got : observed.records) {
        if (got.layer != 0) continue;
        const auto selection = std::find_if(step.selections.begin(), step.selections.end(),
                                            [&](const auto& s) { return s.layer == 0 && s.kvHead == got.kvHead; });
        ASSERT_NE(selection, step.selections.end());
        const std::vector<double> masses = attention.masses(got.kvHead, 64);
        ASSERT_EQ(masses.size(), 21u);
        std::set<int> selected, near;
        for (const PackedBlock block : step.blocksOf(*selection)) {
            selected.insert(block.id());
            if (block.origin() == Origin::Sink || block.origin() == Origin::Window) near.insert(block.id());
        }
        const auto massOf = [&](const std::set<int>& blocks) {
            double sum = 0;
            for (const int b : blocks) sum += masses[std::size_t(b)];
            return sum;
        };
        const auto best = [&](std::size_t count, const std::set<int>& without) {
            std::vector<std::pair<double, int>> order;
            for (int b = 0; b < 21; ++b)
                if (!without.contains(b)) order.emplace_back(-masses[std::size_t(b)], b);
            std::sort(order.begin(), order.end());
            std::set<int> result;
            for (std::size_t i = 0; i < count; ++i) result.insert(order[i].second);
            return result;
        };
        const auto common = [&](const std::set<int>& blocks) {
            return double(std::count_if(blocks.begin(), blocks.end(), [&](int b) { return selected.contains(b); })) /
                   double(blocks.size());
        };
        const std::size_t far = selected.size() - near.size();
        const double allFar = 1 - massOf(near);
        ASSERT_EQ(selected.size(), 10u);
        ASSERT_GT(far, 2u);
        // The CPU's attention is float32. The GPU's keys and queries are bf16: 8 bits, so logits of up to 10 move by up
        // to 0.04 each way, and near the edge a block may rank one place off.
        const double close = test::onCuda() ? 2e-2 : 1e-4, oneBlock = test::onCuda() ? 1.01 : 1e-6;
        EXPECT_EQ(got.selected, 10);
        EXPECT_EQ(got.far, std::int32_t(far));
        EXPECT_NEAR(got.mass, massOf(selected), close);
        EXPECT_NEAR(got.mass, selection->mass, 1e-4);
        EXPECT_NEAR(got.bestMass, massOf(best(10, {})), close);
        EXPECT_NEAR(got.recall, common(best(10, {})), oneBlock / 10);
        EXPECT_NEAR(got.farMass, (massOf(selected) - massOf(near)) / allFar, 10 * close);
        EXPECT_NEAR(got.farBestMass, massOf(best(far, near)) / allFar, 10 * close);
        EXPECT_NEAR(got.farRecall, common(best(far, near)), oneBlock / double(far));
        ++compared;
    }
    EXPECT_EQ(compared, 2) << "KV heads";
    EXPECT_EQ(observed.records.size(), 16u) << "8 layers, 2 KV heads";
    for (const OracleRecord& r : observed.records) {
        EXPECT_LE(r.mass, r.bestMass + 1e-5f);
        EXPECT_LE(r.farMass, r.farBestMass + 1e-5f);
    }
}

TEST(Eval, MeasuresEveryPartAndCountsRight) {
    const auto text = evalText(model()->tokenizer(), 640);
    ASSERT_GE(text.size(), 640u);
    EvalOptions options;
    options.depths = {0.2, 0.8};
    options.decodeTokens = 10;
    options.textTokens = 40;
    double last = -1;
    const EvalResult sparse =
        evaluate(model(), {"nosa", {{"total_blocks", "6"}, {"window_blocks", "2"}, {"select_blocks", "2"}}}, 600, text,
                 options, [&](double fraction, std::string_view) {
                     EXPECT_GE(fraction, last);
                     last = fraction;
                 });
    EXPECT_EQ(last, 1);
    EXPECT_EQ(sparse.budgetBlocks, 6);
    ASSERT_EQ(sparse.needles.size(), 2u);
    EXPECT_EQ(sparse.needles[1].depth, 0.8);
    EXPECT_EQ(sparse.decodeSteps, 2 * 9);
    EXPECT_GT(sparse.tokensPerSecond(), sparse.tokensPerSecondWithLink());
    // All decode steps of the text select: 39, 8 layers, 2 KV heads.
    EXPECT_EQ(sparse.selection.selections, 39 * 16);
    EXPECT_LT(sparse.selection.recall, 1);
    EXPECT_LT(sparse.selection.mass, sparse.selection.bestMass);
    EXPECT_EQ(sparse.text.nll.size(), 40u);

    const EvalResult full = evaluate(model(), {"full", {}}, 600, text, options);
    EXPECT_TRUE(full.dense);
    EXPECT_EQ(full.selection.selections, 0);
    EXPECT_EQ(full.accuracy(), 1) << "600 tokens are easy for full attention";
    EXPECT_EQ(full.misses, 0);
    SessionOptions plain;
    plain.method = "full";
    EXPECT_EQ(scoreText(model(), plain, text, 600, 40).nll, full.text.nll);

    // A budget of all blocks is full attention, with the same bias.
    options.depths.clear();
    const EvalResult all = evaluate(model(), {"nosa", {{"total_blocks", "16"}}}, 600, text, options);
    EXPECT_NEAR(all.selection.mass, 1, 1e-5);
    EXPECT_EQ(all.selection.recall, 1);
    EXPECT_TRUE(std::isnan(all.accuracy()));
    EXPECT_TRUE(std::isnan(all.tokensPerSecond()));
}

TEST(Eval, RefusesAndStops) {
    const auto text = evalText(model()->tokenizer(), 300);
    EXPECT_THROW(scoreText(model(), {}, text, 290, 200), Error);
    EXPECT_THROW(evaluate(model(), {"nosa", {{"total_blocks", "1"}}}, 200, text, {}), Error);
    EXPECT_THROW(evaluate(model(), {"magic", {}}, 200, text, {}), Error);
    std::stop_source stop;
    stop.request_stop();
    try {
        evaluate(model(), {"nosa", {}}, 600, text, {}, {}, stop.get_token());
        FAIL() << "it was to stop";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Cancelled);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
