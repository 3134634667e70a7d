// Files of other tools on the window, and views as pictures: as a person does both.
#include "core/model/model.h"
#include "profiler/export/gzip_stream.h"
#include "profiler/import/byte_source.h"
#include "tests/ui/small_trace.h"
#include "tests/ui/waiting.h"
#include "ui/frame/picture.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_view.h"
#include "ui/widgets/export_dialog.h"
#include "ui/widgets/import_bar.h"
#include "ui/widgets/session_form.h"
#include "ui/window/main_window.h"

#include <QAction>
#include <QApplication>
#include <QComboBox>
#include <QDir>
#include <QDragEnterEvent>
#include <QDropEvent>
#include <QFile>
#include <QImage>
#include <QLabel>
#include <QMimeData>
#include <QSignalSpy>
#include <QSpinBox>
#include <QStandardPaths>
#include <QTemporaryDir>
#include <QTest>
#include <QToolButton>
#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

template <class Condition> bool until(Condition&& condition) { return waitUntil(condition); }

class ImportExportTest : public testing::Test {
protected:
    ImportExportTest() {
        QStandardPaths::setTestModeEnabled(true);
        qputenv("XDG_CACHE_HOME", folder.filePath("cache").toLocal8Bit());
    }
    ~ImportExportTest() override { qunsetenv("XDG_CACHE_HOME"); }

    std::unique_ptr<MainWindow> makeWindow() {
        auto window = std::make_unique<MainWindow>(Settings(true));
        window->show();
        EXPECT_TRUE(QTest::qWaitForWindowExposed(window.get()));
        return window;
    }
    QString write(const QString& name, const QByteArray& bytes) {
        QFile file(folder.filePath(name));
        EXPECT_TRUE(file.open(QIODevice::WriteOnly));
        file.write(bytes);
        return file.fileName();
    }
    static QByteArray timeline(int events) {
        QByteArray text = "[";
        for (int i = 0; i < events; ++i)
            text += "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":" + QByteArray::number(i) +
                    ",\"dur\":1,\"name\":\"work\"},\n";
        return text;
    }
    /// Enter and drop, as a drag from a file manager ends.
    static bool drop(MainWindow& window, const QStringList& paths) {
        QMimeData data;
        QList<QUrl> urls;
        for (const QString& path : paths) urls << QUrl::fromLocalFile(path);
        data.setUrls(urls);
        QDragEnterEvent enter(QPoint(50, 50), Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
        QApplication::sendEvent(&window, &enter);
        if (!enter.isAccepted()) return false;
        QDropEvent event(QPointF(50, 50), Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
        QApplication::sendEvent(&window, &event);
        return true;
    }
    static QString message(MainWindow& window) { return window.findChild<QLabel*>("statusMessage")->text(); }

    QTemporaryDir folder;
};

TEST_F(ImportExportTest, DroppedFilesOfAnyKindOpenOrSayWhyNot) {
    const QString trace = folder.filePath("small.kvtrace");
    recordSmallTrace(trace);
    const QString json = write("timeline.json", timeline(100)), text = write("notes.txt", "no trace at all");
    const auto window = makeWindow();
    ASSERT_TRUE(drop(*window, {trace, json, text}));
    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.runs().size() == 2 && workspace.idle(); }));
    EXPECT_TRUE(until([&] { return message(*window).contains("notes.txt"); })) << message(*window).toStdString();
    EXPECT_EQ(QApplication::activeModalWidget(), nullptr);
    const auto imported = std::find_if(workspace.runs().begin(), workspace.runs().end(),
                                       [](const OpenRun& run) { return run.row.backend == RunBackend::Imported; });
    ASSERT_NE(imported, workspace.runs().end());
    EXPECT_EQ(imported->key.path, json) << "it goes by its own name, not by that of its conversion";

    // A view that needs steps says what the trace lacks, in each theme, and its picture says it too.
    workspace.setCurrent(imported->key);
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        ASSERT_TRUE(until([&] { return workspace.idle(); }));
        const auto* plot = dynamic_cast<PlotView*>(window->currentView());
        if (!plot || entry.withoutRun) continue;
        // A view that was hidden catches up when it is shown.
        EXPECT_TRUE(until([&] { return plot->emptyText().contains("imported from trace-event JSON"); }))
            << entry.id << ": " << plot->emptyText().toStdString();
        EXPECT_TRUE(window->currentView()->exportImage(folder.filePath("empty.png"), window->currentView()->size()));
    }
}

TEST_F(ImportExportTest, AModelThatIsDroppedIsChosen) {
    const auto window = makeWindow();
    ASSERT_TRUE(QDir(folder.path()).mkdir("checkpoint"));
    const QString config = write("checkpoint/config.json", "{}"),
                  gguf = write("damaged.gguf", "GGUF, and nothing else");
    ASSERT_TRUE(drop(*window, {folder.filePath("checkpoint")}));
    EXPECT_EQ(window->form().modelName(), folder.filePath("checkpoint"));
    ASSERT_TRUE(until([&] { return !window->form().modelProblem().isEmpty(); })) << "it has no weights";
    ASSERT_TRUE(drop(*window, {gguf}));
    EXPECT_EQ(window->form().modelName(), gguf);
    ASSERT_TRUE(until([&] { return window->form().modelProblem().contains("damaged.gguf"); }));
    EXPECT_TRUE(message(*window).contains("damaged.gguf"));
    EXPECT_TRUE(window->workspace().runs().empty());
    window->form().chooseModel(QString::fromLatin1(kDefaultModel));
    ASSERT_TRUE(until([&] { return window->form().hasModel(); }));
    EXPECT_EQ(message(*window), QString()) << "that model is not chosen any more";
}

TEST_F(ImportExportTest, WhatCouldNotBeOpenedIsForgottenWhenSomethingElseIs) {
    const QString trace = folder.filePath("small.kvtrace");
    recordSmallTrace(trace);
    const auto window = makeWindow();
    ASSERT_TRUE(drop(*window, {write("notes.txt", "no trace at all")}));
    ASSERT_TRUE(until([&] { return message(*window).contains("notes.txt"); }));
    const auto* told = window->findChild<QWidget*>("runListMessage");
    EXPECT_TRUE(told->isVisible());
    for (const QLabel* link : window->findChildren<QLabel*>())
        EXPECT_FALSE(link->text().contains("href") && link->text().contains("notes.txt")) << "no recent trace";
    ASSERT_TRUE(drop(*window, {trace}));
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 1; }));
    EXPECT_EQ(message(*window), QString());
    EXPECT_FALSE(told->isVisible());
}

TEST_F(ImportExportTest, WhatMayOpenLaterStaysARecentFile) {
    const QString trace = folder.filePath("newer.kvtrace");
    recordSmallTrace(trace);
    QFile file(trace);
    ASSERT_TRUE(file.open(QIODevice::ReadWrite) && file.seek(60)); // where SQLite keeps the user version
    file.write(QByteArray::fromHex("7f000000"));
    file.close();
    const QString broken = write("broken.json", R"({"traceEvents":[{"ph":"X","ts":1,"dur":)");
    const auto window = makeWindow();
    const auto isRecent = [&](const QString& path) {
        for (const QLabel* label : window->findChildren<QLabel*>())
            if (label->toolTip() == path && !label->isHidden()) return true;
        return false;
    };
    ASSERT_TRUE(drop(*window, {trace}));
    ASSERT_TRUE(until([&] { return message(*window).contains("reads up to"); })) << message(*window).toStdString();
    EXPECT_TRUE(isRecent(trace)) << "a newer program reads it";
    ASSERT_TRUE(drop(*window, {broken}));
    ASSERT_TRUE(until([&] { return message(*window).contains("broken.json"); })) << message(*window).toStdString();
    EXPECT_TRUE(isRecent(broken));
}

TEST_F(ImportExportTest, AnImportShowsProgressAndCanBeStopped) {
    const QString json = write("long.json", timeline(400'000));
    const auto window = makeWindow();
    ASSERT_TRUE(drop(*window, {json}));
    auto* bar = window->findChild<ImportBar*>();
    ASSERT_NE(bar, nullptr);
    EXPECT_TRUE(bar->isVisible());
    QSignalSpy cancelled(bar, &ImportBar::cancelled);
    QTest::mouseClick(bar->findChild<QToolButton*>("importCancel"), Qt::LeftButton);
    ASSERT_TRUE(until([&] { return !bar->isBusy(); }));
    EXPECT_EQ(cancelled.size(), 1);
    EXPECT_TRUE(message(*window).contains("cancelled"));
    EXPECT_FALSE(bar->isVisible());
    EXPECT_TRUE(window->workspace().runs().empty());
    const QDir cache(folder.filePath("cache/kvscope/imports"));
    EXPECT_TRUE(cache.entryList(QDir::Files).isEmpty()) << "half a conversion was kept";

    ASSERT_TRUE(drop(*window, {json}));
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 1; }));
    EXPECT_FALSE(ImportBar::isNeededFor(json)) << "the next time it opens at once";
}

TEST_F(ImportExportTest, ClosingTheWindowStopsAnImport) {
    const QString json = write("long.json", timeline(400'000));
    auto window = makeWindow();
    ASSERT_TRUE(drop(*window, {json}));
    window.reset();
    EXPECT_TRUE(QDir(folder.filePath("cache/kvscope/imports")).entryList(QDir::Files).isEmpty());
}

TEST_F(ImportExportTest, ADamagedFileSaysSoWhereRunsAreListed) {
    const QString json = write("damaged.json", "{\"traceEvents\":[{\"ph\":\"X\",\"ts\":");
    const auto window = makeWindow();
    ASSERT_TRUE(drop(*window, {json}));
    ASSERT_TRUE(until([&] { return message(*window).contains("cut short"); })) << message(*window).toStdString();
    EXPECT_EQ(QApplication::activeModalWidget(), nullptr);
}

class ViewExport : public ImportExportTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(ViewExport, HasTheSizeScaleAndThemeThatWereChosen) {
    const QString id = QString::fromStdString(GetParam()), trace = folder.filePath("small.kvtrace");
    recordSmallTrace(trace);
    const auto window = makeWindow();
    window->openFiles({trace});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 1 && window->workspace().idle(); }));
    window->showView(id);
    ASSERT_TRUE(until([&] { return window->workspace().idle(); }));
    View* view = window->currentView();
    ASSERT_NE(view, nullptr);
    auto* dialog = new ExportDialog(*view, folder.filePath(id), {}, window.get());
    QSignalSpy previewed(dialog, &ExportDialog::previewed);
    dialog->show();
    const auto choose = [&](const char* box, int index) { dialog->findChild<QComboBox*>(box)->setCurrentIndex(index); };
    choose("exportPreset", 5);
    dialog->findChild<QSpinBox*>("exportWidth")->setValue(720);
    dialog->findChild<QSpinBox*>("exportHeight")->setValue(500);
    choose("exportFormat", 0);
    choose("exportScale", 1);
    for (const char* theme : {"light", "dark"}) {
        choose("exportTheme", QLatin1String(theme) == QLatin1String("light") ? 1 : 2);
        const QString png = folder.filePath(QStringLiteral("%1-%2.png").arg(id, theme));
        ASSERT_TRUE(dialog->save(png)) << dialog->findChild<QLabel*>("exportStatus")->text().toStdString();
        const QImage image(png);
        if (dynamic_cast<PlotView*>(view) || id == "timeline") { // a plot is drawn at exactly what was asked for
            EXPECT_EQ(image.size(), QSize(1440, 1000));
            EXPECT_EQ(image.pixelColor(2, 2).rgb(), Theme::byId(theme).plotBackground.rgb()) << theme;
        }
        EXPECT_EQ(Theme::current().id, "light") << "the window keeps its theme";
    }
    const QImage dark(folder.filePath(id + QStringLiteral("-dark.png")));
    window->setTheme(QStringLiteral("dark"));
    choose("exportTheme", 0); // the program's
    const QString ofDarkWindow = folder.filePath(QStringLiteral("dark window.png"));
    ASSERT_TRUE(dialog->save(ofDarkWindow));
    EXPECT_EQ(dark, QImage(ofDarkWindow)) << "as if the whole window were dark";
    window->setTheme(QStringLiteral("light"));
    choose("exportTheme", 2);
    for (const char* suffix : {"svg", "pdf"}) {
        choose("exportFormat", QLatin1String(suffix) == QLatin1String("svg") ? 1 : 2);
        ASSERT_TRUE(dialog->save(folder.filePath(id))); // the suffix is added
        QFile file(folder.filePath(QStringLiteral("%1.%2").arg(id, suffix)));
        ASSERT_TRUE(file.open(QIODevice::ReadOnly)) << suffix;
        EXPECT_TRUE(file.read(200).contains(QLatin1String(suffix) == QLatin1String("svg") ? "<?xml" : "%PDF"));
    }
    EXPECT_TRUE(until([&] { return !previewed.isEmpty(); }));
    EXPECT_FALSE(dialog->save(folder.filePath("no/such/folder/x.png")));
    EXPECT_TRUE(
        dialog->findChild<QLabel*>("exportStatus")->text().contains("could not be written: No such file or directory"));
    delete dialog;
}

std::vector<std::string> viewIds() {
    std::vector<std::string> ids;
    for (const ViewEntry& entry : views()) ids.emplace_back(entry.id);
    return ids;
}

INSTANTIATE_TEST_SUITE_P(Views, ViewExport, ::testing::ValuesIn(viewIds()),
                         [](const auto& tested) { return tested.param; });

TEST_F(ImportExportTest, TheDialogRemembersAndOpensFromTheMenu) {
    const QString trace = folder.filePath("small.kvtrace"), settings = folder.filePath("export.ini");
    recordSmallTrace(trace);
    const auto window = makeWindow();
    window->openFiles({trace});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 1 && window->workspace().idle(); }));
    window->showView("breakdown");
    ASSERT_TRUE(until([&] { return window->workspace().idle(); }));
    auto* first = new ExportDialog(*window->currentView(), folder.filePath("a"), settings, window.get());
    first->findChild<QComboBox*>("exportFormat")->setCurrentIndex(2);
    first->findChild<QComboBox*>("exportPreset")->setCurrentIndex(3);
    first->findChild<QComboBox*>("exportTheme")->setCurrentIndex(2);
    ASSERT_TRUE(first->save(folder.filePath("a.pdf")));
    delete first;
    auto* second = new ExportDialog(*window->currentView(), folder.filePath("b"), settings, window.get());
    EXPECT_EQ(second->format(), "pdf");
    EXPECT_EQ(second->style().size, QSize(960, 600));
    EXPECT_EQ(second->style().theme, "dark");
    delete second;
    auto* third = new ExportDialog(*window->currentView(), folder.filePath("c"), trace + "/export.ini", window.get());
    EXPECT_TRUE(third->save(folder.filePath("c.png")));
    const QString status = third->findChild<QLabel*>("exportStatus")->text();
    EXPECT_TRUE(status.startsWith("Saved ") && status.contains("export.ini could not be written"))
        << status.toStdString();
    delete third;

    window->action("exportView")->trigger();
    auto* dialog = window->findChild<ExportDialog*>();
    ASSERT_NE(dialog, nullptr);
    EXPECT_FALSE(dialog->isModal()) << "the view stays usable while a picture of it is chosen";
    QSignalSpy previewed(dialog, &ExportDialog::previewed);
    ASSERT_TRUE(until([&] { return !previewed.isEmpty(); }));
    EXPECT_FALSE(dialog->findChild<QLabel*>("exportPreview")->pixmap().isNull());
    QSignalSpy saved(dialog, &ExportDialog::saved);
    dialog->findChild<QComboBox*>("exportFormat")->setCurrentIndex(3); // numbers
    ASSERT_TRUE(until([&] { return !window->currentView()->exportCsv().isEmpty(); })) << "it is read by then";
    ASSERT_TRUE(dialog->save(folder.filePath("numbers")));
    ASSERT_TRUE(until([&] { return saved.count() == 1; }))
        << dialog->findChild<QLabel*>("exportStatus")->text().toStdString();
    EXPECT_TRUE(QFile::exists(folder.filePath("numbers.csv")));
    dialog->findChild<QComboBox*>("exportFormat")->setCurrentIndex(4); // the same as JSON lines
    ASSERT_TRUE(dialog->save(folder.filePath("numbers")));
    ASSERT_TRUE(until([&] { return saved.count() == 2; }));
    EXPECT_TRUE(QFile::exists(folder.filePath("numbers.jsonl")));
    if (GzipStream::isAvailable()) {
        ASSERT_TRUE(dialog->save(folder.filePath("packed.csv.gz")));
        ASSERT_TRUE(until([&] { return saved.count() == 3; }));
        QFile packed(folder.filePath("packed.csv.gz"));
        ASSERT_TRUE(packed.open(QIODevice::ReadOnly));
        EXPECT_TRUE(ByteSource::isGzip(packed.read(2).toStdString()));
        QFile plain(folder.filePath("numbers.csv"));
        ASSERT_TRUE(plain.open(QIODevice::ReadOnly));
        EXPECT_EQ(ByteSource::unpackedHead(packed.fileName().toStdString(), 9), plain.read(9).toStdString());
        EXPECT_FALSE(QFile::exists(folder.filePath("packed.csv.gz.jsonl")));
    }
    const qsizetype before = saved.count();
    ASSERT_TRUE(dialog->save(folder.filePath("no/such/folder/numbers.csv")));
    ASSERT_TRUE(until([&] { return dialog->findChild<QLabel*>("exportStatus")->text().contains("cannot write"); }));
    EXPECT_EQ(saved.count(), before);
    window->action("quit");
    dialog->close();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
