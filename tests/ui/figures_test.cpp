// Figures: what all have in common, those of evaluations, what they refuse, and the dialog.
#include "profiler/read/step_kind.h"
#include "tests/ui/figure_runs.h"
#include "ui/figures/figure_dialog.h"
#include "ui/figures/stated_ratios.h"

#include <QFile>
#include <QLabel>
#include <QListWidget>
#include <QSignalSpy>
#include <QTest>
#include <QThreadPool>
#include <QXmlStreamReader>
#include <map>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class Figures : public test::FigureRuns {
protected:
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
                                                              {"answer-bytes", {"answers.json"}},
                                                              {"layer-breakdown", {"nosa", "full"}},
                                                              {"batch", {"nosa", "pair"}},
                                                              {"overlap", {"nosa", "infllmv2"}},
                                                              {"layer-reuse", {"nosa", "infllmv2"}},
                                                              {"look-back", {"nosa", "infllmv2"}},
                                                              {"attention-context", {"nosa", "long", "full"}},
                                                              {"device-pool", {"small"}},
                                                              {"request-rate", {"served"}},
                                                              {"ladder", {"ladder.json"}},
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
};

TEST_F(Figures, EveryPresetIsDrawnWithItsTextInSvgAndPdf) {
    EXPECT_EQ(figures().size(), suitable().size() + (denoises() ? 0 : 6));
    for (const FigureEntry& entry : figures()) {
        SCOPED_TRACE(entry.id);
        if (!denoises() && needsDenoising(entry.id)) continue;
        const FigureData data = make(entry.id, suitable().at(entry.id));
        EXPECT_FALSE(data.note.empty());
        for (const StatedRatio& ratio : statedRatios()) {
            if (ratio.figure != std::string(entry.id)) continue;
            EXPECT_NE(data.note.find(statedText(ratio)), std::string::npos) << statedText(ratio) << ": " << data.note;
        }
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

TEST_F(Figures, EveryStatedRatioHasAPresetThatNamesItsFigure) {
    std::set<std::string> sources;
    for (const StatedRatio& ratio : statedRatios()) {
        const std::string source = ratio.source, redraws = findFigure(ratio.figure).redraws;
        sources.insert(source);
        const std::size_t comma = source.find(", Fig. ");
        ASSERT_NE(comma, std::string::npos) << source;
        EXPECT_NE(redraws.find(source.substr(0, comma)), std::string::npos) << redraws;
        EXPECT_NE(redraws.find(source.substr(comma + 7)), std::string::npos) << ratio.figure << " redraws " << redraws;
        EXPECT_GT(ratio.value, 0);
    }
    std::set<std::string> wanted;
    for (const char* figure : {"1", "4", "8", "10", "11", "12", "13", "14a", "14b", "15", "16"})
        wanted.insert(std::string("SparseServe, Fig. ") + figure);
    EXPECT_EQ(sources, wanted);
    EXPECT_EQ(statedWords("overlap"),
              "SparseServe states 10.68 points more at w = 12 than at w = 1, 0.31 points more at "
              "w = 16 than at w = 12 (Fig. 8)");
    EXPECT_EQ(statedWords("locality"), "");
}

TEST_F(Figures, PresetsRefuseWhatTheyCannotDrawAndSayWhy) {
    const std::map<std::string, std::string> reasons{
        {"locality", "no layer selects blocks"},
        {"throughput-hit-rate", "not two of different hit rate"},
        {"transfer-bandwidth", "none loaded blocks while decoding"},
        {"score-budget", "there are no scores here"},
        {"quality", "there are no answers here"},
        {"answer-bytes", "there are no scores here"},
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
        {"ladder", "no rung of a ladder of which a rate holds"},
        {"prompt-stores", "none says how a server brought prompts to the host"},
        {"prompt-chunks", "in none a server read prompts in parts"},
        {"loading", "none knows how long its decode steps waited for blocks"},
    };
    for (const auto& [id, reason] : reasons) {
        const std::string message = test::failureOf([&] { make(id.c_str(), {"full"}); });
        EXPECT_NE(message.find(reason), std::string::npos) << id << ": " << message;
        EXPECT_NE(message.find("give "), std::string::npos) << "and what it needs: " << message;
    }
    EXPECT_NE(test::failureOf([&] { make("layer-breakdown", {"scores.json"}); }).find("there are no traces here"),
              std::string::npos);
    EXPECT_NE(test::failureOf([&] { make("transfer-bandwidth", {"nosa"}); }).find("has blocks of 32.2 KiB"),
              std::string::npos);
    EXPECT_NE(test::failureOf([] { findFigure("pie"); }).find("choose one of locality, "), std::string::npos);
}

TEST_F(Figures, NotesSayWhichStepsTheirMeansCount) {
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

TEST_F(Figures, AnswersStandWithTheirIntervals) {
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
    EXPECT_NE(test::failureOf([&] { make("quality", {"broken.json"}); }).find("a row is not complete"),
              std::string::npos);
}

TEST_F(Figures, TheFrontOfAnswersAndBytesHoldsWhatNothingBeats) {
    const FigureData data = make("answer-bytes", {"answers.json"});
    ASSERT_EQ(data.panels.size(), 1U);
    const FigurePanel& panel = data.panels[0];
    EXPECT_EQ(panel.xTitle, "Bytes from the host per token (KiB)");
    EXPECT_EQ(panel.yTitle, "Needles answered (%), 2048 tokens");
    const FigureSeries& nosa = series(panel, "NOSA");
    EXPECT_EQ(nosa.x, (std::vector<double>{32, 64})) << "by bytes, not as in the file";
    EXPECT_EQ(nosa.y, (std::vector<double>{50, 90}));
    EXPECT_NEAR(nosa.low[1], 69.90, 0.01) << "Wilson, 18 of 20";
    EXPECT_NEAR(nosa.high[1], 97.21, 0.01);
    EXPECT_EQ(series(panel, "Quest").y, std::vector<double>{85});
    const FigureSeries& front = series(panel, "Pareto front");
    EXPECT_EQ(front.x, (std::vector<double>{32, 64})) << "Quest loads more and answers less";
    EXPECT_EQ(front.y, (std::vector<double>{50, 90}));
    EXPECT_TRUE(front.low.empty());
    const FigureSeries& resident = series(panel, "Full attention, resident");
    EXPECT_EQ(resident.x, std::vector<double>{0});
    EXPECT_TRUE(resident.hollow);
    EXPECT_NE(data.note.find("at least 20 prompts a point"), std::string::npos) << data.note;
    EXPECT_NE(test::failureOf([&] { make("answer-bytes", {"scores.json"}); }).find("fewer than two rows"),
              std::string::npos);
}

TEST_F(Figures, ScoresComeFromTheEvaluation) {
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
    EXPECT_NE(test::failureOf([] { sources({"broken.json"}); }).find("neither a trace nor JSON"), std::string::npos);
    EXPECT_NE(test::failureOf([] { sources({"empty.json"}); }).find("there are no rows"), std::string::npos);
    EXPECT_NE(test::failureOf([] { sources({"scoreless.json"}); }).find("a row has no score"), std::string::npos);
    EXPECT_NE(test::failureOf([] { sources({"absent.json"}); }).find("absent.json"), std::string::npos);
    for (const char* row : {R"({"method": {}, "needle_accuracy": 1})", R"({"method": "nosa", "needle_accuracy": 3})",
                            R"({"method": "nosa", "needle_accuracy": 1, "tokens_per_s": -944})",
                            R"({"method": "nosa", "needle_accuracy": 1, "context": 1e300})"}) {
        std::ofstream(path("impossible.json")) << "[" << row << "]";
        EXPECT_NE(test::failureOf([] { sources({"impossible.json"}); }).find("impossible.json: a row"),
                  std::string::npos)
            << row;
    }
}

TEST_F(Figures, CsvHoldsEveryNumberThatIsDrawn) {
    const FigureData data = make("layer-breakdown", {"nosa", "full"});
    std::size_t points = 0;
    for (const FigureSeries& one : data.panels[0].series) points += one.x.size();
    const QString csv = QString::fromStdString(figureCsv(data));
    EXPECT_EQ(csv.count('\n'), qsizetype(points) + 1);
    EXPECT_TRUE(csv.startsWith("panel,series,x,name,y,low,high,basis,"));
    EXPECT_TRUE(csv.contains("modelled"));
}

TEST_F(Figures, SizesAreMillimetres) {
    EXPECT_EQ(parseFigureSize("85"), QSizeF(85, 0));
    EXPECT_EQ(parseFigureSize("170x90mm"), QSizeF(170, 90));
    for (const char* wrong : {"", "big", "10", "85x", "85x1", "1000", "85x60cm", "-85"})
        EXPECT_NE(test::failureOf([&] { parseFigureSize(wrong); }).find("millimetres"), std::string::npos) << wrong;
    const FigureData data = make("locality", {"nosa"});
    const QString picture = folder->filePath("sized.png");
    writeFigure(data, picture, {170, 60});
    EXPECT_NEAR(QImage(picture).height(), 60 / 25.4 * 600, 1);
    EXPECT_NE(test::failureOf([&] { writeFigure(data, folder->filePath("x.doc")); }).find(".svg, .pdf or .png"),
              std::string::npos);
    EXPECT_NE(test::failureOf([&] { writeFigure(data, folder->filePath("no/where.svg")); }).find("no/where.svg"),
              std::string::npos);
}

TEST_F(Figures, DialogOffersWhatTheTracesCanDraw) {
    auto* dialog = new FigureDialog({QString::fromStdString(trace("nosa")), QString::fromStdString(trace("long"))});
    QSignalSpy drawn(dialog, &FigureDialog::drawn);
    ASSERT_TRUE(drawn.wait(20'000));
    ASSERT_TRUE(dialog->shown()) << "the first that can be drawn is shown";
    const auto* list = dialog->findChild<QListWidget*>("figures");
    ASSERT_EQ(std::size_t(list->count()), figures().size());
    for (int row = 0; row < list->count(); ++row) {
        const std::string id = figures()[std::size_t(row)].id;
        const bool can = id != "score-budget" && id != "batch" && id != "transfer-bandwidth" && id != "request-rate" &&
                         id != "prompt-stores" && id != "prompt-chunks" && id != "quality" && id != "answer-bytes" &&
                         id != "ladder" && !needsDenoising(id);
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

TEST_F(Figures, DialogMayBeClosedWhileItReads) {
    auto* dialog = new FigureDialog({QString::fromStdString(trace("nosa"))});
    delete dialog;
    QThreadPool::globalInstance()->waitForDone();
    QCoreApplication::processEvents(); // the answer comes after the dialog is gone
    auto* empty = new FigureDialog({QString::fromStdString(path("absent.kvtrace"))});
    auto* status = empty->findChild<QLabel*>("figureStatus");
    EXPECT_TRUE(QTest::qWaitFor([&] { return status->text().contains("absent.kvtrace"); }, 20'000));
    delete empty;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
