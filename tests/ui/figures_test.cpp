// Figures from short real runs of the embedded model: numbers against SQL, drawings, refusals, the dialog.
#include "ui/figures/figure_drawing.h"

#include "base/error.h"
#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
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
        return {{"locality", {"nosa", "infllmv2"}},        {"throughput-hit-rate", {"nosa", "infllmv2"}},
                {"transfer-bandwidth", {"nosa", "small"}}, {"score-budget", {"scores.json"}},
                {"layer-breakdown", {"nosa", "full"}},     {"batch", {"nosa", "pair"}},
                {"overlap", {"nosa", "infllmv2"}},         {"attention-context", {"nosa", "long", "full"}}};
    }
    static QTemporaryDir* folder;
    static std::shared_ptr<const Model> model;
};
QTemporaryDir* FigureTest::folder = nullptr;
std::shared_ptr<const Model> FigureTest::model;

TEST_F(FigureTest, EveryPresetIsDrawnWithItsTextInSvgAndPdf) {
    EXPECT_EQ(figures().size(), suitable().size());
    for (const FigureEntry& entry : figures()) {
        SCOPED_TRACE(entry.id);
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
        {"batch", "every run decoded 1 sequence together"},
        {"overlap", "none holds the selected blocks"},
        {"attention-context", "every run has a context of about"},
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

TEST_F(FigureTest, OverlapIsWhatSetsSay) {
    const FigureData data = make("overlap", {"infllmv2"});
    const FigureSeries& overlap = data.panels[0].series.at(0);
    const TraceReader reader(trace("infllmv2"));
    const RunRow run = *reader.run(1);
    std::map<int, std::int64_t> there;
    std::int64_t blocks = 0;
    for (int layer = 0; layer < run.layers; ++layer)
        for (int head = 0; head < run.kvHeads; ++head) {
            std::vector<std::set<std::int32_t>> steps;
            for (const SelectionRow& row : reader.selections(1, layer, 0, head, 1))
                steps.emplace_back(row.blocks.begin(), row.blocks.end());
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
    const char* where = " FROM v_layer WHERE phase = 'decode'";
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
        const bool can = id != "score-budget" && id != "batch" && id != "transfer-bandwidth";
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
