// What the tests of dsa and msa share: checkpoints whose indexers choose what is attended, with what the transformers
// library chooses and computes (tools/make_sparse_checkpoints.py, tools/make_block_sparse_checkpoints.py).
#pragma once

#include "base/error.h"
#include "core/session/decode_session.h"
#include "core/session/row_engine.h"
#include "tests/core/files.h"
#include "tests/core/golden_file.h"
#include "tests/core/library_reference.h"
#include "tests/core/small_session.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvscope::test {

using Ids = std::vector<std::int32_t>;

constexpr double kTie = 1e-5; // of the largest score: what float32 sums in another order cannot tell apart
constexpr int kEvery = 17;    // queries of a prompt, of which the reference has one

struct Outcome {
    std::vector<Ids> ids;                   // [sequence]
    std::vector<std::vector<float>> logits; // [step] of sequence 0, the prompt's last position first
    std::vector<StepRecord> steps;          // the prompt first
    SessionSummary summary;
    int blockSize = 0; // of the trace
    std::map<std::string, std::string> meta;
};

inline SessionOptions optionsOf(const std::string& method, int newTokens) {
    SessionOptions options;
    options.method = method;
    options.stopAtEos = false;
    options.threads = 1;
    options.maxNewTokens = newTokens;
    return options;
}

/// Greedy when `forced` is empty.
inline Outcome decode(const std::shared_ptr<const Model>& model, const std::vector<Ids>& prompts,
                      const SessionOptions& options, const Ids& forced = {}) {
    CollectingSink sink;
    DecodeSession session(model, prompts, options, sink);
    Outcome out;
    const auto keep = [&] {
        if (const float* logits = session.logits(0)) out.logits.emplace_back(logits, logits + model->config().vocab);
    };
    session.prefill();
    keep();
    for (std::size_t next = 0;; ++next) {
        if (next < forced.size()) session.forceNextTokens({forced[next]});
        if (!session.step()) break;
        keep();
    }
    out.ids = session.generated();
    out.summary = session.summary();
    session.end(RunStatus::Finished);
    out.steps = std::move(sink.steps);
    out.blockSize = sink.info.blockSize;
    out.meta = {sink.info.meta.begin(), sink.info.meta.end()};
    return out;
}

/// What a KV head of a layer attends to in a step; empty where it attends to everything.
inline Ids chosenIn(const StepRecord& step, int layer, int kvHead) {
    for (const SelectionRecord& selection : step.selections)
        if (selection.layer == layer && selection.kvHead == kvHead && selection.sequence == 0)
            return idsOf(step, selection);
    return {};
}

/// Choices of the reference, [query, layers, budget] or [query, layers, KV heads, budget], and their margins, which
/// have no budget.
class LibraryChoices {
public:
    LibraryChoices(const GoldenFile& file, const std::string& prefix)
        : ids_(file.ints(prefix + "selected")), margins_(file.floats(prefix + "margin")) {
        const std::vector<std::int64_t> shape = file.shape(prefix + "selected");
        marginAt_ = Extents<int, int, int>(int(shape[0]), int(shape[1]), shape.size() == 4 ? int(shape[2]) : 1);
        width_ = int(shape.back());
    }
    int queries() const { return marginAt_.length(0); }
    int layers() const { return marginAt_.length(1); }
    int kvHeads() const { return marginAt_.length(2); }
    /// `layer` counts those that the reference lists.
    Ids of(int query, int layer, int kvHead) const {
        const auto begin = ids_.begin() + std::ptrdiff_t(marginAt_.offset(query, layer, kvHead)) * width_;
        return {begin, std::find(begin, begin + width_, -1)};
    }
    double margin(int query, int layer, int kvHead) const {
        return double(margins_[marginAt_.offset(query, layer, kvHead)]);
    }

private:
    Ids ids_;
    std::vector<float> margins_;
    Extents<int, int, int> marginAt_;
    int width_ = 0;
};

/// A checkpoint of its parameter's folder, beside the library's results that lie there.
class IndexedFamily : public ::testing::TestWithParam<std::string> {
protected:
    explicit IndexedFamily(std::string method)
        : reference_(GetParam() + "/reference.safetensors"), model_(Model::load(GetParam())),
          prompt_(reference_.ints("prompt_ids")), method_(std::move(method)) {
        if (reference_.has("layers"))
            layers_ = reference_.ints("layers");
        else
            for (int layer = 0; layer < model_->config().layers; ++layer) layers_.push_back(layer);
    }
    SessionOptions options(int newTokens) const { return optionsOf(method_, newTokens); }

    /// Compares a step's choices with the reference's. @return how many differ where the reference has a tie
    int compare(const StepRecord& step, const LibraryChoices& expected, int query) const {
        int ties = 0;
        for (int layer = 0; layer < expected.layers(); ++layer)
            for (int g = 0; g < expected.kvHeads(); ++g) {
                const int at = layers_.at(std::size_t(layer));
                SCOPED_TRACE("layer " + std::to_string(at) + ", KV head " + std::to_string(g));
                const Ids chosen = chosenIn(step, at, g), wanted = expected.of(query, layer, g);
                EXPECT_EQ(chosen.size(), wanted.size());
                if (expected.margin(query, layer, g) < kTie && chosen != wanted)
                    ++ties;
                else
                    EXPECT_EQ(chosen, wanted) << "margin " << expected.margin(query, layer, g);
            }
        return ties;
    }

    /// Decodes greedily with one thread and with two. Prompts select too, so that one wrong choice there changes every
    /// logit behind it.
    void expectTheLibrarysChoicesLogitsAndIds() const {
        const Ids ids = reference_.ints("generated_ids");
        const auto logits = reference_.floats("logits");
        const auto vocab = std::size_t(model_->config().vocab);
        const LibraryChoices expected(reference_, "");
        EXPECT_EQ(expected.layers(), int(layers_.size()));
        for (const int threads : {1, 2}) {
            SCOPED_TRACE(std::to_string(threads) + " threads");
            SessionOptions chosen = options(int(ids.size()));
            chosen.threads = threads;
            const Outcome out = decode(model_, {prompt_}, chosen);
            EXPECT_EQ(out.ids.at(0), ids);
            ASSERT_EQ(out.logits.size(), ids.size());
            double worst = 0;
            for (std::size_t step = 0; step < out.logits.size(); ++step) {
                const double error = relativeError(out.logits[step], &logits[step * vocab]);
                ASSERT_LT(error, 1e-4) << "step " << step;
                worst = std::max(worst, error);
            }
            ASSERT_EQ(out.steps.size(), std::size_t(expected.queries()) + 1);
            int ties = 0;
            for (int query = 0; query < expected.queries(); ++query) {
                SCOPED_TRACE("step " + std::to_string(query));
                ties += compare(out.steps[std::size_t(query) + 1], expected, query);
            }
            std::printf("largest difference of a logit %.1e of the largest; %d of %d choices differ at a tie\n", worst,
                        ties, expected.queries() * expected.layers() * expected.kvHeads());
        }
    }

    /// Feeds every token of the prompt but the first ones one by one, and compares with what the library chose when it
    /// read the prompt. budgetTokens: how many tokens a query attends to at most
    void expectDecodingThePromptToChooseWhatReadingItChose(int budgetTokens) const {
        const LibraryChoices expected(reference_, "prompt_");
        const auto cut = prompt_.begin() + kEvery;
        const Ids rest(cut, prompt_.end());
        const Outcome out = decode(model_, {{prompt_.begin(), cut}}, options(int(rest.size()) + 1), rest);
        ASSERT_EQ(out.steps.size(), rest.size() + 1);
        int ties = 0, compared = 0, chose = 0;
        for (int query = 1; query < expected.queries(); ++query, ++compared) {
            SCOPED_TRACE("query " + std::to_string(query * kEvery));
            ties += compare(out.steps[std::size_t((query - 1) * kEvery) + 1], expected, query);
            chose += std::isfinite(expected.margin(query, 0, 0)) ? 1 : 0;
        }
        EXPECT_GE(compared, int(prompt_.size()) / kEvery - 1);
        if (int(prompt_.size()) > 2 * budgetTokens + kEvery) {
            EXPECT_GT(chose, compared / 3) << "most queries saw everything: this shows little";
        }
        std::printf("%d of %d choices differ at a tie\n", ties, compared * expected.layers() * expected.kvHeads());
    }

    /// missBytes: of what travels for each miss. @return the session that offloads
    Outcome expectOffloadingToChangeNoBit(std::int64_t missBytes) const {
        SessionOptions chosen = options(40);
        Outcome offloaded = decode(model_, {prompt_}, chosen);
        chosen.offload = false;
        const Outcome resident = decode(model_, {prompt_}, chosen);
        EXPECT_EQ(offloaded.logits, resident.logits);
        EXPECT_EQ(resident.summary.misses, 0);
        EXPECT_EQ(resident.summary.h2dBytes, 0);
        EXPECT_EQ(offloaded.summary.h2dBytes, offloaded.summary.misses * missBytes);
        return offloaded;
    }

    /// `covering`: settings of a budget that covers everything.
    void expectFullAttention(const std::vector<std::pair<std::string, std::string>>& covering) const {
        SessionOptions full = options(20), covered = options(20);
        full.method = "full";
        covered.settings = covering;
        const Outcome expected = decode(model_, {prompt_}, full), out = decode(model_, {prompt_}, covered);
        EXPECT_EQ(out.ids, expected.ids);
        ASSERT_EQ(out.logits.size(), expected.logits.size());
        for (std::size_t step = 0; step < out.logits.size(); ++step)
            EXPECT_LT(relativeError(out.logits[step], expected.logits[step].data()), 2e-5) << step;
    }

    void expectSequencesOfABatchAsAlone() const {
        const Ids other(prompt_.begin() + std::ptrdiff_t(prompt_.size() / 3), prompt_.end());
        const Outcome together = decode(model_, {prompt_, other}, options(16));
        EXPECT_EQ(together.ids.at(0), decode(model_, {prompt_}, options(16)).ids.at(0));
        EXPECT_EQ(together.ids.at(1), decode(model_, {other}, options(16)).ids.at(0));
    }

    const GoldenFile reference_;
    const std::shared_ptr<const Model> model_;
    const Ids prompt_;
    Ids layers_; // that the reference lists: those with an indexer, or all

private:
    const std::string method_;
};

/// A request joins while another one decodes, and reads its prompt in chunks. Expects both to write what they write in
/// sessions of their own.
inline void expectRowsToDecodeWhatSessionsDecode(const std::shared_ptr<const Model>& model, const char* method) {
    constexpr int kSteps = 8;
    std::mt19937 random(7);
    const std::vector<std::vector<Ids>> prompts{{randomPrompt(300, random, model->config().vocab)},
                                                {randomPrompt(700, random, model->config().vocab)}};
    const SmallSession session(model, findMethod(method), {.promptTokens = {700}, .newTokens = kSteps});
    const EngineSetup& s = session.setup;
    const auto engine = makeCpuRowEngine({.model = model, .abilities = s.abilities, .rows = 2, .threads = 1});
    const auto open = [&](int row) {
        const std::vector<Ids>& prompt = prompts[std::size_t(row)];
        engine->open(RowId{row}, {s.model,
                                  prompt,
                                  s.options,
                                  s.spec,
                                  {int(prompt[0].size()) + kSteps},
                                  s.slots,
                                  s.plans,
                                  s.cachePolicy,
                                  s.level,
                                  s.makeSelector,
                                  s.parameters,
                                  s.abilities,
                                  s.methodMemory});
    };
    std::vector<Ids> written(2);
    const auto next = [&](int row) {
        const float* const logits = engine->logits(RowId{row});
        written[std::size_t(row)].push_back(
            std::int32_t(std::max_element(logits, logits + model->config().vocab) - logits));
        return RowToken{RowId{row}, written[std::size_t(row)].back(),
                        int(prompts[std::size_t(row)][0].size() + written[std::size_t(row)].size()) - 1};
    };
    open(0);
    while (!engine->readLayers(RowId{0}, LayerId{model->config().layers}, 0, {})) {
    }
    for (int step = 0; step < 3; ++step) {
        const RowToken alone[] = {next(0)};
        engine->decode(alone);
    }
    open(1);
    for (int token = 512; !engine->readChunk(RowId{1}, token, {}); token += 512) {
        const RowToken meanwhile[] = {next(0)};
        engine->decode(meanwhile);
    }
    for (int step = 0; step < 3; ++step) {
        const RowToken both[] = {next(0), next(1)};
        engine->decode(both);
    }
    for (std::size_t row = 0; row < 2; ++row) {
        const Ids expected = decode(model, prompts[row], optionsOf(method, int(written[row].size()))).ids.at(0);
        EXPECT_EQ(written[row], expected) << row;
    }
}

/// A copy of a checkpoint, whose configuration tests change. It is removed with this object.
class ChangedCheckpoint {
public:
    ChangedCheckpoint(const std::filesystem::path& original, const std::string& name)
        : folder_(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(getpid()))) {
        std::filesystem::remove_all(folder_);
        std::filesystem::copy(original, folder_);
        config_ = nlohmann::json::parse(contentsOf(folder_ / "config.json"));
    }
    ~ChangedCheckpoint() { std::filesystem::remove_all(folder_); }
    ChangedCheckpoint(const ChangedCheckpoint&) = delete;
    ChangedCheckpoint& operator=(const ChangedCheckpoint&) = delete;

    /// As the original has it.
    const nlohmann::json& config() const { return config_; }
    /// What loading says with this configuration; empty if it says nothing.
    std::string refusal(const nlohmann::json& config) const {
        write(folder_ / "config.json", config.dump());
        try {
            (void)Model::load(folder_.string());
        } catch (const Error& error) {
            return oneLine(error);
        }
        return {};
    }

private:
    const std::filesystem::path folder_;
    nlohmann::json config_;
};

} // namespace kvscope::test
