// Short real runs of the embedded models, evaluations and a server's runs, from which figures are drawn.
#pragma once

#include "core/model/bundled_models.h"
#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/support/refusal.h"
#include "tests/ui/served_trace.h"
#include "ui/figures/figure_drawing.h"

#include <QTemporaryDir>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

/// The files lie in a folder that is deleted when the suite ends. Each is made when a test asks for it first.
class FigureRuns : public ::testing::Test {
protected:
    using Settings = std::vector<std::pair<std::string, std::string>>;

    static void SetUpTestSuite() { folder = new QTemporaryDir; }
    static void TearDownTestSuite() {
        delete folder;
        folder = nullptr;
    }
    /// A file of this name: one that makeFile knows, or one that a test writes.
    static std::string path(const std::string& name) {
        const std::string file = folder->filePath(QString::fromStdString(name)).toStdString();
        if (!std::filesystem::exists(file)) makeFile(name, file);
        return file;
    }
    static std::string trace(const std::string& name) { return path(name + ".kvtrace"); }
    /// A checkout may leave out the model that denoises.
    static bool denoises() { return hasBundledModel("losa-tiny"); }

    static ui::FigureSources sources(const std::vector<std::string>& names) {
        std::vector<std::string> files;
        for (const std::string& name : names) files.push_back(name.ends_with(".json") ? path(name) : trace(name));
        return ui::readFigureSources(files);
    }
    static ui::FigureData make(const char* id, const std::vector<std::string>& names) {
        return ui::makeFigure(ui::findFigure(id), sources(names));
    }
    static const ui::FigureSeries& series(const ui::FigurePanel& panel, const char* name) {
        for (const ui::FigureSeries& one : panel.series)
            if (one.name == name) return one;
        throw std::runtime_error(std::string("no series ") + name);
    }
    static double sql(const std::string& name, const std::string& query) {
        return std::stod(test::value(trace(name), query));
    }

    inline static QTemporaryDir* folder = nullptr;

private:
    static void makeFile(const std::string& name, const std::string& file) {
        if (name == "nosa.kvtrace") record(file, "nosa", 1300, 1, 64);
        if (name == "infllmv2.kvtrace") record(file, "infllmv2", 1300, 1, 64);
        if (name == "small.kvtrace") record(file, "nosa", 1300, 1, 16);
        if (name == "pair.kvtrace") record(file, "nosa", 1300, 2, 64);
        if (name == "long.kvtrace") record(file, "nosa", 2200, 1, 64);
        if (name == "full.kvtrace") record(file, "full", 1300, 1, 64, RecordLevel::Counters);
        if (name == "losa.kvtrace") recordDenoised(file, "losa", {{"budget", "64"}});
        if (name == "losa-2.kvtrace") recordDenoised(file, "losa", {{"budget", "64"}, {"active", "2"}});
        if (name == "denoised-quest.kvtrace") recordDenoised(file, "quest", {{"budget", "64"}});
        if (name == "denoised-quest-short.kvtrace") recordDenoised(file, "quest", {{"budget", "64"}}, 200, 18);
        if (name == "sparsed.kvtrace") recordDenoised(file, "sparsed", {{"budget", "128"}});
        if (name == "denoised-full.kvtrace") recordDenoised(file, "full", {});
        if (name == "served.kvtrace") recordServedTrace(file);
        if (name == "served-chunks.kvtrace")
            recordServedTrace(file, {{"prefill", "chunks"}, {"chunk_tokens", "512"}}, 4);
        if (name == "served-resident.kvtrace") recordServedTrace(file, {{"offload", "false"}}, 4);
        // all requests at once, so that as many rows decode as there are
        if (name == "served-2.kvtrace") recordServedTrace(file, {{"rows", "2"}}, 1, true);
        if (name == "served-4.kvtrace") recordServedTrace(file, {{"rows", "4"}}, 1, true);
        if (name == "served-resident-2.kvtrace")
            recordServedTrace(file, {{"rows", "2"}, {"offload", "false"}}, 1, true);
        if (name == "quality.json") std::ofstream(file) << kQuality;
        if (name == "scores.json") std::ofstream(file) << kScores;
        if (name == "answers.json") std::ofstream(file) << kAnswers;
        if (name == "ladder.json") std::ofstream(file) << kLadder;
    }
    static void record(const std::string& file, const std::string& method, int promptTokens, int batch, int blockSize,
                       RecordLevel level = RecordLevel::Full) {
        static const std::shared_ptr<const Model> model = Model::load(kDefaultModel);
        SessionOptions options;
        options.method = method;
        options.maxNewTokens = 9;
        if (method != "full")
            options.settings = {{"block_size", std::to_string(blockSize)},
                                {"total_blocks", std::to_string(1024 / blockSize)}};
        decode(file, model, longDocumentPrompt(model->tokenizer(), promptTokens), batch, options, level);
    }
    static void recordDenoised(const std::string& file, const std::string& method, const Settings& settings,
                               int promptTokens = 700, int newTokens = 40) {
        static const std::shared_ptr<const Model> losa = Model::load("losa-tiny");
        SessionOptions options;
        options.method = method;
        options.maxNewTokens = newTokens;
        options.settings = settings;
        decode(file, losa, longDocumentPrompt(losa->tokenizer(), promptTokens), 1, options, RecorderOptions{}.level);
    }
    static void decode(const std::string& file, const std::shared_ptr<const Model>& model, const std::string& prompt,
                       int batch, SessionOptions options, RecordLevel level) {
        options.stopAtEos = false;
        options.threads = 1;
        RecorderOptions recording;
        recording.level = level;
        Recorder recorder(file, recording);
        DecodeSession session(model, std::vector(std::size_t(batch), model->tokenizer().encode(prompt)), options,
                              recorder);
        session.prefill();
        while (session.step()) {
        }
        session.end(RunStatus::Finished);
        recorder.flush();
    }

    static constexpr const char* kQuality = R"({"rows": [
            {"method": "full", "title": "Full attention", "settings": {}, "task": "keys4", "context": 4096, "pace": "slow",
             "right": {"good": 198, "of": 200, "share": 0.99, "low": 0.964, "high": 0.997}, "same_text": null,
             "density": null},
            {"method": "losa", "title": "LoSA", "settings": {"budget": "64"}, "task": "keys4", "context": 4096, "pace": "slow",
             "right": {"good": 190, "of": 200, "share": 0.95, "low": 0.91, "high": 0.973},
             "same_text": {"good": 1, "of": 2, "share": 0.5, "low": 0.1, "high": 0.9}, "density": 0.06},
            {"method": "losa", "title": "LoSA", "settings": {"budget": "16"}, "task": "keys4", "context": 4096, "pace": "slow",
             "right": {"good": 180, "of": 200, "share": 0.9, "low": 0.85, "high": 0.934},
             "same_text": {"good": 1, "of": 2, "share": 0.5, "low": 0.1, "high": 0.9}, "density": 0.016},
            {"method": "quest", "title": "Quest", "settings": {"budget": "16"}, "task": "passkey", "context": 4096,
             "pace": "fast", "right": null, "same_text": null, "density": null}], "bounds": []})";
    static constexpr const char* kScores = R"({"rows": [
            {"method": "nosa", "parameters": {"select_blocks": 8, "total_blocks": 64}, "needle_accuracy": 0.3,
             "tokens_per_s": 700},
            {"method": "nosa", "k_q_share": 0.5, "needle_accuracy": 0.75, "tokens_per_s": 500},
            {"method": "full", "k_q_share": null, "needle_accuracy": 1}]})";
    static constexpr const char* kLadder =
        R"({"settings":{"workload":"longmix"}}
{"key":"simulated full seed 1 rate 0.5","point":{"broken":"","refused":0,"result":{"measured":false}}}
{"key":"simulated +sparse seed 1 rate 0.75","point":{"broken":"","refused":0,"result":{"measured":false}}}
)";
    static constexpr const char* kAnswers = R"({"rows": [
            {"method": "full", "context": 2048, "k_q_share": null, "needle_accuracy": 1, "h2d_bytes_per_step": 0,
             "needle_by_depth": [{"depth": 0.1, "prompts": 10, "correct": 10}, {"depth": 0.9, "prompts": 10, "correct": 10}]},
            {"method": "nosa", "context": 2048, "k_q_share": 0.25, "needle_accuracy": 0.9, "h2d_bytes_per_step": 65536,
             "needle_by_depth": [{"depth": 0.1, "prompts": 10, "correct": 8}, {"depth": 0.9, "prompts": 10, "correct": 10}]},
            {"method": "nosa", "context": 2048, "k_q_share": 0.5, "needle_accuracy": 0.5, "h2d_bytes_per_step": 32768,
             "needle_by_depth": [{"depth": 0.1, "prompts": 10, "correct": 4}, {"depth": 0.9, "prompts": 10, "correct": 6}]},
            {"method": "quest", "context": 2048, "k_q_share": 1, "needle_accuracy": 0.85, "h2d_bytes_per_step": 131072,
             "needle_by_depth": [{"depth": 0.1, "prompts": 10, "correct": 8}, {"depth": 0.9, "prompts": 10, "correct": 9}]}
            ]})";
};

} // namespace kvscope::test
