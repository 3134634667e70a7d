// A run's timeline and tables as files, from the menus of the desktop; previews of numbers away from the GUI thread.
#include "tests/ui/timeline_fixture.h"
#include "tests/ui/window_fixture.h"

#include "base/error.h"
#include "tests/profiler/sql_rows.h"
#include "ui/frame/export_strip.h"
#include "ui/frame/number_tables.h"
#include "ui/views/marks_range.h"
#include "ui/widgets/data_export_menu.h"
#include "ui/widgets/export_dialog.h"
#include "ui/widgets/numbers_preview.h"
#include <atomic>

#include <QFile>
#include <QFileDialog>
#include <QJsonArray>
#include <QJsonDocument>
#include <QJsonObject>
#include <QMenuBar>
#include <QPushButton>
#include <QThread>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

QByteArray bytesOf(const QString& path) {
    QFile file(path);
    return file.open(QIODevice::ReadOnly) ? file.readAll() : QByteArray();
}

/// Names of the slices of a Chrome trace, each with how often it is there.
std::map<QString, int> slicesIn(const QString& path) {
    std::map<QString, int> names;
    const QJsonDocument document = QJsonDocument::fromJson(bytesOf(path));
    EXPECT_TRUE(document.isObject()) << path.toStdString();
    for (const QJsonValue event : document[QStringLiteral("traceEvents")].toArray())
        if (event[QStringLiteral("ph")].toString() == QLatin1String("X"))
            ++names[event[QStringLiteral("name")].toString()];
    return names;
}

class DataExport : public TimelineTest {
protected:
    /// The problem an export ended with; what it wrote otherwise is at `path`.
    QString problemOf(DataExportMenu& menu, const std::function<void()>& begin) {
        QSignalSpy ended(&menu, &DataExportMenu::finished);
        begin();
        EXPECT_TRUE(waitFor([&] { return !ended.isEmpty(); }));
        return ended.isEmpty() ? QStringLiteral("it never ended") : ended[0][1].toString();
    }
};

TEST_F(DataExport, WritesTheTimelineForPerfettoWholeOrAsMarked) {
    openAndShow({.layers = 3, .decodeSteps = 12});
    auto& marks = dynamic_cast<MarksRange&>(*view);
    DataExportMenu menu(
        workspace, [&] { return marks.markedRange(); }, view.get(), nullptr);
    ASSERT_TRUE(menu.findChild<QAction*>(QStringLiteral("exportPerfetto"))->isEnabled());
    EXPECT_FALSE(menu.findChild<QAction*>(QStringLiteral("exportPerfettoRange"))->isEnabled()) << "nothing is marked";
    EXPECT_EQ(problemOf(menu, [&] { menu.writePerfetto(file("whole.json"), false); }), QString());
    auto names = slicesIn(file("whole.json"));
    EXPECT_EQ(names[QStringLiteral("decode")], 12);
    EXPECT_EQ(names[QStringLiteral("prefill")], 1);
    EXPECT_EQ(names[QStringLiteral("layer 2")], 13);

    const TimelineSpan third = index().at(find("decode", 3));
    timeline().measure(TimeRange{double(third.startNs) + 1, double(third.endNs()) - 1});
    emit menu.aboutToShow();
    ASSERT_TRUE(menu.findChild<QAction*>(QStringLiteral("exportPerfettoRange"))->isEnabled());
    EXPECT_EQ(problemOf(menu, [&] { menu.writePerfetto(file("range.json"), true); }), QString());
    names = slicesIn(file("range.json"));
    EXPECT_EQ(names[QStringLiteral("decode")], 1);
    EXPECT_EQ(names.count(QStringLiteral("prefill")), 0u);
    EXPECT_EQ(names[QStringLiteral("layer 2")], 1);
    view->hide();
    open(recorded("another.kvtrace", {}));
    workspace.setCurrent(workspace.runs().back().key);
    EXPECT_FALSE(marks.markedRange()) << "what was marked in one run is no range of another";
}

TEST_F(DataExport, WritesTablesAsCsvAndJsonLinesAndSaysWhatIsNotThere) {
    openAndShow({.layers = 3, .decodeSteps = 12});
    DataExportMenu menu(
        workspace, [] { return std::nullopt; }, view.get(), nullptr);
    EXPECT_EQ(problemOf(menu, [&] { menu.writeTable(ExportTable::Spans, file("spans.csv"), false); }), QString());
    const QByteArray csv = bytesOf(file("spans.csv"));
    EXPECT_TRUE(csv.startsWith("run_id,step,layer,track,name,start_ns,duration_ns,depth,category,args\n"))
        << csv.left(90).toStdString();
    EXPECT_EQ(std::to_string(csv.count('\n') - 1),
              test::value(workspace.current()->key.path.toStdString(), "SELECT count(*) FROM v_span"));
    EXPECT_EQ(problemOf(menu, [&] { menu.writeTable(ExportTable::Steps, file("steps.jsonl"), false); }), QString());
    const QList<QByteArray> lines = bytesOf(file("steps.jsonl")).trimmed().split('\n');
    ASSERT_EQ(lines.size(), 13);
    EXPECT_EQ(QJsonDocument::fromJson(lines[4])[QStringLiteral("step")].toInt(), 4);
    const QString problem = problemOf(menu, [&] { menu.writeTable(ExportTable::Kernels, file("kernels.csv"), false); });
    EXPECT_TRUE(problem.contains(QStringLiteral("no kernels"))) << problem.toStdString();
    EXPECT_FALSE(QFile::exists(file("kernels.csv")));
    EXPECT_FALSE(problemOf(menu, [&] { menu.writePerfetto(file("no/folder.json"), false); }).isEmpty());
}

TEST_F(DataExport, CanBeStoppedAndLeavesNothing) {
    openAndShow({.layers = 3, .decodeSteps = 12});
    ExportStrip strip(view.get());
    QSignalSpy ended(&strip, &ExportStrip::finished);
    std::atomic<bool> began{false};
    strip.toFile(
        [&](NumberSink& sink) {
            sink.add("a\n1\n");
            began = true;
            while (!*sink.interrupt()) QThread::msleep(1); // under way until it is stopped
            sink.add("2\n");
        },
        file("stopped.csv"));
    ASSERT_TRUE(waitFor([&] { return began.load(); }));
    strip.findChild<QPushButton*>(QStringLiteral("stopExport"))->click();
    ASSERT_TRUE(waitFor([&] { return !ended.isEmpty(); }));
    EXPECT_TRUE(ended[0][2].toBool());
    EXPECT_FALSE(QFile::exists(file("stopped.csv")));
}

TEST_F(DataExport, TheTimelineOffersItsSpansBesideItsSelfTimes) {
    openAndShow({.layers = 3, .decodeSteps = 12});
    const TimelineSpan third = index().at(find("decode", 3));
    timeline().measure(TimeRange{double(third.startNs), double(third.endNs())});
    ExportDialog dialog(*view, file("timeline"), {}, nullptr);
    auto* tables = dialog.findChild<QComboBox*>(QStringLiteral("exportTable"));
    ASSERT_EQ(tables->count(), 2);
    EXPECT_EQ(tables->itemText(0), QStringLiteral("Self times in the marked range"));
    EXPECT_EQ(tables->itemText(1), QStringLiteral("Spans of the marked range"));
    dialog.findChild<QComboBox*>(QStringLiteral("exportFormat"))->setCurrentIndex(3); // CSV
    tables->setCurrentIndex(1);
    QSignalSpy saved(&dialog, &ExportDialog::saved);
    ASSERT_TRUE(dialog.save(file("spans.csv")));
    ASSERT_TRUE(waitFor([&] { return !saved.isEmpty(); }));
    const QByteArray csv = bytesOf(file("spans.csv"));
    EXPECT_TRUE(csv.startsWith("run_id,step,layer,track,name"));
    EXPECT_TRUE(csv.contains(",decode,"));
    EXPECT_FALSE(csv.contains(",prefill,"));
    EXPECT_EQ(view->exportCsv().indexOf(QStringLiteral("run_id")), -1)
        << "the view's own table is still the self times";
}

TEST(NumbersPreview, ReadsOnAWorkerAndAnswersOnlyTheNewestRequest) {
    NumbersPreview preview;
    QSignalSpy ready(&preview, &NumbersPreview::ready);
    std::atomic<bool> go{false};
    std::atomic<QThread*> worker{nullptr};
    preview.ask(
        [&](NumberSink& sink) {
            worker = QThread::currentThread();
            while (!go && !*sink.interrupt()) QThread::msleep(1); // like a query that takes its time
            sink.add("old\n1\n");
        },
        5);
    ASSERT_TRUE(waitFor([&] { return worker != nullptr; })) << "the GUI thread waits for nobody";
    EXPECT_NE(worker.load(), QThread::currentThread());
    preview.ask([](NumberSink& sink) { sink.add("a\n1\n2\n3\n"); }, 3);
    ASSERT_TRUE(waitFor([&] { return !ready.isEmpty(); }));
    go = true;
    EXPECT_EQ(ready[0][0].toString(), QStringLiteral("a\n1\n2"));
    EXPECT_EQ(ready[0][1].toString(), QString());
    preview.ask([](NumberSink&) { throw Error(ErrorKind::BadInput, "the trace is damaged", "record it again"); }, 3);
    ASSERT_TRUE(waitFor([&] { return ready.count() == 2; }));
    EXPECT_TRUE(ready[1][1].toString().contains(QStringLiteral("damaged")));
    preview.ask({}, 3);
    ASSERT_EQ(ready.count(), 3);
    EXPECT_TRUE(ready[2][0].toString().isEmpty());
    QThreadPool::globalInstance()->waitForDone();
    QCoreApplication::processEvents();
    EXPECT_EQ(ready.count(), 3) << "what was asked for first is not answered any more";
}

using DataExportWindow = WindowTest;

TEST_F(DataExportWindow, TheFileMenuHasIt) {
    auto window = makeWindow();
    auto* menu = window->findChild<DataExportMenu*>();
    ASSERT_TRUE(menu);
    EXPECT_FALSE(menu->menuAction()->isEnabled()) << "no run is open";
    auto opened = windowOnTrace();
    menu = opened->findChild<DataExportMenu*>();
    EXPECT_TRUE(menu->menuAction()->isEnabled());
    QSignalSpy ended(menu, &DataExportMenu::finished);
    menu->writePerfetto(folder.filePath("timeline.json"), false);
    ASSERT_TRUE(until([&] { return !ended.isEmpty(); }));
    EXPECT_EQ(ended[0][1].toString(), QString());
    EXPECT_GT(slicesIn(folder.filePath("timeline.json")).size(), 5u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
