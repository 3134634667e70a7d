// Numbers written away from the GUI thread: the window goes on, what is stopped or fails leaves nothing behind.
#include "tests/ui/view_fixture.h"

#include "base/error.h"
#include "profiler/tiles/step_spans.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/json_lines.h"
#include "ui/frame/numbers_export.h"

#include <QApplication>
#include <QClipboard>
#include <QDir>
#include <QFile>
#include <QLabel>
#include <QPushButton>
#include <QSignalSpy>
#include <QThread>
#include <QTimer>

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <thread>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using namespace std::chrono_literals;

class NumbersExportTest : public ViewTest {
protected:
    static QString textIn(const QString& path) {
        QFile in(path);
        return in.open(QIODevice::ReadOnly) ? QString::fromUtf8(in.readAll()) : QString();
    }
    QStringList files() const { return QDir(file("out")).entryList(QDir::Files); }
    void SetUp() override { QDir().mkpath(file("out")); }
};

/// Its end as signalled.
struct End {
    explicit End(NumbersExport& exporting) : spy(&exporting, &NumbersExport::finished) {}
    bool wait() {
        return waitFor([this] { return spy.count() > 0; });
    }
    QString problem() const { return spy[0][1].toString(); }
    bool cancelled() const { return spy[0][2].toBool(); }
    QSignalSpy spy;
};

TEST_F(NumbersExportTest, TheGuiThreadServesEventsBetweenAnyTwoParts) {
    constexpr int parts = 200;
    std::atomic<int> served{0}; // events of the GUI thread
    QTimer events;
    QObject::connect(&events, &QTimer::timeout, [&] { ++served; });
    events.start(0);
    std::atomic<bool> starved{false};
    NumbersExport exporting;
    End end(exporting);
    const auto* gui = QThread::currentThread();
    exporting.toFile(
        [&](NumberSink& sink) {
            EXPECT_NE(QThread::currentThread(), gui);
            sink.add("part\n");
            for (int part = 0; part < parts && !starved; ++part) {
                const int before = served;
                for (int turns = 0; served == before; ++turns) { // waits until the window has handled an event
                    if (turns > 20'000) starved = true;          // the window has hung for twenty seconds
                    if (starved) break;
                    std::this_thread::sleep_for(1ms);
                }
                sink.add(std::to_string(part) + "\n");
                sink.progress(double(part) / parts);
            }
        },
        file("out/parts.csv"));
    EXPECT_TRUE(exporting.running());
    ASSERT_TRUE(waitFor([&] { return end.spy.count() > 0; }));
    EXPECT_FALSE(starved) << "the GUI thread did something else than serving events";
    EXPECT_GE(served, parts);
    EXPECT_EQ(end.problem(), QString());
    EXPECT_FALSE(exporting.running());
    EXPECT_EQ(textIn(file("out/parts.csv")).count(QLatin1Char('\n')), parts + 1);
}

TEST_F(NumbersExportTest, AStoppedExportLeavesNothing) {
    NumbersExport exporting;
    End end(exporting);
    QSignalSpy progressed(&exporting, &NumbersExport::progressed);
    exporting.toFile(
        [](NumberSink& sink) {
            sink.add("number\n");
            for (int i = 0;; ++i) { // never ends by itself
                sink.add(std::string(1000, '7') + "\n");
                sink.progress(0.5);
            }
        },
        file("out/endless.csv"));
    ASSERT_TRUE(waitFor([&] { return progressed.count() > 0; }));
    exporting.cancel();
    ASSERT_TRUE(end.wait());
    EXPECT_TRUE(end.cancelled());
    EXPECT_EQ(end.problem(), QString());
    EXPECT_EQ(files(), QStringList());
}

TEST_F(NumbersExportTest, GoesWithItsOwner) {
    {
        NumbersExport exporting;
        exporting.toFile(
            [](NumberSink& sink) {
                for (;;) sink.add("1\n");
            },
            file("out/gone.csv"));
    }
    EXPECT_EQ(files(), QStringList());
}

TEST_F(NumbersExportTest, TheNextOneTakesThePlaceOfTheOneUnderWay) {
    NumbersExport exporting;
    End end(exporting);
    exporting.toFile(
        [](NumberSink& sink) {
            for (;;) sink.add("1\n");
        },
        file("out/first.csv"));
    exporting.toFile(numbersOf(QStringLiteral("a\n2\n")), file("out/second.csv"));
    ASSERT_TRUE(waitFor([&] { return end.spy.count() == 2; }));
    EXPECT_TRUE(end.cancelled()) << "the first";
    EXPECT_FALSE(end.spy[1][2].toBool());
    EXPECT_EQ(files(), QStringList("second.csv"));
    EXPECT_FALSE(exporting.running());
}

TEST_F(NumbersExportTest, SaysWhatIsWrongWithThePlaceOrTheTrace) {
    const auto problemOf = [&](NumberWriter numbers, const QString& path) {
        NumbersExport exporting;
        End end(exporting);
        exporting.toFile(std::move(numbers), path);
        EXPECT_TRUE(end.wait());
        return end.problem();
    };
    const NumberWriter numbers = numbersOf(QString(QStringLiteral("a\n") + QString(2'000'000, QLatin1Char('1'))));
    const QString nowhere = file("no/such/folder/x.csv");
    EXPECT_TRUE(problemOf(numbers, nowhere).contains(nowhere));
    if (QFile::exists(QStringLiteral("/dev/full"))) {
        const QString full = problemOf(numbers, QStringLiteral("/dev/full"));
        EXPECT_TRUE(full.contains(QStringLiteral("/dev/full")) && full.contains(QStringLiteral("full")))
            << full.toStdString();
    }
    const NumberWriter broken = [](NumberSink& sink) {
        sink.add("a\n1\n");
        throw Error(ErrorKind::Storage, "step 7 of x.kvtrace is damaged");
    };
    EXPECT_TRUE(problemOf(broken, file("out/broken.csv")).contains(QStringLiteral("step 7")));
    EXPECT_EQ(files(), QStringList());
}

TEST_F(NumbersExportTest, ViewsGiveTheSameNumbersToFilesAndToTheClipboard) {
    open(recorded("a.kvtrace", {.layers = 3, .kvHeads = 2, .decodeSteps = kTileSteps + 200}));
    for (const char* id : {"locality", "selection", "transfers", "breakdown"}) {
        show(id);
        const QString csv = view->exportCsv();
        ASSERT_GT(csv.count(QLatin1Char('\n')), kTileSteps) << id;
        QSignalSpy ended(view.get(), &View::numbersExported);
        const QString path = file("out/numbers.csv");
        view->exportNumbers(path);
        ASSERT_TRUE(waitFor([&] { return ended.count() == 1; })) << id;
        EXPECT_EQ(ended[0][1].toString(), QString()) << id;
        EXPECT_EQ(textIn(path), csv) << id;
        QApplication::clipboard()->clear();
        view->copyNumbers();
        ASSERT_TRUE(waitFor([&] { return ended.count() == 2; })) << id;
        EXPECT_EQ(QApplication::clipboard()->text(), tableFromCsv(csv)) << id;
    }
}

TEST_F(NumbersExportTest, TheViewShowsTheExportAndStopsIt) {
    open(recorded("a.kvtrace", {}));
    show("transfers");
    QSignalSpy ended(view.get(), &View::numbersExported);
    view->exportNumbers(file("out/shown.csv"));
    ASSERT_TRUE(waitFor([&] { return ended.count() == 1; }));
    auto* strip = view->findChild<QWidget*>(QStringLiteral("exportStrip"));
    ASSERT_TRUE(strip && strip->isVisible());
    EXPECT_TRUE(view->rect().contains(strip->geometry()));
    EXPECT_TRUE(strip->findChild<QLabel*>()->text().contains(QStringLiteral("shown.csv")));
    strip->findChild<QPushButton*>()->click();
    EXPECT_FALSE(strip->isVisible());
    view->exportNumbers(file("no/such/folder/shown.csv"));
    ASSERT_TRUE(waitFor([&] { return ended.count() == 2; }));
    EXPECT_TRUE(strip->isVisible()) << "an error stays until it was read";
    EXPECT_TRUE(strip->findChild<QLabel*>()->text().contains(QStringLiteral("no/such/folder")));
}

TEST(JsonLines, AreTheRowsOfTheCsv) {
    JsonLines lines;
    const std::string first = lines.convert("name,step,value,note\n\"a \"\"b\"\", c\",1,0.5,\n");
    const std::string second =
        lines.convert("x,02,-1e-7,\"7\"\ny,3,nan,\"two\nlines\"\n"); // the header is known by now
    EXPECT_EQ(first, "{\"name\":\"a \\\"b\\\", c\",\"step\":1,\"value\":0.5,\"note\":null}\n");
    std::vector<nlohmann::json> rows;
    for (std::size_t at = 0; at < second.size(); at = second.find('\n', at) + 1)
        rows.push_back(nlohmann::json::parse(second.substr(at, second.find('\n', at) - at)));
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0], (nlohmann::json{{"name", "x"}, {"step", "02"}, {"value", -1e-7}, {"note", "7"}}));
    EXPECT_EQ(rows[1], (nlohmann::json{{"name", "y"}, {"step", 3}, {"value", "nan"}, {"note", "two\nlines"}}));
}

TEST_F(NumbersExportTest, AFileOfJsonLinesHasARowForEveryLineOfTheCsv) {
    open(recorded("a.kvtrace", {.decodeSteps = 3000}));
    show("transfers");
    QSignalSpy ended(view.get(), &View::numbersExported);
    view->exportNumbers(file("out/numbers.jsonl"));
    ASSERT_TRUE(waitFor([&] { return ended.count() == 1; }));
    const QStringList lines = textIn(file("out/numbers.jsonl")).split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    const QStringList csv = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), csv.size() - 1);
    const auto row = nlohmann::json::parse(lines[1234].toStdString());
    EXPECT_EQ(row["step"].get<int>(), csv[1235].section(QLatin1Char(','), 1, 1).toInt());
    EXPECT_EQ(row["exposed_ns"].get<std::int64_t>(), csv[1235].section(QLatin1Char(','), 7, 7).toLongLong());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
