#include "core/calibrate/calibrate.h"

#include "base/error.h"
#include "base/indexed.h"
#include "core/calibrate/forecast_trainer.h"
#include "core/calibrate/retaining_trainer.h"
#include "core/model/mapped_watch.h"
#include "core/model/safetensors.h"
#include "core/model/safetensors_writer.h"
#include "core/prompt/prompts.h"
#include "core/select/channel_importance.h"
#include "core/select/method.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <unistd.h>

namespace kvscope {
namespace {

constexpr double kReadingWork = 0.4, kForecastWork = 0.6, kRetainingWork = 0.3; // of the progress
constexpr std::int64_t kMostTokens = 1 << 28;

void check(const CalibrateOptions& options, const ModelConfig& config) {
    const auto require = [](bool condition, const std::string& message, const std::string& hint) {
        if (!condition) throw Error(ErrorKind::BadInput, message, hint);
    };
    require(options.forecast || options.channels || options.retaining, "there is nothing to calibrate",
            "ask for forecast, retaining or channels");
    require(options.texts >= 2 && options.texts <= 4096, fmt::format("{} texts are out of range", options.texts),
            "use 2 to 4096");
    require(options.tokens >= 64 && options.tokens <= config.maxPositions,
            fmt::format("texts of {} tokens are out of range", options.tokens),
            fmt::format("use 64 to the model's {}", config.maxPositions));
    require(std::int64_t(options.tokens) * options.texts <= kMostTokens,
            fmt::format("{} texts of {} tokens are too much for one calibration", options.texts, options.tokens),
            fmt::format("use at most {} tokens in all", kMostTokens));
    require(options.queriesPerText >= 1 && options.queriesPerText <= options.tokens,
            fmt::format("{} queries in a text of {} tokens are out of range", options.queriesPerText, options.tokens),
            "use 1 to the text's tokens");
    require(options.training.steps >= 1 && options.training.steps <= 1000000,
            fmt::format("{} training steps are out of range", options.training.steps), "use 1 to 1000000");
    require(options.training.batch >= 1 && options.training.batch <= 65536,
            fmt::format("a batch of {} queries is out of range", options.training.batch), "use 1 to 65536");
    require(options.training.learningRate > 0 && options.training.learningRate <= 1,
            fmt::format("a learning rate of {} is out of range", options.training.learningRate),
            "use more than 0, at most 1");
}

/// Cuts the text into pieces of exactly `tokens` tokens; without a text of the person's, every other piece is a prompt
/// with needles.
std::vector<std::vector<std::int32_t>> pieces(const Tokenizer& tokenizer, const CalibrateOptions& options) {
    const auto tokens = std::size_t(options.tokens);
    std::vector<std::vector<std::int32_t>> list;
    const int slices = options.text ? options.texts : (options.texts + 1) / 2;
    // The built-in document ends with a whole sentence, short of the length asked for: twice the length of a piece
    // contains one piece for sure.
    const std::string text =
        options.text ? *options.text : longDocumentPrompt(tokenizer, options.tokens * std::max(2, slices));
    const auto ids = tokenizer.encode(text, false, false);
    if (ids.size() < tokens)
        throw Error(ErrorKind::BadInput,
                    fmt::format("the text has {} tokens, one piece takes {}", ids.size(), options.tokens),
                    "give a longer text or shorter pieces");
    // The slices are spread evenly over the text, and overlap where it is short.
    const std::size_t room = ids.size() - tokens;
    for (int i = 0; i < slices; ++i) {
        const auto begin =
            ids.begin() + std::ptrdiff_t(slices > 1 ? room * std::size_t(i) / std::size_t(slices - 1) : 0);
        list.emplace_back(begin, begin + std::ptrdiff_t(tokens));
    }
    for (int i = slices; i < options.texts; ++i) {
        NeedleOptions needle;
        needle.tokens = options.tokens;
        needle.seed = options.training.seed * 1000 + std::uint64_t(i);
        needle.depth = double(i - slices + 1) / double(options.texts - slices + 1);
        auto prompt = tokenizer.encode(makeNeedlePrompt(tokenizer, needle).text, true, true);
        // Goes between the slices, so that the last pieces, which the report leaves out of training, are of both kinds.
        list.insert(list.begin() + 2 * (i - slices) + 1, std::move(prompt));
    }
    return list;
}

[[noreturn]] void refuseFolder(const std::string& folder) {
    throw Error(ErrorKind::Storage, fmt::format("the folder {} cannot be made", folder), "choose another one");
}

std::vector<std::int32_t> positionsOf(int tokens, int count) {
    std::vector<std::int32_t> positions;
    const int first = tokens / 4; // earlier queries see hardly any block beyond sink and window
    for (int i = 0; i < count; ++i) {
        const int position = first + int(std::int64_t(tokens - 1 - first) * (i + 1) / count);
        if (positions.empty() || positions.back() < position) positions.push_back(position);
    }
    return positions;
}

} // namespace

CalibrateResult calibrate(const std::shared_ptr<const Model>& model, const CalibrateOptions& options,
                          const std::function<void(const CalibrateProgress&)>& progress, const std::stop_token& stop) {
    const ModelConfig& config = model->config();
    check(options, config);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto say = [&](CalibrateProgress now) {
        if (progress) progress(now);
    };
    const double work =
        kReadingWork + (options.forecast ? kForecastWork : 0) + (options.retaining ? kRetainingWork : 0);
    double reached = 0; // how much of `work` is done
    // The pooling grid, the forced blocks and the query-aware budget with which SparDA will run.
    const MethodEntry& sparda = findMethod("sparda");
    const SelectionSpec spec = sparda.make(resolveDefaults(sparda, config), config);
    ForecastTraining training = options.training;
    if (training.farBlocks <= 0) training.farBlocks = std::max(1, spec.budget.queryAware);

    const KvShape shape{config.layers, config.kvHeads, config.headDim, config.valueDim()};
    Numbered<select::ChannelObserver> observers(config.layers, select::ChannelObserver(shape, config.group()));
    std::vector<TextSamples> texts;
    std::vector<RetainingSamples> tokens;
    const auto kernels = makeCpuKernels(training.threads);
    const auto ids = pieces(model->tokenizer(), options);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto part = [&](double fraction, std::string_view) {
            say({CalibrateStage::Reading, kReadingWork / work * (double(i) + fraction) / double(ids.size()),
                 "reading texts", 0, 0, nan});
        };
        const int length = int(ids[i].size());
        if (options.retaining)
            tokens.emplace_back(config, length, std::max(1, 2 * options.queriesPerText / RetainingSamples::kRun),
                                *kernels);
        TextSamples samples = sampleAttention(model, ids[i], positionsOf(length, options.queriesPerText),
                                              training.threads, part, stop, [&](const PromptPiece& piece) {
                                                  observers[index(piece.layer)].observe(piece.rows, piece.n);
                                                  if (options.retaining) tokens.back().observe(piece);
                                              });
        if (options.retaining) tokens.back().forgetKeys();
        if (options.forecast) texts.push_back(std::move(samples));
    }
    reached = kReadingWork;
    CalibrateResult result;
    if (options.channels) {
        result.channels.emplace(select::ChannelImportance{config.layers, config.kvHeads, config.headDim, {}, {}});
        for (const select::ChannelObserver& observer : observers)
            for (const KvHeadId head : idsUpTo<KvHeadId>(config.kvHeads)) {
                const auto mean = observer.mean(head), max = observer.max(head);
                result.channels->mean.insert(result.channels->mean.end(), mean.begin(), mean.end());
                result.channels->max.insert(result.channels->max.end(), max.begin(), max.end());
            }
    }
    if (options.forecast) {
        say({CalibrateStage::Forecast, reached / work, "naming what the Forecast should find", 0, 0, nan});
        result.forecast = trainForecast(
            model, texts, spec, training, result.report,
            [&](const ForecastStep& step) {
                result.losses.push_back(step.loss);
                say({CalibrateStage::Forecast, (reached + kForecastWork * step.step / step.steps) / work,
                     "training the Forecast", step.step, step.loss, step.testLoss});
            },
            stop);
        reached += kForecastWork;
    }
    if (options.retaining) {
        RetainingTraining heads = options.heads;
        heads.steps = training.steps;
        heads.seed = training.seed;
        heads.threads = training.threads;
        result.retaining = trainRetainingHeads(
            config, tokens, heads, result.retainingReport,
            [&](const RetainingStep& step) {
                result.retainingLosses.push_back(step.loss);
                say({CalibrateStage::Retaining, (reached + kRetainingWork * step.step / step.steps) / work,
                     "training retaining heads", step.step, step.loss, step.testLoss});
            },
            stop);
    }
    refuseWrittenWeights(*model);
    say({CalibrateStage::Done, 1, "done", 0, result.losses.empty() ? 0 : result.losses.back(), nan});
    return result;
}

std::vector<std::string> calibrationFiles(const CalibrateOptions& options) {
    std::vector<std::string> names;
    if (options.forecast) names.emplace_back(kForecastFile);
    if (options.retaining) names.emplace_back(select::kRetainingFile);
    if (options.channels) names.emplace_back(select::kChannelImportanceFile);
    return names;
}

void checkCalibration(const std::string& folder) {
    namespace fs = std::filesystem;
    const std::vector<std::string> names = calibrationFiles({});
    std::error_code failed;
    if (!fs::is_directory(folder, failed))
        throw Error(ErrorKind::BadInput, fmt::format("{} is not a folder", folder),
                    "give the folder that kvscope-cli calibrate wrote to");
    bool found = false;
    for (const std::string& name : names) {
        const fs::path path = fs::path(folder) / name;
        if (!fs::exists(path, failed)) continue;
        found = true;
        const MappedFile file(path.string());
        (void)SafetensorsFile(file.bytes(), path.string());
    }
    if (!found)
        throw Error(
            ErrorKind::BadInput,
            fmt::format("{} holds nothing that kvscope-cli calibrate writes: {}", folder, fmt::join(names, ", ")),
            "give the folder that it wrote to, or leave --calibration out");
}

void checkCalibrationFolder(const std::string& folder) {
    namespace fs = std::filesystem;
    std::error_code failed;
    fs::path there = fs::absolute(folder, failed);
    while (!fs::exists(there, failed) && there.has_relative_path()) there = there.parent_path();
    if (!fs::is_directory(there, failed)) refuseFolder(folder);
    if (::access(there.c_str(), W_OK | X_OK) != 0)
        throw Error(ErrorKind::Storage,
                    fmt::format("nothing can be written to the folder {}: {}", folder, std::strerror(errno)),
                    "choose another folder, or change its permissions");
}

std::vector<std::string> writeCalibration(const std::string& folder, const Model& model,
                                          const CalibrateResult& result) {
    namespace fs = std::filesystem;
    std::error_code failed;
    fs::create_directories(folder, failed);
    if (failed) refuseFolder(folder);
    const ModelConfig& config = model.config();
    std::vector<std::string> paths;
    if (result.forecast) {
        std::vector<NamedTensor> tensors;
        const std::vector<std::int64_t> shape{config.kvHeads * config.headDim, config.hidden};
        for (std::size_t layer = 0; layer < result.forecast->future.size(); ++layer)
            if (!result.forecast->future[layer].empty())
                tensors.push_back({fmt::format("model.layers.{}.self_attn.q_future_proj.weight", layer), shape,
                                   result.forecast->future[layer]});
        tensors.push_back({"model.layers.0.self_attn.q_curr_proj.weight", shape, result.forecast->own});
        paths.push_back((fs::path(folder) / kForecastFile).string());
        writeSafetensors(paths.back(), tensors, {{"base_model", model.name()}, {"format", "kvscope.forecast"}});
    }
    if (result.retaining) {
        paths.push_back((fs::path(folder) / select::kRetainingFile).string());
        select::writeRetainingHeads(paths.back(), *result.retaining);
    }
    if (result.channels) {
        paths.push_back((fs::path(folder) / select::kChannelImportanceFile).string());
        select::writeChannelImportance(paths.back(), *result.channels);
    }
    return paths;
}

} // namespace kvscope
