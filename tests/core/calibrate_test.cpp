// Calibration: the objective's gradient against differences, its teacher against a plain computation, and training that
// makes a random start better on text it has not seen.
#include "base/error.h"
#include "core/calibrate/calibrate.h"
#include "core/calibrate/forecast_objective.h"
#include "core/calibrate/forecast_trainer.h"
#include "core/calibrate/retaining_trainer.h"
#include "core/select/channel_importance.h"
#include "core/select/method.h"
#include "core/session/decode_session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

SelectionSpec smallSpec() {
    SelectionSpec spec;
    spec.blockSize = 16;
    spec.grid = {8, 4, 16};
    spec.budget = {1, 2, false, 3, 0};
    return spec;
}

TEST(ForecastObjective, TargetKeepsTheTeachersBestFarBlocks) {
    const SelectionSpec spec = smallSpec();
    const int position = 200; // blocks 0..12, sink 0, window 11 and 12
    std::mt19937 random(4);
    std::normal_distribution<float> normal(0.f, 2.f);
    std::vector<std::vector<float>> heads(3, std::vector<float>(220));
    for (auto& head : heads)
        for (float& value : head) value = normal(random);
    std::vector<std::span<const float>> logits(heads.begin(), heads.end());
    const ForecastTarget target = forecastTarget(spec, logits, position, 3);

    // The same in double precision, straight from the definition.
    std::vector<double> mass(position, 0.0);
    for (const auto& head : heads) {
        double sum = 0;
        for (int m = 0; m < position; ++m) sum += std::exp((head[std::size_t(m)] + head[std::size_t(m + 1)]) / 2.0);
        for (int m = 0; m < position; ++m)
            mass[std::size_t(m)] += std::exp((head[std::size_t(m)] + head[std::size_t(m + 1)]) / 2.0) / sum;
    }
    const int windows = (position + 1 - 8) / 4 + 1;
    ASSERT_EQ(target.windows, windows);
    std::vector<double> share;
    double total = 0;
    for (int c = 0; c < windows; ++c) {
        double best = 0;
        for (int m = 4 * c; m + 1 <= 4 * c + 7; ++m) best = std::max(best, mass[std::size_t(m)]);
        share.push_back(best), total += best;
    }
    for (double& s : share) s /= total;
    std::vector<std::pair<double, int>> blocks;
    for (int b = 1; b <= 10; ++b) {
        double best = 0;
        for (int c = 0; c < windows; ++c)
            if (4 * c + 8 > 16 * b && 4 * c < 16 * (b + 1)) best = std::max(best, share[std::size_t(c)]);
        blocks.push_back({-best, b});
    }
    std::sort(blocks.begin(), blocks.end());
    std::vector<std::int32_t> kept;
    double rest = 1;
    for (int i = 0; i < 3; ++i)
        for (int c = 4 * blocks[std::size_t(i)].second; c < 4 * blocks[std::size_t(i)].second + 4; ++c)
            kept.push_back(c), rest -= share[std::size_t(c)];
    std::sort(kept.begin(), kept.end());
    ASSERT_EQ(target.kept, kept);
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_NEAR(target.share[i], share[std::size_t(kept[i])], 1e-6);
    EXPECT_NEAR(target.rest, rest, 1e-5);
}

TEST(ForecastObjective, GradientIsTheSlopeOfTheLoss) {
    ForecastTarget target;
    target.windows = 9;
    target.kept = {2, 3, 7};
    target.share = {0.3f, 0.05f, 0.25f};
    target.rest = 0.4f;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> scores(9), gradient(9), unused(9);
    for (float& s : scores) s = normal(random);
    const double loss = forecastLoss(target, scores, gradient);
    EXPECT_GT(loss, 0);
    for (std::size_t i = 0; i < scores.size(); ++i) {
        const float step = 1e-2f, kept = scores[i];
        scores[i] = kept + step;
        const double up = forecastLoss(target, scores, unused);
        scores[i] = kept - step;
        const double down = forecastLoss(target, scores, unused);
        scores[i] = kept;
        EXPECT_NEAR((up - down) / double(2 * step), double(gradient[i]), 1e-4) << i; // third derivative times step^2
    }
}

TEST(ForecastObjective, TheTeacherItselfHasNoLoss) {
    ForecastTarget target;
    target.windows = 4;
    target.kept = {1, 3};
    target.share = {0.5f, 0.2f};
    target.rest = 0.3f;
    std::vector<float> gradient(4);
    const std::vector<float> scores{std::log(0.1f), std::log(0.5f), std::log(0.2f), std::log(0.2f)};
    EXPECT_NEAR(forecastLoss(target, scores, gradient), 0, 1e-6);
    for (const float g : gradient) EXPECT_NEAR(g, 0, 1e-6);
}

std::vector<TextSamples> samples(const std::shared_ptr<const Model>& model, int texts, int tokens) {
    std::mt19937 random(6);
    std::uniform_int_distribution<std::int32_t> id(2, model->config().vocab - 1);
    std::vector<TextSamples> list;
    for (int text = 0; text < texts; ++text) {
        // Repeats itself, so that there is something far away to look at.
        std::vector<std::int32_t> ids{0};
        while (int(ids.size()) < tokens)
            ids.push_back(int(ids.size()) > tokens / 2 ? ids[ids.size() - std::size_t(tokens / 2)] : id(random));
        std::vector<std::int32_t> positions;
        for (int p = tokens / 2; p < tokens; p += 7) positions.push_back(p);
        list.push_back(sampleAttention(model, ids, positions, 0));
    }
    return list;
}

TEST(AttentionSamples, HoldEveryKeyAndTheSampledRows) {
    const auto model = Model::load(kDefaultModel);
    const auto text = samples(model, 1, 700).front(); // more than one piece of the prompt
    const ModelConfig& config = model->config();
    ASSERT_EQ(text.layers.size(), std::size_t(config.layers));
    for (const LayerSamples& layer : text.layers) {
        EXPECT_EQ(layer.inputs.size(), text.positions.size() * std::size_t(config.hidden));
        EXPECT_EQ(layer.queries.size(), text.positions.size() * std::size_t(config.queryHeads * config.headDim));
        for (const auto& keys : layer.keys) EXPECT_EQ(keys.size(), std::size_t(700 * config.headDim));
    }
    // The sampled input is the normalised one: projecting it gives the key that was kept (layer 0, before rotation the
    // key of position 0 would be needed; position 0 itself is not rotated).
    const auto first = sampleAttention(model, {5, 6, 7}, {0}, 1);
    const auto kernels = makeCpuKernels(1);
    std::vector<float> key(std::size_t(config.kvHeads * config.headDim));
    const LinearTarget to{model->layer(3).k, nullptr, key.data(), int(key.size()), false};
    kernels->linear({first.layers[3].inputs.data(), 1, config.hidden, nullptr, 0.f, {&to, 1}});
    for (int g = 0; g < config.kvHeads; ++g)
        for (int c = 0; c < config.headDim; ++c)
            EXPECT_NEAR(first.layers[3].keys[std::size_t(g)][std::size_t(c)], key[std::size_t(g * config.headDim + c)],
                        1e-4f);
}

TEST(ForecastTrainer, LearnsWhatItWasNotShown) {
    const auto model = Model::load(kDefaultModel);
    const auto texts = samples(model, 4, 1200);
    const MethodEntry& method = findMethod("infllmv2");
    const SelectionSpec spec = method.make(resolveDefaults(method, model->config()), model->config());
    ForecastTraining training;
    training.steps = 40;
    ForecastReport report;
    std::vector<double> losses;
    const ForecastWeights weights =
        trainForecast(model, texts, spec, training, report, [&](const ForecastStep& s) { losses.push_back(s.loss); });
    ASSERT_EQ(losses.size(), 40u);
    EXPECT_LT(losses.back(), losses.front());
    ASSERT_EQ(report.after.size(), std::size_t(model->config().layers));
    double before = 0, after = 0;
    for (std::size_t i = 0; i < report.after.size(); ++i)
        before += report.before[i].loss, after += report.after[i].loss;
    EXPECT_LT(after, 0.9 * before) << "on the text that was left out";
    ASSERT_EQ(weights.future.size(), report.after.size());
    EXPECT_TRUE(weights.future.back().empty());
    EXPECT_EQ(weights.own.size(),
              std::size_t(model->config().kvHeads * model->config().headDim * model->config().hidden));

    ForecastReport again;
    const ForecastWeights repeated = trainForecast(model, texts, spec, training, again);
    EXPECT_EQ(repeated.own, weights.own) << "the same seed gives the same weights";
}

/// A folder of its own that goes away again.
struct TemporaryFolder {
    std::filesystem::path path;
    TemporaryFolder()
        : path(std::filesystem::temp_directory_path() / ("kvscope-calibrate-" + std::to_string(getpid()))) {
        std::filesystem::create_directories(path);
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
};

TEST(Calibrate, WhatItWritesIsWhatARunUses) {
    const TemporaryFolder folder;
    const auto model = Model::load(kDefaultModel);
    CalibrateOptions options;
    options.texts = 4;
    options.tokens = 900;
    options.queriesPerText = 24;
    options.training.steps = 3;
    options.training.farBlocks = 0;
    double last = -1;
    const CalibrateResult result = calibrate(model, options, [&](const CalibrateProgress& p) {
        EXPECT_GE(p.fraction, last);
        last = p.fraction;
    });
    EXPECT_EQ(last, 1.0);
    EXPECT_EQ(result.losses.size(), 3u);
    const auto paths = writeCalibration(folder.path.string(), *model, result);
    ASSERT_EQ(paths.size(), 3u);
    std::vector<std::string> names;
    for (const std::string& path : paths) names.push_back(std::filesystem::path(path).filename().string());
    EXPECT_EQ(names, calibrationFiles(options));
    const auto calibrated = Model::load(kDefaultModel, {}, {}, folder.path.string());
    for (int layer = 0; layer + 1 < model->config().layers; ++layer) {
        const WeightMatrix& weights = calibrated->layer(layer).forecast;
        ASSERT_EQ(weights.type, DType::F32);
        EXPECT_EQ(std::memcmp(weights.data, result.forecast->future[std::size_t(layer)].data(), weights.bytes()), 0);
    }
    const auto channels = select::readChannelImportance(paths[2], model->config());
    EXPECT_EQ(result.retainingLosses.size(), 3u);
    EXPECT_EQ(select::findRetainingHeads(*calibrated)->in, result.retaining->in) << "before those compiled in";
    EXPECT_EQ(channels.mean, result.channels->mean);
    EXPECT_EQ(channels.max, result.channels->max);
    NullSink sink;
    for (const char* method : {"sparda", "locret", "double-sparsity", "asynctls"}) {
        SessionOptions run;
        run.method = method;
        run.maxNewTokens = 3;
        DecodeSession session(calibrated, {std::vector<std::int32_t>(900, 5)}, run, sink);
        session.prefill();
        EXPECT_TRUE(session.step()) << method;
    }
    // A file that lacks a layer is refused, and so is a folder that is none.
    auto incomplete = result;
    incomplete.forecast->future[2].clear();
    writeCalibration(folder.path.string(), *model, incomplete);
    EXPECT_NO_THROW(Model::load(kDefaultModel, {}, {}, folder.path.string())) << "the checkpoint has that layer's own";
    EXPECT_THROW(Model::load(kDefaultModel, {}, {}, (folder.path / "nowhere").string()), Error);
}

TEST(Calibrate, SaysAtOnceThatAFolderTakesNoFiles) {
    const TemporaryFolder folder;
    const auto below = folder.path / "new" / "newer";
    EXPECT_NO_THROW(checkCalibrationFolder(below.string()));
    EXPECT_FALSE(std::filesystem::exists(folder.path / "new")) << "a calibration that is cancelled leaves nothing";
    std::ofstream(folder.path / "file") << "x";
    EXPECT_THROW(checkCalibrationFolder((folder.path / "file").string()), Error);
    EXPECT_THROW(checkCalibrationFolder((folder.path / "file" / "below").string()), Error);
    if (::geteuid() == 0) return; // root may write anywhere
    std::filesystem::permissions(folder.path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    EXPECT_THROW(checkCalibrationFolder(below.string()), Error);
    std::filesystem::permissions(folder.path, std::filesystem::perms::owner_all);
}

TEST(Calibrate, ReadsTheTextItWasGivenOrItsOwn) {
    const auto model = Model::load(kDefaultModel);
    CalibrateOptions options;
    options.forecast = options.retaining = false;
    options.texts = 2;
    options.tokens = 1400;
    options.queriesPerText = 8;
    EXPECT_TRUE(calibrate(model, options).channels.has_value()) << "one piece of the document, one prompt with needles";
    options.text = "";
    try {
        calibrate(model, options);
        FAIL() << "an empty text was taken for none";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()), "the text has 0 tokens, one piece takes 1400");
    }
}

/// Reads a text with full attention and shows every piece to the samples.
RetainingSamples retainingSamples(const std::shared_ptr<const Model>& model, Kernels& kernels, int tokens, int runs,
                                  unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> ids{0};
    while (int(ids.size()) < tokens)
        ids.push_back(std::int32_t(2 + random() % std::uint32_t(model->config().vocab - 2)));
    RetainingSamples samples(model->config(), tokens, runs, kernels);
    sampleAttention(model, ids, {0}, 0, {}, {}, [&](const PromptPiece& piece) { samples.observe(piece); });
    return samples;
}

TEST(RetainingTrainer, LabelsAreTheLargestLogitOfAnyLaterQuery) {
    const auto model = Model::load(kDefaultModel);
    const ModelConfig& config = model->config();
    constexpr int kTokens = 700; // two pieces of the engine
    const auto kernels = makeCpuKernels(2);
    const RetainingSamples samples = retainingSamples(model, *kernels, kTokens, 5, 8);
    ASSERT_EQ(samples.samples(), 5 * RetainingSamples::kRun);
    std::mt19937 random(8);
    std::vector<std::int32_t> ids{0}, everyone;
    while (int(ids.size()) < kTokens) ids.push_back(std::int32_t(2 + random() % std::uint32_t(config.vocab - 2)));
    for (int i = 0; i < kTokens; ++i) everyone.push_back(i);
    const TextSamples all = sampleAttention(model, ids, everyone, 0);
    const auto dim = std::size_t(config.headDim), group = std::size_t(config.group());
    for (const int layer : {0, 3, config.layers - 1})
        for (int s = 0; s < samples.samples(); s += 7)
            for (std::size_t g = 0; g < std::size_t(config.kvHeads); ++g) {
                const auto& rows = all.layers[std::size_t(layer)];
                const float* key = rows.keys[g].data() + std::size_t(samples.position(s)) * dim;
                double largest = -INFINITY;
                for (int query = samples.position(s) + 1; query < kTokens; ++query)
                    for (std::size_t h = g * group; h < (g + 1) * group; ++h) {
                        const float* q =
                            rows.queries.data() + (std::size_t(query) * std::size_t(config.queryHeads) + h) * dim;
                        double product = 0;
                        for (std::size_t c = 0; c < dim; ++c) product += double(q[c]) * double(key[c]);
                        largest = std::max(largest, product / std::sqrt(double(dim)));
                    }
                EXPECT_NEAR(samples.layer(layer).labels[std::size_t(s) * std::size_t(config.kvHeads) + g], largest,
                            1e-4 * (1 + std::abs(largest)))
                    << "layer " << layer << " sample " << s;
            }
}

TEST(RetainingTrainer, LearnsWhatItWasNotShown) {
    const auto model = Model::load(kDefaultModel);
    const auto kernels = makeCpuKernels(2);
    std::vector<RetainingSamples> texts;
    for (unsigned text = 0; text < 4; ++text) texts.push_back(retainingSamples(model, *kernels, 500, 8, 20 + text));
    RetainingTraining training;
    training.steps = 60;
    training.width = 32;
    training.learningRate = 3e-3;
    RetainingReport report;
    std::vector<double> left;
    const auto heads = trainRetainingHeads(model->config(), texts, training, report, [&](const RetainingStep& step) {
        if (!std::isnan(step.testLoss)) left.push_back(step.testLoss);
    });
    EXPECT_EQ(heads.width, 32);
    EXPECT_EQ(left.size(), 20u);
    EXPECT_EQ(report.testTokens, 8 * RetainingSamples::kRun);
    double before = 0, after = 0, kept = 0;
    for (std::size_t layer = 0; layer < report.after.size(); ++layer) {
        before += report.before[layer].loss;
        after += report.after[layer].loss;
        kept += report.after[layer].kept / double(report.after.size());
    }
    EXPECT_LT(after, 0.7 * before);
    EXPECT_GT(kept, 0.3) << "25 % by chance";
    EXPECT_NEAR(left.back(), after / double(report.after.size()), 1e-6);
    // The loss follows its definition: the reported one of a layer from the weights, in float64.
    const RetainingSamples& test = texts.back();
    const auto inputs = std::size_t(heads.inputs), kvHeads = std::size_t(heads.kvHeads);
    double loss = 0;
    for (std::size_t s = 0; s < std::size_t(test.samples()); ++s) {
        std::vector<double> hidden;
        for (std::size_t w = 0; w < std::size_t(heads.width); ++w) {
            double z = 0;
            for (std::size_t c = 0; c < inputs; ++c)
                z += double(heads.inOf(LayerId{2})[w * inputs + c]) * double(test.layer(2).inputs[s * inputs + c]);
            hidden.push_back(z / (1 + std::exp(-z)));
        }
        for (std::size_t g = 0; g < kvHeads; ++g) {
            double score = 0;
            for (std::size_t w = 0; w < hidden.size(); ++w)
                score += double(heads.outOf(LayerId{2})[g * hidden.size() + w]) * hidden[w];
            const double off = std::abs(score - double(test.layer(2).labels[s * kvHeads + g]));
            loss += (off < 1 ? off * off / 2 : off - 0.5) / double(std::size_t(test.samples()) * kvHeads);
        }
    }
    EXPECT_NEAR(report.after[2].loss, loss, 1e-4 * (1 + loss));
}

TEST(RetainingTrainer, SaysWhatIsMissing) {
    const auto model = Model::load(kDefaultModel);
    const auto kernels = makeCpuKernels(1);
    std::vector<RetainingSamples> one;
    one.push_back(retainingSamples(model, *kernels, 200, 2, 3));
    RetainingReport report;
    EXPECT_THROW(trainRetainingHeads(model->config(), one, {}, report), Error);
    ModelConfig latent = model->config();
    latent.latent.emplace();
    one.push_back(retainingSamples(model, *kernels, 200, 2, 4));
    EXPECT_THROW(trainRetainingHeads(latent, one, {}, report), Error);
}

TEST(ForecastTrainer, TheBackbonesScoreAsTeacherIsFoundBetterThanAtTheStart) {
    const auto model = Model::load(kDefaultModel);
    const MethodEntry& method = findMethod("infllmv2");
    SelectionSpec spec = method.make(resolveDefaults(method, model->config()), model->config());
    ForecastTraining training;
    training.teacher = ForecastTeacher::Backbone;
    training.steps = 120;
    training.farBlocks = 3;
    ForecastReport report;
    trainForecast(model, samples(model, 6, 1200), spec, training, report);
    double before = 0, after = 0;
    for (std::size_t layer = 0; layer < report.after.size(); ++layer) {
        before += report.before[layer].loss;
        after += report.after[layer].loss;
    }
    EXPECT_LT(after, before);
}

TEST(ForecastTrainer, SaysWhatIsMissing) {
    const auto model = Model::load(kDefaultModel);
    const MethodEntry& method = findMethod("infllmv2");
    const SelectionSpec spec = method.make(resolveDefaults(method, model->config()), model->config());
    ForecastReport report;
    EXPECT_THROW(trainForecast(model, samples(model, 1, 600), spec, {}, report), Error);
    EXPECT_THROW(trainForecast(model, samples(model, 2, 200), spec, {}, report), Error) << "nothing far in 200 tokens";
    std::stop_source stop;
    stop.request_stop();
    EXPECT_THROW(trainForecast(model, samples(model, 2, 900), spec, {}, report, {}, stop.get_token()), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
