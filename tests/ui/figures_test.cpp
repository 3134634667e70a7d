// Figures from short real runs of the embedded model: numbers against SQL, drawings, refusals, the dialog.
#include "ui/figures/figure_drawing.h"

#include "base/error.h"
#include "core/model/bundled_models.h"
#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"
#include "profiler/read/step_kind.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/ui/served_trace.h"
#include "ui/figures/figure_dialog.h"

#include <QFile>
#include <QLabel>
#include <QListWidget>
#include <QSignalSpy>
#include <QTemporaryDir>
#include <QTest>
#include <QThreadPool>
#include <QXmlStreamReader>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <map>
#include <set>

namespace kvscope::ui {
namespace {

/// Recorded once for all tests; deleted at the end.
class FigureTest : public testing::Test {
protected:
    static void SetUpTestSuite() {
        folder = new QTemporaryDir;
        model = Model::load(kDefaultModel);
        record("nosa", "nosa", 1300, 1, 64);
        record("infllmv2", "infllmv2", 1300, 1, 64);
        record("small", "nosa", 1300, 1, 16);
        record("pair", "nosa", 1300, 2, 64);
        record("long", "nosa", 2200, 1, 64);
        record("full", "full", 1300, 1, 64, RecordLevel::Counters);
        if (denoises()) {
            const auto losa = Model::load("losa-tiny");
            recordDenoised("losa", losa, "losa", {{"budget", "64"}});
            recordDenoised("losa-2", losa, "losa", {{"budget", "64"}, {"active", "2"}});
            recordDenoised("denoised-quest", losa, "quest", {{"budget", "64"}});
            recordDenoised("sparsed", losa, "sparsed", {{"budget", "128"}});
            recordDenoised("denoised-full", losa, "full", {});
        }
        test::recordServedTrace(trace("served"));
        std::ofstream(path("quality.json")) << R"({"rows": [
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
        test::recordServedTrace(trace("served-chunks"), {{"prefill", "chunks"}, {"chunk_tokens", "512"}}, 4);
        test::recordServedTrace(trace("served-resident"), {{"offload", "false"}}, 4);
        std::ofstream(path("scores.json")) << R"({"rows": [
            {"method": "nosa", "parameters": {"select_blocks": 8, "total_blocks": 64}, "needle_accuracy": 0.3,
             "tokens_per_s": 700},
            {"method": "nosa", "k_q_share": 0.5, "needle_accuracy": 0.75, "tokens_per_s": 500},
            {"method": "full", "k_q_share": null, "needle_accuracy": 1}]})";
    }
    static void TearDownTestSuite() {
        delete folder;
        model.reset();
    }
    static std::string path(const std::string& name) {
        return folder->filePath(QString::fromStdString(name)).toStdString();
    }
    static std::string trace(const std::string& name) { return path(name + ".kvtrace"); }
    static void record(const std::string& name, const std::string& method, int promptTokens, int batch, int blockSize,
                       RecordLevel level = RecordLevel::Full) {
        SessionOptions options;
        options.method = method;
        options.maxNewTokens = 9;
        options.stopAtEos = false;
        options.threads = 1;
        if (method != "full")
            options.settings = {{"block_size", std::to_string(blockSize)},
                                {"total_blocks", std::to_string(1024 / blockSize)}};
        RecorderOptions recording;
        recording.level = level;
        Recorder recorder(trace(name), recording);
        const auto ids = model->tokenizer().encode(longDocumentPrompt(model->tokenizer(), promptTokens));
        DecodeSession session(model, std::vector(std::size_t(batch), ids), options, recorder);
        session.prefill();
        while (session.step()) {
        }
        session.end(RunStatus::Finished);
        recorder.flush();
    }
    /// A checkout may leave out the model that denoises.
    static bool denoises() { return hasBundledModel("losa-tiny"); }
    static void recordDenoised(const std::string& name, const std::shared_ptr<const Model>& losa,
                               const std::string& method,
                               const std::vector<std::pair<std::string, std::string>>& settings) {
        SessionOptions options;
        options.method = method;
        options.maxNewTokens = 40;
        options.stopAtEos = false;
        options.threads = 1;
        options.settings = {settings.begin(), settings.end()};
        Recorder recorder(trace(name), RecorderOptions{});
        DecodeSession session(losa, {losa->tokenizer().encode(longDocumentPrompt(losa->tokenizer(), 700))}, options,
                              recorder);
        session.prefill();
        while (session.step()) {
        }
        session.end(RunStatus::Finished);
        recorder.flush();
    }
    static FigureSources sources(const std::vector<std::string>& names) {
        std::vector<std::string> files;
        for (const std::string& name : names) files.push_back(name.ends_with(".json") ? path(name) : trace(name));
        return readFigureSources(files);
    }
    static FigureData make(const char* id, const std::vector<std::string>& names) {
        return makeFigure(findFigure(id), sources(names));
    }
    static const FigureSeries& series(const FigurePanel& panel, const char* name) {
        for (const FigureSeries& one : panel.series)
            if (one.name == name) return one;
        throw std::runtime_error(std::string("no series ") + name);
    }
    static double sql(const std::string& name, const std::string& query) {
        return std::stod(test::value(trace(name), query));
    }
    static std::string messageOf(const std::function<void()>& action) {
        try {
            action();
        } catch (const Error& error) {
            return oneLine(error);
        }
        return {};
    }
    static QByteArray contentOf(const std::string& name) {
        QFile file(QString::fromStdString(path(name)));
        EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << name;
        return file.readAll();
    }
    /// What each preset can be drawn from.
    static std::map<std::string, std::vector<std::string>> suitable() {
        std::map<std::string, std::vector<std::string>> files{{"locality", {"nosa", "infllmv2"}},
                                                              {"throughput-hit-rate", {"nosa", "infllmv2"}},
                                                              {"transfer-bandwidth", {"nosa", "small"}},
                                                              {"score-budget", {"scores.json"}},
                                                              {"quality", {"quality.json"}},
                                                              {"layer-breakdown", {"nosa", "full"}},
                                                              {"batch", {"nosa", "pair"}},
                                                              {"overlap", {"nosa", "infllmv2"}},
                                                              {"layer-reuse", {"nosa", "infllmv2"}},
                                                              {"look-back", {"nosa", "infllmv2"}},
                                                              {"attention-context", {"nosa", "long", "full"}},
                                                              {"device-pool", {"small"}},
                                                              {"request-rate", {"served"}},
                                                              {"prompt-stores", {"served", "served-resident"}},
                                                              {"prompt-chunks", {"served", "served-chunks"}},
                                                              {"loading", {"small", "pair"}}};
        if (denoises()) {
            files["query-change"] = {"losa", "denoised-quest"};
            files["token-change"] = {"losa", "denoised-quest"};
            files["kv-change"] = {"denoised-full"};
            files["denoise-breakdown"] = {"denoised-full", "denoised-quest", "losa"};
            files["active-set"] = {"losa", "losa-2", "denoised-quest"};
            files["density"] = {"losa", "denoised-quest", "sparsed"};
        }
        return files;
    }
    static bool needsDenoising(const std::string& id) {
        return id == "query-change" || id == "token-change" || id == "kv-change" || id == "denoise-breakdown" ||
               id == "active-set" || id == "density";
    }
    /// The changes of a trace's rows, by step, layer and KV head, for one sequence.
    static std::map<std::tuple<int, int, int>, std::vector<float>> changesOf(const std::string& name) {
        std::map<std::tuple<int, int, int>, std::vector<float>> changes;
        for (const auto& row : test::sql(trace(name), "SELECT step, layer, kv_head, changes FROM v_denoise_layer WHERE"
                                                      " changes IS NOT NULL")
                                   .rows) {
            std::vector<float> values(row[3].size() / sizeof(float));
            std::memcpy(values.data(), row[3].data(), values.size() * sizeof(float));
            changes[{std::stoi(row[0]), std::stoi(row[1]), std::stoi(row[2])}] = values;
        }
        return changes;
    }
    static QTemporaryDir* folder;
    static std::shared_ptr<const Model> model;
};
QTemporaryDir* FigureTest::folder = nullptr;
std::shared_ptr<const Model> FigureTest::model;

TEST_F(FigureTest, EveryPresetIsDrawnWithItsTextInSvgAndPdf) {
    EXPECT_EQ(figures().size(), suitable().size() + (denoises() ? 0 : 6));
    for (const FigureEntry& entry : figures()) {
        SCOPED_TRACE(entry.id);
        if (!denoises() && needsDenoising(entry.id)) continue;
        const FigureData data = make(entry.id, suitable().at(entry.id));
        EXPECT_FALSE(data.note.empty());
        for (const char* suffix : {".svg", ".pdf", ".png"})
            writeFigure(data, QString::fromStdString(path(entry.id + std::string(suffix))), {85, 0});
        QXmlStreamReader reader(contentOf(entry.id + std::string(".svg")));
        QString words;
        QString width;
        while (!reader.atEnd()) {
            const auto token = reader.readNext();
            if (token == QXmlStreamReader::StartElement && reader.name() == QLatin1String("svg"))
                width = reader.attributes().value("width").toString();
            if (token == QXmlStreamReader::StartElement && reader.name() == QLatin1String("text"))
                words += reader.readElementText(QXmlStreamReader::IncludeChildElements);
        }
        EXPECT_FALSE(reader.hasError()) << reader.errorString().toStdString();
        words.remove(' '); // a letter of another font begins another element
        const auto hasText = [&](const std::string& text) {
            return words.contains(QString::fromStdString(text).remove(' '));
        };
        EXPECT_TRUE(width.endsWith("mm")) << width.toStdString();
        EXPECT_NEAR(width.chopped(2).toDouble(), 85, 0.1);
        std::set<std::string> names;
        for (const FigurePanel& panel : data.panels) {
            for (const std::string& title : {panel.xTitle, panel.yTitle}) EXPECT_TRUE(hasText(title)) << title;
            ASSERT_FALSE(panel.series.empty());
            for (const FigureSeries& one : panel.series) {
                names.insert(one.name);
                EXPECT_EQ(one.x.size(), one.y.size());
                EXPECT_FALSE(one.x.empty()) << one.name;
            }
        }
        for (const std::string& name : names.size() > 1 ? names : std::set<std::string>{})
            EXPECT_TRUE(hasText(name)) << name;
        const QByteArray pdf = contentOf(entry.id + std::string(".pdf"));
        EXPECT_TRUE(pdf.startsWith("%PDF-"));
        EXPECT_TRUE(pdf.contains("/FontFile")) << "fonts are embedded";
        EXPECT_FALSE(pdf.contains("/Subtype /Image")) << "lines and letters, no picture";
        const QImage png(QString::fromStdString(path(entry.id + std::string(".png"))));
        EXPECT_NEAR(png.width(), 85 / 25.4 * 600, 1);
    }
}

TEST_F(FigureTest, PresetsRefuseWhatTheyCannotDrawAndSayWhy) {
    const std::map<std::string, std::string> reasons{
        {"locality", "no layer selects blocks"},
        {"throughput-hit-rate", "not two of different hit rate"},
        {"transfer-bandwidth", "none loaded blocks while decoding"},
        {"score-budget", "there are no scores here"},
        {"quality", "there are no answers here"},
        {"batch", "every run decoded 1 sequence together"},
        {"overlap", "none holds the selected blocks"},
        {"device-pool", "none holds the selected blocks"},
        {"attention-context", "every run has a context of about"},
        {"query-change", "none holds how much the queries of a block's tokens changed"},
        {"token-change", "none holds how much the queries of a block's tokens changed"},
        {"kv-change", "none holds how much the keys and values of a block's tokens changed"},
        {"denoise-breakdown", "in none is a block denoised"},
        {"active-set", "in none do the tokens of a block choose pages"},
        {"density", "in none does a block that is denoised choose pages within a budget"},
        {"request-rate", "none served requests"},
        {"prompt-stores", "none says how a server brought prompts to the host"},
        {"prompt-chunks", "in none a server read prompts in parts"},
        {"loading", "none knows how long its decode steps waited for blocks"},
    };
    for (const auto& [id, reason] : reasons) {
        const std::string message = messageOf([&] { make(id.c_str(), {"full"}); });
        EXPECT_NE(message.find(reason), std::string::npos) << id << ": " << message;
        EXPECT_NE(message.find("give "), std::string::npos) << "and what it needs: " << message;
    }
    EXPECT_NE(messageOf([&] { make("layer-breakdown", {"scores.json"}); }).find("there are no traces here"),
              std::string::npos);
    EXPECT_NE(messageOf([&] { make("transfer-bandwidth", {"nosa"}); }).find("has blocks of 32.2 KiB"),
              std::string::npos);
    EXPECT_NE(messageOf([] { findFigure("pie"); }).find("choose one of locality, "), std::string::npos);
}

TEST_F(FigureTest, LocalityIsWhatSqlSays) {
    const FigureData data = make("locality", {"nosa", "infllmv2"});
    ASSERT_EQ(data.panels[0].series.size(), 2U);
    const FigureSeries& nosa = data.panels[0].series[0];
    ASSERT_EQ(nosa.x.size(), 8U);
    for (std::size_t i = 0; i < nosa.x.size(); ++i)
        EXPECT_NEAR(nosa.y[i],
                    sql("nosa", "SELECT avg(locality) FROM v_locality WHERE NOT opens_block AND layer = " +
                                    std::to_string(int(nosa.x[i]))),
                    1e-9);
}

TEST_F(FigureTest, ThroughputAndHitRateAreWhatSqlSays) {
    const FigureData data = make("throughput-hit-rate", {"nosa", "infllmv2", "full"});
    const char* where = " FROM v_step WHERE phase = 'decode' AND step > 1"; // rates leave the cold step out
    const FigureSeries& measured = series(data.panels[0], "NOSA");
    const FigureSeries& predicted = series(data.panels[0], "NOSA, with modelled link");
    ASSERT_EQ(measured.x.size(), 1U);
    EXPECT_NEAR(measured.x[0], sql("nosa", std::string("SELECT 100.0 * sum(hits) / sum(hits + misses)") + where), 1e-9);
    EXPECT_NEAR(measured.y[0], sql("nosa", std::string("SELECT sum(tokens) * 1e9 / sum(duration_ns)") + where), 1e-6);
    EXPECT_EQ(measured.basis, "measured");
    EXPECT_NEAR(predicted.y[0],
                sql("nosa", std::string("SELECT sum(tokens) * 1e9 / sum(duration_ns + exposed_ns)") + where), 1e-6);
    EXPECT_EQ(predicted.basis, "predicted");
    EXPECT_TRUE(predicted.hollow);
}

TEST_F(FigureTest, TransferBandwidthIsWhatSqlSays) {
    const FigureData data = make("transfer-bandwidth", {"nosa", "small"});
    const FigureSeries& bySize = series(data.panels[0], "all decode steps, modelled");
    ASSERT_EQ(bySize.x.size(), 2U);
    const char* query = "SELECT total(bytes) / sum(duration_ns) FROM v_transfer WHERE direction = 'h2d' AND step > 0";
    EXPECT_NEAR(bySize.y[0], sql("small", query), 1e-9) << "the smaller block comes first";
    EXPECT_NEAR(bySize.y[1], sql("nosa", query), 1e-9);
    for (const FigureSeries& one : data.panels[1].series)
        for (const double locality : one.x) EXPECT_NEAR(locality * 20, std::round(locality * 20), 1e-9);
}

TEST_F(FigureTest, NotesSayWhichStepsTheirMeansCount) {
    for (const char* id : {"throughput-hit-rate", "batch", "layer-breakdown", "attention-context"}) {
        EXPECT_NE(make(id, suitable().at(id)).note.find("cold ones left out"), std::string::npos) << id;
        setColdSteps(ColdSteps::Counted);
        const std::string counted = make(id, suitable().at(id)).note;
        setColdSteps(ColdSteps::LeftOut);
        EXPECT_NE(counted.find("cold ones too"), std::string::npos) << id << ": " << counted;
        EXPECT_EQ(counted.find("left out"), std::string::npos) << id << ": " << counted;
    }
    FigureSources sources = readFigureSources({path("nosa.kvtrace"), path("infllmv2.kvtrace")});
    sources.runs[0].summary.gapsMs = 1e4;
    sources.runs[0].summary.tokensPerSecondWithGaps = sources.runs[0].summary.tokensPerSecond / 2;
    const std::string note = makeFigure(findFigure("throughput-hit-rate"), sources).note;
    EXPECT_NE(note.find("without the time between them, with which"), std::string::npos) << note;
    EXPECT_NE(note.find("by the clock"), std::string::npos) << note;
}

TEST_F(FigureTest, LayerBreakdownAddsUpToTheStep) {
    const FigureData data = make("layer-breakdown", {"nosa", "full"});
    const FigurePanel& panel = data.panels[0];
    ASSERT_EQ(panel.names.size(), 2U);
    double unit = 1;
    for (const auto& [name, ns] : {std::pair{"(µs)", 1e3}, {"(ms)", 1e6}, {"(s)", 1e9}})
        if (panel.xTitle.find(name) != std::string::npos) unit = ns;
    for (std::size_t run = 0; run < 2; ++run) {
        double sum = 0;
        for (const FigureSeries& one : panel.series)
            if (one.basis == "measured") sum += one.x[run] * unit;
        const std::string wall = "SELECT avg(duration_ns - embed_ns - lm_head_ns - sample_ns) / 8 FROM v_step WHERE "
                                 "phase = 'decode' AND step > 1";
        EXPECT_NEAR(sum, sql(run == 0 ? "nosa" : "full", wall), 1) << "all 8 layers are alike";
    }
    EXPECT_EQ(series(panel, "Attention").x[0], 0) << "NOSA has no dense layer";
    EXPECT_GT(series(panel, "Attention").x[1], 0);
    EXPECT_NEAR(series(panel, "Exposed transfer, modelled").x[0] * unit,
                sql("nosa", "SELECT avg(exposed_ns) FROM v_layer WHERE phase = 'decode' AND step > 1"), 1);
}

TEST_F(FigureTest, BatchIsWhatSqlSays) {
    const FigureData data = make("batch", {"pair", "nosa"});
    const FigureSeries &loads = series(data.panels[0], "NOSA"), &speeds = series(data.panels[1], "NOSA");
    EXPECT_EQ(loads.x, (std::vector<double>{1, 2}));
    const char *loaded = "SELECT avg(misses) FROM v_step WHERE phase = 'decode' AND step > 1",
               *speed = "SELECT sum(tokens) * 1e9 / sum(duration_ns) FROM v_step WHERE phase = 'decode' AND step > 1";
    EXPECT_NEAR(loads.y[0], sql("nosa", loaded), 1e-9);
    EXPECT_NEAR(loads.y[1], sql("pair", loaded), 1e-9);
    EXPECT_NEAR(speeds.y[0], sql("nosa", speed), 1e-6);
    EXPECT_NEAR(speeds.y[1], sql("pair", speed), 1e-6);
}

TEST_F(FigureTest, ALargePoolLoadsEveryBlockOnce) {
    const FigureData data = make("device-pool", {"small"});
    const FigureSeries &lru = series(data.panels[0], "one pool, LRU"),
                       &belady = series(data.panels[0], "one pool, Belady");
    ASSERT_EQ(lru.x, belady.x);
    for (std::size_t i = 0; i < lru.x.size(); ++i) EXPECT_LE(lru.y[i], belady.y[i]) << lru.x[i];
    const TraceReader reader(trace("small"));
    const RunRow run = *reader.run(1);
    std::int64_t selected = 0, loads = 0;
    for (int layer = 0; layer < run.layers; ++layer)
        for (int head = 0; head < run.kvHeads; ++head) {
            std::set<std::int32_t> resident; // and the newest ones
            for (const SelectionRow& row : reader.selections(1, layer, 0, head, 1)) {
                selected += std::int64_t(row.blocks.size());
                resident.insert(row.blocks.back().id());
                for (const PackedBlock block : row.blocks) loads += resident.insert(block.id()).second;
            }
        }
    EXPECT_NEAR(lru.x.back(), 2, 0.01);
    EXPECT_NEAR(lru.y.back(), 1 - double(loads) / double(selected), 1e-12);
    EXPECT_NEAR(belady.y.back(), lru.y.back(), 1e-12);
}

TEST_F(FigureTest, OverlapIsWhatSetsSay) {
    const FigureData data = make("overlap", {"infllmv2"});
    const FigureSeries& overlap = data.panels[0].series.at(0);
    const TraceReader reader(trace("infllmv2"));
    const RunRow run = *reader.run(1);
    std::map<int, std::int64_t> there, held, last; // by window
    std::int64_t blocks = 0;
    for (int layer = 0; layer < run.layers; ++layer)
        for (int head = 0; head < run.kvHeads; ++head) {
            std::vector<std::set<std::int32_t>> steps;
            for (const SelectionRow& row : reader.selections(1, layer, 0, head, 1)) {
                std::set<std::int32_t>& ids = steps.emplace_back();
                for (const PackedBlock block : row.blocks) ids.insert(block.id());
            }
            for (std::size_t step = 0; step < steps.size(); ++step) {
                std::set<std::int32_t> together;
                for (std::size_t back = 0; back <= step; ++back) {
                    together.insert(steps[step - back].begin(), steps[step - back].end());
                    held[int(back) + 1] += std::int64_t(together.size());
                    last[int(back) + 1] += std::int64_t(steps[step].size());
                }
            }
            for (std::size_t step = 1; step < steps.size(); ++step) {
                blocks += std::int64_t(steps[step].size());
                for (std::size_t window = 1; window <= overlap.x.size(); ++window) {
                    std::set<std::int32_t> before;
                    for (std::size_t back = 1; back <= std::min(window, step); ++back)
                        before.insert(steps[step - back].begin(), steps[step - back].end());
                    for (const std::int32_t block : steps[step]) there[int(window)] += before.count(block);
                }
            }
        }
    ASSERT_EQ(overlap.x.size(), 7U) << "8 decode steps";
    for (std::size_t i = 0; i < overlap.x.size(); ++i)
        EXPECT_NEAR(overlap.y[i], double(there[int(overlap.x[i])]) / double(blocks), 1e-12) << overlap.x[i];
    const FigureSeries& workingSet = data.panels[1].series.at(0);
    ASSERT_EQ(workingSet.x.size(), 8U);
    EXPECT_EQ(workingSet.y[0], 1) << "the selection itself";
    for (std::size_t i = 0; i < workingSet.x.size(); ++i)
        EXPECT_NEAR(workingSet.y[i], double(held[int(workingSet.x[i])]) / double(last[int(workingSet.x[i])]), 1e-12);
}

TEST_F(FigureTest, OverlapOfServedRequestsIsWhatSetsSay) {
    const FigureData data = make("overlap", {"served"});
    ASSERT_EQ(data.panels[0].series.size(), 2U) << "a series for each rate";
    const FigureSeries& overlap = data.panels[0].series[0];
    std::map<std::vector<std::string>, std::map<int, std::set<int>>> pools; // by request, layer and KV head; by step
    const auto rows =
        test::sql(trace("served"), "SELECT v.request, v.layer, v.kv_head, v.step, v.row FROM v_served_selection v WHERE"
                                   " v.run_id = 1")
            .rows;
    const TraceReader reader(trace("served"));
    for (const auto& row : rows) {
        const auto selection =
            reader.selection(1, std::stoi(row[3]), std::stoi(row[1]), std::stoi(row[4]), std::stoi(row[2]));
        ASSERT_TRUE(selection);
        for (const PackedBlock block : selection->blocks)
            pools[{row[0], row[1], row[2]}][std::stoi(row[3])].insert(block.id());
    }
    std::int64_t blocks = 0, again = 0;
    for (const auto& [pool, steps] : pools) {
        const std::set<int>* before = nullptr;
        for (const auto& [step, ids] : steps) {
            if (before) {
                blocks += std::int64_t(ids.size());
                for (const int id : ids) again += std::int64_t(before->count(id));
            }
            before = &ids;
        }
    }
    ASSERT_GT(blocks, 0);
    EXPECT_NEAR(overlap.y.at(0), double(again) / double(blocks), 1e-12) << "w = 1";
}

TEST_F(FigureTest, TokensInTheOrderOfTheirChangeAreWhatSortingSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("token-change", {"losa"});
    std::map<int, std::vector<double>> cumulated; // by layer: [rank], sums over forwards
    std::map<int, int> forwards, forHalf;
    for (const auto& [place, changes] : changesOf("losa")) {
        std::vector<double> sorted(changes.begin(), changes.end());
        std::sort(sorted.rbegin(), sorted.rend());
        double whole = 0, sum = 0;
        for (const double change : sorted) whole += change;
        if (whole <= 0) continue;
        const int layer = std::get<1>(place);
        ++forwards[layer];
        cumulated[layer].resize(sorted.size());
        bool reached = false;
        for (std::size_t rank = 0; rank < sorted.size(); ++rank) {
            sum += sorted[rank];
            cumulated[layer][rank] += sum / whole;
            if (!reached && sum >= whole / 2) forHalf[layer] += int(rank) + 1, reached = true;
        }
    }
    ASSERT_EQ(forwards.size(), 8U);
    const FigureSeries& halves = data.panels[1].series.at(0);
    ASSERT_EQ(halves.x.size(), 8U);
    for (std::size_t i = 0; i < 8; ++i)
        EXPECT_NEAR(halves.y[i], double(forHalf[int(i)]) / forwards[int(i)], 1e-9) << "layer " << i;
    for (const int layer : {0, 1, 3, 5, 7}) {
        const FigureSeries& ranks = series(data.panels[0], fmt::format("layer {}", layer).c_str());
        ASSERT_EQ(ranks.x.size(), 16U) << "tokens of a block";
        for (std::size_t rank = 0; rank < 16; ++rank)
            EXPECT_NEAR(ranks.y[rank], 100 * cumulated[layer][rank] / forwards[layer], 1e-6) << layer << ' ' << rank;
    }
    EXPECT_TRUE(series(data.panels[0], "50 %").hollow);
    EXPECT_NE(data.note.find("early and late layers are more local"), std::string::npos);
}

TEST_F(FigureTest, ChangesByAgeAreWhatSqlSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("query-change", {"losa"});
    std::map<std::pair<int, int>, std::pair<double, int>> means; // by step and place in the block: sum and layers
    for (const auto& [place, changes] : changesOf("losa"))
        for (std::size_t i = 0; i < changes.size(); ++i) {
            auto& [sum, layers] = means[{std::get<0>(place), int(i)}];
            sum += double(changes[i]), ++layers;
        }
    const std::string later =
        "SELECT t.step, t.position % 16, f.denoise_step - g.denoise_step FROM v_denoise_token t JOIN v_denoise f ON"
        " f.step = t.step JOIN v_denoise_token w ON w.position = t.position AND w.written AND w.step < t.step JOIN"
        " v_denoise g ON g.step = w.step UNION ALL SELECT step, position % 16, 0 FROM v_denoise_token WHERE confidence"
        " IS NOT NULL";
    std::map<int, std::pair<double, int>> ages;
    for (const auto& row : test::sql(trace("losa"), later).rows) {
        const auto found = means.find({std::stoi(row[0]), std::stoi(row[1])});
        if (found == means.end()) continue; // a block's first forward
        auto& [sum, tokens] = ages[std::stoi(row[2])];
        sum += found->second.first / found->second.second, ++tokens;
    }
    const FigureSeries& drawn = series(data.panels[1], "LoSA on losa-tiny");
    ASSERT_EQ(drawn.x.size(), ages.size());
    ASSERT_GT(ages.size(), 3U);
    std::size_t i = 0;
    for (const auto& [age, sum] : ages) {
        EXPECT_EQ(drawn.x[i], age);
        EXPECT_NEAR(drawn.y[i], sum.first / sum.second, 1e-4 * (1 + sum.first / sum.second)) << age;
        ++i;
    }
    EXPECT_NE(data.note.find("figure kv-change"), std::string::npos);
}

TEST_F(FigureTest, ChangesOfKeysAndValuesAreWhatSortingSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout has no model that denoises";
    const FigureData data = make("kv-change", {"losa", "denoised-full"}); // the first one has changes of queries alone
    ASSERT_EQ(data.panels.size(), 3U);
    for (const auto& [name, column] : {std::pair("keys", "key_changes"), std::pair("values", "value_changes")}) {
        std::map<int, std::pair<double, int>> most; // by layer: sum of the largest shares, and of how many forwards
        for (const auto& row :
             test::sql(trace("denoised-full"), fmt::format("SELECT layer, {} FROM v_denoise_change", column)).rows) {
            std::vector<float> changes(row[1].size() / sizeof(float));
            std::memcpy(changes.data(), row[1].data(), changes.size() * sizeof(float));
            ASSERT_EQ(changes.size(), 16U);
            double whole = 0;
            for (const float change : changes) whole += double(change);
            auto& [sum, forwards] = most[std::stoi(row[0])];
            if (whole <= 0) continue;
            sum += double(*std::max_element(changes.begin(), changes.end())) / whole;
            ++forwards;
        }
        ASSERT_EQ(most.size(), 8U);
        double mean = 0;
        for (const auto& [layer, of] : most) mean += of.first / of.second / 8;
        EXPECT_NEAR(series(data.panels[1], name).y.front(), 100 * mean, 1e-6) << name;
        EXPECT_NEAR(series(data.panels[1], name).y.back(), 100, 1e-6) << name;
        double whole = 0;
        for (const double share : series(data.panels[0], name).y) whole += share;
        EXPECT_NEAR(whole, 100, 1e-3) << "one forward's tokens have all of its change";
        EXPECT_EQ(series(data.panels[2], name).x.size(), 8U);
    }
    EXPECT_EQ(test::value(trace("losa"), "SELECT count(*) FROM v_denoise_change"), "0")
        << "full attention alone has them";
}

TEST_F(FigureTest, AnswersStandWithTheirIntervals) {
    const FigureData data = make("quality", {"quality.json"});
    ASSERT_EQ(data.panels.size(), 2U) << "one kind of prompts, and what is read; a cell without a prompt is left out";
    const FigureSeries& losa = series(data.panels[0], "LoSA");
    EXPECT_EQ(losa.x, (std::vector<double>{16, 64}));
    EXPECT_NEAR(losa.y[0], 90, 1e-9);
    EXPECT_NEAR(losa.low[0], 85, 1e-9);
    EXPECT_NEAR(losa.high[1], 97.3, 1e-9);
    const FigureSeries& full = series(data.panels[0], "Full attention");
    EXPECT_EQ(full.x, (std::vector<double>{16, 64}));
    EXPECT_TRUE(full.hollow);
    EXPECT_NEAR(series(data.panels[1], "LoSA").y[0], 1.6, 1e-9) << "densities stand in the order of budgets";
    EXPECT_NE(data.note.find("at least 200 prompts"), std::string::npos);
    std::ofstream(path("broken.json")) << R"({"rows": [{"task": "keys4", "pace": "slow"}]})";
    EXPECT_NE(messageOf([&] { make("quality", {"broken.json"}); }).find("lacks what a cell has"), std::string::npos);
}

TEST_F(FigureTest, TheBreakdownOfAForwardIsWhatSqlSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout has no model that denoises";
    const FigureData data = make("denoise-breakdown", {"denoised-full", "denoised-quest", "losa"});
    const FigurePanel& panel = data.panels.front();
    ASSERT_EQ(panel.names.size(), 3U);
    EXPECT_NE(data.note.find("LoSA "), std::string::npos) << data.note;
    EXPECT_NE(panel.names[2].find("LoSA 64, "), std::string::npos) << panel.names[2];
    EXPECT_NE(panel.names[2].find("block 16"), std::string::npos) << panel.names[2];
    const FigureSeries& attention = series(panel, "Attention computation");
    ASSERT_EQ(attention.x.size(), 3U);
    for (const double time : attention.x) EXPECT_GT(time, 0);
    EXPECT_EQ(series(panel, "Criticality estimation").x[0], 0) << "full attention estimates nothing";
    // of forwards that choose pages; the first of them is cold
    const std::string from =
        " FROM v_layer WHERE step IN (SELECT step FROM v_step WHERE selected > 0 ORDER BY step LIMIT"
        " -1 OFFSET 1)";
    const double wanted = sql("losa", "SELECT 1.0 * sum(compression_ns) / sum(stage2_ns + attention_ns)" + from);
    EXPECT_GT(wanted, 0);
    EXPECT_NEAR(series(panel, "Locality pruning").x[2] / attention.x[2], wanted, 1e-9 * wanted);
    const double ofFull = sql("denoised-full", "SELECT avg(attention_ns) FROM v_layer WHERE phase = 'decode'"),
                 ofLosa = sql("losa", "SELECT avg(stage2_ns + attention_ns)" + from);
    EXPECT_NEAR(attention.x[0] / attention.x[2], ofFull / ofLosa, 0.3 * ofFull / ofLosa) << "but for cold forwards";
}

TEST_F(FigureTest, ActiveSetsAreWhatSqlSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("active-set", {"losa", "losa-2", "denoised-quest"});
    const FigureSeries &losa = series(data.panels[0], "LoSA, 64 tokens a query"),
                       &quest = series(data.panels[0], "Quest, 64 tokens a query");
    EXPECT_EQ(losa.x, (std::vector<double>{2, 5}));
    const char* mean = "SELECT 100 * avg(density) FROM v_denoise_layer WHERE mode = 'sparse'";
    EXPECT_NEAR(losa.y[0], sql("losa-2", mean), 1e-9);
    EXPECT_NEAR(losa.y[1], sql("losa", mean), 1e-9);
    EXPECT_NEAR(quest.y[0], sql("denoised-quest", mean), 1e-9);
    EXPECT_EQ(quest.x, (std::vector<double>{1, 16})) << "a line over all sizes";
    EXPECT_TRUE(quest.hollow);
    EXPECT_LT(losa.y[0], losa.y[1]) << "fewer tokens read less";
    EXPECT_LT(losa.y[1], quest.y[0]);
    EXPECT_NE(messageOf([&] { make("active-set", {"losa"}); }).find("every run has active sets of 5 tokens"),
              std::string::npos);
}

TEST_F(FigureTest, DensitiesStandBesideThePapers) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("density", {"losa", "denoised-quest", "sparsed"});
    const char* mean = "SELECT 100 * avg(density) FROM v_denoise_layer WHERE mode = 'sparse'";
    const double losa = sql("losa", mean), quest = sql("denoised-quest", mean);
    EXPECT_NEAR(series(data.panels[0], "LoSA").y.at(0), losa, 1e-9);
    EXPECT_NEAR(series(data.panels[0], "Quest").y.at(0), quest, 1e-9);
    EXPECT_EQ(series(data.panels[0], "SparseD").x, std::vector<double>{128});
    EXPECT_NEAR(series(data.panels[0], "SparseD").y.at(0), sql("sparsed", mean), 1e-9);
    EXPECT_NEAR(series(data.panels[1], "LoSA").y.at(0), quest / losa, 1e-9);
    const FigureSeries& stated = series(data.panels[1], "LoSA, the paper");
    const std::vector<double> ratios{1.64, 1.60, 1.52, 1.41}; // LoSA's text
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(stated.y[i], ratios[i], 0.006);
    EXPECT_TRUE(stated.hollow);
    EXPECT_EQ(make("density", {"losa"}).panels.size(), 1U) << "no ratio without Quest";
}

TEST_F(FigureTest, RatesOfRequestsAreWhatSqlSays) {
    const FigureData data = make("request-rate", {"served"});
    ASSERT_GE(data.panels.size(), 2U);
    const FigureSeries& ttft = data.panels[0].series.at(0);
    ASSERT_EQ(ttft.x.size(), 2U);
    EXPECT_EQ(ttft.name, "Quest, partition, by layers") << "runs of one configuration share a series";
    EXPECT_GT(ttft.x[1], 1.5 * ttft.x[0]) << "the same requests, twice as fast";
    for (int run = 1; run <= 2; ++run) {
        const std::string window =
            fmt::format("WITH w AS (SELECT run_id, min(arrival_ns) + 0.2 * (max(arrival_ns) - min(arrival_ns)) AS a,"
                        " max(arrival_ns) AS b FROM v_request WHERE run_id = {} GROUP BY 1) ",
                        run);
        const auto at = std::size_t(run) - 1;
        EXPECT_NEAR(ttft.x[at],
                    sql("served", window + "SELECT 1e9 * count(*) / (SELECT b - a FROM w) FROM v_request JOIN w USING"
                                           " (run_id) WHERE arrival_ns BETWEEN a AND b"),
                    1e-6);
        EXPECT_NEAR(ttft.y[at],
                    sql("served", window + "SELECT avg(first_token_ns - arrival_ns) / 1e6 FROM v_request JOIN w USING"
                                           " (run_id) WHERE arrival_ns BETWEEN a AND b"),
                    1e-6);
        EXPECT_NEAR(data.panels[1].series.at(0).y[at],
                    sql("served", window + "SELECT 1e9 * count(*) / (SELECT b - a FROM w) FROM v_member JOIN w USING"
                                           " (run_id) WHERE token_ns BETWEEN a AND b"),
                    1e-6);
        const std::string loaded =
            window + "SELECT sum(m.h2d_bytes) / 1e6 / count(DISTINCT i.iteration) FROM v_iteration i JOIN w USING"
                     " (run_id) JOIN v_member m ON m.run_id = i.run_id AND m.iteration = i.iteration AND m.kind ="
                     " 'decode' WHERE i.decode_rows > 0 AND i.start_ns BETWEEN a AND b";
        if (test::value(trace("served"), loaded) == "NULL") continue; // no step began in the window of a slow machine
        const FigurePanel& panel = data.panels.back();
        EXPECT_EQ(panel.yTitle, "Loaded an iteration (MB)");
        const auto point = std::find(panel.series.at(0).x.begin(), panel.series.at(0).x.end(), ttft.x[at]);
        ASSERT_NE(point, panel.series[0].x.end());
        EXPECT_NEAR(panel.series[0].y[std::size_t(point - panel.series[0].x.begin())], sql("served", loaded), 1e-9);
    }
}

/// Nanoseconds of iterations that read prompts, over the tokens of those prompts, of a trace with two runs.
constexpr const char* kPromptTime =
    "SELECT avg(t) FROM (SELECT (SELECT 1.0 * sum(prefill_ns) FROM v_iteration i WHERE i.run_id = r.run_id) /"
    " (SELECT sum(prompt_tokens) FROM v_request q WHERE q.run_id = r.run_id AND first_token_ns NOT NULL) AS t"
    " FROM runs r)";

TEST_F(FigureTest, PromptsInChunksStandBesidePromptsByLayers) {
    const FigureData data = make("prompt-chunks", {"served", "served-chunks"});
    ASSERT_EQ(data.panels.size(), 2U);
    ASSERT_EQ(data.panels[0].series.size(), 2U);
    EXPECT_EQ(data.panels[0].series[0].name, "Quest, partition, by layers");
    EXPECT_EQ(data.panels[0].series[1].name, "Quest, partition, by chunks of 512");
    const FigureSeries& bars = data.panels[1].series.at(0);
    EXPECT_EQ(bars.x.at(0), 1);
    const double ratio = sql("served-chunks", kPromptTime) / sql("served", kPromptTime);
    EXPECT_NEAR(bars.x.at(1), ratio, 1e-9);
    EXPECT_NE(data.note.find(fmt::format("in chunks of 512 a prompt token takes {:.2f}x as long", ratio)),
              std::string::npos)
        << data.note;
    EXPECT_NE(data.note.find("8.68x"), std::string::npos) << "the paper's ratio beside ours";
    EXPECT_NE(messageOf([&] { make("prompt-chunks", {"served"}); }).find("all prompts were read by layers"),
              std::string::npos);
}

TEST_F(FigureTest, WaysToTheHostAreComparedWithTheResidentRun) {
    const FigureData data = make("prompt-stores", {"served", "served-resident"});
    const FigurePanel& panel = data.panels.at(0);
    EXPECT_EQ(panel.names, (std::vector<std::string>{"a copy for each head (Quest, partition, by layers)",
                                                     "resident (Quest, resident)"}));
    EXPECT_NEAR(panel.series.at(0).x.at(0), sql("served", kPromptTime) / sql("served-resident", kPromptTime), 1e-9);
    EXPECT_EQ(panel.series[0].x.at(1), 1);
    // Without a resident run the shortest is the measure. A trace that says another way is a series of its own.
    std::filesystem::copy_file(trace("served"), trace("served-calls"),
                               std::filesystem::copy_options::overwrite_existing);
    test::sql(trace("served-calls"),
              "UPDATE run_meta SET value = replace(value, '\"d2h\":\"runs\"', '\"d2h\":\"calls\"')",
              SQLITE_OPEN_READWRITE);
    const FigureData calls = make("prompt-stores", {"served", "served-calls"});
    EXPECT_EQ(calls.panels.at(0).names.at(1), "a copy for each block (Quest, partition, by layers, stores by calls)");
    EXPECT_NE(calls.note.find("1.76x"), std::string::npos);
    EXPECT_NE(messageOf([&] { make("prompt-stores", {"served"}); }).find("in one way (a copy for each head)"),
              std::string::npos);
}

TEST_F(FigureTest, PointsOfALadderAreRead) {
    // lines as load --rungs --resume writes them, without what the figure does not read
    std::ofstream(path("points.json"))
        << R"({"settings":{"workload":"longmix","requests":12}})" << '\n'
        << R"({"key":"costs of quest","point":{"decode_ms":[[1.0,13.7]]}})" << '\n'
        << R"({"key":"simulated +offload seed 1 rate 0.5","point":{"broken":"","refused":0,"result":{"measured":false,)"
        << R"("output_tokens_per_s":2.5,"ttft_ms":null,"tbt_ms":{"mean":9.0,"p99_interpolated":30.0},)"
        << R"("loaded_bytes":4e6,"iterations":2}}})" << '\n'
        << R"({"key":"measured +offload seed 1 rate 0.25","point":{"broken":"","refused":0,"result":{"measured":true,)"
        << R"("output_tokens_per_s":2.0,"ttft_ms":{"mean":840.0},"tbt_ms":{"mean":11.0,"p99_interpolated":35.5},)"
        << R"("loaded_bytes":3e6,"iterations":3}}})" << '\n';
    const FigureData data = make("request-rate", {"points.json"});
    EXPECT_EQ(series(data.panels[0], "+offload").x, std::vector<double>{0.25});
    EXPECT_EQ(series(data.panels[0], "+offload").y, std::vector<double>{840});
    const FigureSeries& simulated = series(data.panels[1], "+offload, simulated");
    EXPECT_EQ(simulated.x, std::vector<double>{0.5});
    EXPECT_EQ(simulated.y, std::vector<double>{2.5});
    EXPECT_TRUE(simulated.hollow);
    EXPECT_EQ(series(data.panels[4], "+offload").y, std::vector<double>{1});
    EXPECT_EQ(data.panels[0].series.size(), 1U) << "a simulation that promises no TTFT has none";
    std::ofstream(path("loads.json")) << R"({"workload":"longmix","method":"quest","points":[)"
                                      << R"({"rate":1,"measured":true,"output_tokens_per_s":10},)"
                                      << R"({"rate":2,"measured":true,"output_tokens_per_s":8}]})";
    const FigureData loads = make("request-rate", {"loads.json"});
    ASSERT_EQ(loads.panels.size(), 1U);
    EXPECT_EQ(loads.panels[0].series.at(0).y, (std::vector<double>{10, 8}));
    EXPECT_NE(loads.note.find("quest falls by 20.00 % from 1 to 2 requests/s"), std::string::npos) << loads.note;
    std::ofstream(path("nothing.json")) << R"({"settings":{"workload":"longmix"}})" << '\n';
    EXPECT_NE(messageOf([] { sources({"nothing.json"}); }).find("there are no points of a load"), std::string::npos);
}

TEST_F(FigureTest, LoadingAndTheRestAreWhatSqlSays) {
    const FigureData data = make("loading", {"small", "pair"});
    const FigurePanel& panel = data.panels[0];
    double unit = 1;
    for (const auto& [name, ns] : {std::pair{"(µs)", 1e3}, {"(ms)", 1e6}, {"(s)", 1e9}})
        if (panel.xTitle.find(name) != std::string::npos) unit = ns;
    ASSERT_EQ(panel.names.size(), 2U);
    EXPECT_NE(panel.names[1].find("batch 2"), std::string::npos);
    const char* where = " FROM v_step WHERE phase = 'decode' AND step > 1"; // means leave the cold step out
    for (std::size_t run = 0; run < 2; ++run) {
        const char* name = run == 0 ? "small" : "pair";
        EXPECT_NEAR(series(panel, "Other").x[run] * unit, sql(name, std::string("SELECT avg(duration_ns)") + where), 1);
        EXPECT_NEAR(series(panel, "Loading, modelled").x[run] * unit,
                    sql(name, std::string("SELECT avg(exposed_ns)") + where), 1);
    }
    EXPECT_NE(data.note.find("69.94 %"), std::string::npos);
}

TEST_F(FigureTest, AttentionAgainstContextIsWhatSqlSays) {
    const FigureData data = make("attention-context", {"long", "nosa"});
    const FigurePanel& panel = data.panels[0];
    double unit = 1;
    for (const auto& [name, ns] : {std::pair{"(µs)", 1e3}, {"(ms)", 1e6}, {"(s)", 1e9}})
        if (panel.yTitle.find(name) != std::string::npos) unit = ns;
    const FigureSeries &attention = series(panel, "NOSA: attention"), &selection = series(panel, "NOSA: selection");
    ASSERT_EQ(attention.x.size(), 2U);
    EXPECT_LT(attention.x[0], attention.x[1]);
    const char* where = " FROM v_layer WHERE phase = 'decode' AND step > 1"; // means leave the cold step out
    for (std::size_t run = 0; run < 2; ++run) {
        const char* name = run == 0 ? "nosa" : "long";
        EXPECT_NEAR(attention.y[run] * unit, sql(name, std::string("SELECT avg(stage2_ns + attention_ns)") + where), 1);
        EXPECT_NEAR(selection.y[run] * unit,
                    sql(name, std::string("SELECT avg(compression_ns + stage1_ns + pooling_ns)") + where), 1);
    }
}

TEST_F(FigureTest, ScoresComeFromTheEvaluation) {
    const FigureData data = make("score-budget", {"scores.json"});
    ASSERT_EQ(data.panels.size(), 2U);
    const FigureSeries &scores = series(data.panels[0], "NOSA"), &speeds = series(data.panels[1], "NOSA");
    EXPECT_EQ(scores.x, (std::vector<double>{0.125, 0.5})) << "8 of 64 blocks, and the share itself";
    EXPECT_EQ(scores.y, (std::vector<double>{0.3, 0.75}));
    EXPECT_EQ(data.panels[0].yTitle, "Needle accuracy");
    EXPECT_EQ(speeds.y, (std::vector<double>{700, 500}));
    EXPECT_EQ(data.panels[0].series.size(), 1U) << "a method without a query-aware part is no point";
    std::ofstream(path("broken.json")) << "{";
    std::ofstream(path("empty.json")) << R"({"rows": []})";
    std::ofstream(path("scoreless.json")) << R"([{"method": "nosa", "k_q_share": 0.5}])";
    EXPECT_NE(messageOf([] { sources({"broken.json"}); }).find("neither a trace nor JSON"), std::string::npos);
    EXPECT_NE(messageOf([] { sources({"empty.json"}); }).find("there are no rows"), std::string::npos);
    EXPECT_NE(messageOf([] { sources({"scoreless.json"}); }).find("a row has no score"), std::string::npos);
    EXPECT_NE(messageOf([] { sources({"absent.json"}); }).find("absent.json"), std::string::npos);
}

TEST_F(FigureTest, CsvHoldsEveryNumberThatIsDrawn) {
    const FigureData data = make("layer-breakdown", {"nosa", "full"});
    std::size_t points = 0;
    for (const FigureSeries& one : data.panels[0].series) points += one.x.size();
    const QString csv = QString::fromStdString(figureCsv(data));
    EXPECT_EQ(csv.count('\n'), qsizetype(points) + 1);
    EXPECT_TRUE(csv.startsWith("panel,series,x,name,y,low,high,basis,"));
    EXPECT_TRUE(csv.contains("modelled"));
}

TEST_F(FigureTest, SizesAreMillimetres) {
    EXPECT_EQ(parseFigureSize("85"), QSizeF(85, 0));
    EXPECT_EQ(parseFigureSize("170x90mm"), QSizeF(170, 90));
    for (const char* wrong : {"", "big", "10", "85x", "85x1", "1000", "85x60cm", "-85"})
        EXPECT_NE(messageOf([&] { parseFigureSize(wrong); }).find("millimetres"), std::string::npos) << wrong;
    const FigureData data = make("locality", {"nosa"});
    const QString picture = folder->filePath("sized.png");
    writeFigure(data, picture, {170, 60});
    EXPECT_NEAR(QImage(picture).height(), 60 / 25.4 * 600, 1);
    EXPECT_NE(messageOf([&] { writeFigure(data, folder->filePath("x.doc")); }).find(".svg, .pdf or .png"),
              std::string::npos);
    EXPECT_NE(messageOf([&] { writeFigure(data, folder->filePath("no/where.svg")); }).find("no/where.svg"),
              std::string::npos);
}

TEST_F(FigureTest, DialogOffersWhatTheTracesCanDraw) {
    auto* dialog = new FigureDialog({QString::fromStdString(trace("nosa")), QString::fromStdString(trace("long"))});
    QSignalSpy drawn(dialog, &FigureDialog::drawn);
    ASSERT_TRUE(drawn.wait(20'000));
    ASSERT_TRUE(dialog->shown()) << "the first that can be drawn is shown";
    const auto* list = dialog->findChild<QListWidget*>("figures");
    ASSERT_EQ(std::size_t(list->count()), figures().size());
    for (int row = 0; row < list->count(); ++row) {
        const std::string id = figures()[std::size_t(row)].id;
        const bool can = id != "score-budget" && id != "batch" && id != "transfer-bandwidth" && id != "request-rate" &&
                         id != "prompt-stores" && id != "prompt-chunks" && id != "quality" && !needsDenoising(id);
        EXPECT_EQ(bool(list->item(row)->flags() & Qt::ItemIsEnabled), can) << id;
        EXPECT_EQ(list->item(row)->text().contains("needs more"), !can) << id;
    }
    dialog->resize(dialog->minimumSizeHint());
    dialog->show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(dialog));
    for (int row = 0; row < list->count(); ++row) { // why one cannot be drawn is read in full
        const QRect place = list->visualItemRect(list->item(row));
        const QRect text = list->fontMetrics().boundingRect(QRect(0, 0, list->viewport()->width() - 6, 10'000),
                                                            Qt::TextWordWrap, list->item(row)->text());
        EXPECT_LE(place.width(), list->viewport()->width()) << list->item(row)->text().toStdString();
        EXPECT_GE(place.height(), text.height()) << list->item(row)->text().toStdString();
    }
    const QString picture = folder->filePath("dialog.svg");
    EXPECT_TRUE(dialog->save(picture));
    EXPECT_TRUE(QFile::exists(picture));
    EXPECT_FALSE(dialog->save(folder->filePath("no/where.svg")));
    EXPECT_TRUE(dialog->findChild<QLabel*>("figureStatus")->text().contains("no/where.svg"));
    delete dialog;
}

TEST_F(FigureTest, DialogMayBeClosedWhileItReads) {
    auto* dialog = new FigureDialog({QString::fromStdString(trace("nosa"))});
    delete dialog;
    QThreadPool::globalInstance()->waitForDone();
    QCoreApplication::processEvents(); // the late answer finds nobody
    auto* empty = new FigureDialog({QString::fromStdString(path("absent.kvtrace"))});
    auto* status = empty->findChild<QLabel*>("figureStatus");
    EXPECT_TRUE(QTest::qWaitFor([&] { return status->text().contains("absent.kvtrace"); }, 20'000));
    delete empty;
}

} // namespace
} // namespace kvscope::ui
