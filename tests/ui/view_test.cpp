// What every view must do, whatever it shows; each row of the registry is tested.
#include "tests/support/places.h"
#include "tests/ui/view_fixture.h"

#include "tests/profiler/synthetic_denoise.h"
#include "ui/frame/clipboard.h"

#include <QClipboard>
#include <QFile>
#include <QImage>
#include <QMenu>
#include <QSignalSpy>
#include <QTimer>
#include <QXmlStreamReader>

#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

QByteArray bytesOf(const QString& path) {
    QFile f(path);
    return f.open(QIODevice::ReadOnly) ? f.readAll() : QByteArray();
}

std::size_t colours(const QImage& image) {
    std::set<QRgb> found;
    for (int y = 0; y < image.height(); ++y)
        for (int x = 0; x < image.width(); ++x) found.insert(image.pixel(x, y));
    return found.size();
}

class EveryView : public ViewTest, public ::testing::WithParamInterface<const char*> {
protected:
    /// Steps run along x; tests/ui/cache_view_test.cpp has what is different where they do not.
    bool overSteps() const { return std::string(GetParam()) != "cache"; }
    /// What the view has something to show of: a run that decodes token by token, or block by block.
    bool denoises() const { return std::string(GetParam()) == "denoising"; }
    QString recorded(const std::string& name, const RunShape& shape) {
        if (!denoises()) return ViewTest::recorded(name, shape);
        synthetic::recordDenoising(folder / name, shape);
        return file(name);
    }
    void openTwo() {
        open(recorded("b.kvtrace", {.decodeSteps = 30, .seed = 2}));
        const RunKey b = workspace.current()->key;
        open(recorded("a.kvtrace", {}));
        workspace.setCompare(b);
    }
};

TEST_P(EveryView, TeachesWhenNoRunIsOpen) {
    show(GetParam());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("No run is open")));
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Press Run")));
    EXPECT_TRUE(view->exportCsv().isEmpty());
    EXPECT_TRUE(view->exportImage(file("empty.png"), {640, 400}));
    view->resetZoom();
    view->undoZoom();
    QTest::keyClick(&canvas(), Qt::Key_Right);
}

TEST_P(EveryView, ShowsTheSmallestRunThatDecodes) {
    open(recorded("tiny.kvtrace", {.layers = 1, .kvHeads = 1, .promptTokens = 1, .decodeSteps = 1}));
    show(GetParam());
    if (std::string(GetParam()) == "compare")
        EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("second run")));
    else
        EXPECT_EQ(plot().emptyText(), QString());
}

TEST_P(EveryView, SurvivesARunThatIsOnlyAPrefill) {
    open(recorded("prefill.kvtrace", {.decodeSteps = 0}));
    show(GetParam());
    EXPECT_TRUE(view->exportImage(file("prefill.png"), {640, 400}));
}

TEST_P(EveryView, ExportsPicturesInThreeFormatsAndNumbers) {
    openTwo();
    show(GetParam());
    ASSERT_EQ(plot().emptyText(), QString());
    for (const char* suffix : {"png", "svg", "pdf"})
        ASSERT_TRUE(view->exportImage(file(std::string("picture.") + suffix), {900, 600})) << suffix;
    const QImage png(file("picture.png"));
    EXPECT_EQ(png.size(), QSize(900, 600));
    EXPECT_GT(colours(png), 12u);
    const QByteArray svg = bytesOf(file("picture.svg"));
    EXPECT_TRUE(svg.contains("<text")) << "text must stay text";
    EXPECT_TRUE(svg.contains("ynthetic")) << "the title names the run";
    QXmlStreamReader xml(svg);
    while (!xml.atEnd()) xml.readNext();
    EXPECT_FALSE(xml.hasError()) << xml.errorString().toStdString();
    const QByteArray pdf = bytesOf(file("picture.pdf"));
    EXPECT_TRUE(pdf.startsWith("%PDF-"));
    EXPECT_GT(pdf.size(), 4000);
    const QString csv = view->exportCsv();
    const auto lines = csv.split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_GT(lines.size(), 3);
    const auto header = lines[0].count(QLatin1Char(','));
    EXPECT_GE(header, 4);
    for (const QString& line : lines)
        if (!line.contains(QLatin1Char('"'))) {
            EXPECT_EQ(line.count(QLatin1Char(',')), header);
        }
}

TEST_P(EveryView, RefusesPicturesItCannotWrite) {
    openTwo();
    show(GetParam());
    EXPECT_FALSE(view->exportImage(file("picture.bmp"), {900, 600}));
    EXPECT_FALSE(view->exportImage(file("no-such-folder/picture.svg"), {900, 600}));
    EXPECT_FALSE(view->exportImage(file("no-such-folder/picture.png"), {900, 600}));
    EXPECT_FALSE(view->exportImage(file("picture.png"), {0, 0}));
}

TEST_P(EveryView, FollowsARunThatGrows) {
    if (!overSteps()) GTEST_SKIP() << "x is no step";
    if (std::string(GetParam()) == "compare") open(recorded("b.kvtrace", {}));
    RunShape shape;
    shape.decodeSteps = 40;
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
    synthetic::Denoiser denoiser(shape);
    recorder.beginRun(denoises() ? denoiser.info() : synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto next = [&] {
        auto record = recorder.acquire();
        generator.fillNext(*record, recorder.level());
        if (denoises()) denoiser.fill(*record);
        recorder.take(std::move(record));
        recorder.flush();
    };
    const std::optional<RunKey> other = workspace.current() ? std::optional(workspace.current()->key) : std::nullopt;
    workspace.addLive({path, recorder.runId()});
    workspace.setCompare(other);
    show(GetParam());
    for (int i = 0; i < 6; ++i) next();
    ASSERT_TRUE(waitFor([&] { return workspace.current()->row.steps == 6; }));
    ASSERT_TRUE(waitFor([&] { return workspace.idle() && plot().emptyText().isEmpty(); }))
        << plot().emptyText().toStdString();
    const double before = canvas().fullX().upper;
    for (int i = 0; i < 30; ++i) next();
    if (std::string(GetParam()) != "compare") { // there the other run is as long
        EXPECT_TRUE(waitFor([&] { return canvas().fullX().upper >= 35; })) << canvas().fullX().upper;
    }
    EXPECT_GE(canvas().fullX().upper, before);
    EXPECT_EQ(canvas().visibleX().upper, canvas().fullX().upper) << "a view that is not zoomed shows the new steps";
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    workspace.finishLive(workspace.current()->key);
    ASSERT_TRUE(waitFor([&] { return workspace.current()->row.status == RunStatus::Finished; }));
}

TEST_P(EveryView, CatchesUpWhenShownAgain) {
    if (!overSteps()) GTEST_SKIP() << "x is no step";
    openTwo();
    show(GetParam());
    view->hide();
    open(recorded("c.kvtrace", {.decodeSteps = 55}));
    view->show();
    ASSERT_TRUE(idle());
    if (std::string(GetParam()) != "compare") {
        EXPECT_GE(canvas().fullX().upper, 55);
    }
}

TEST_P(EveryView, ZoomsAtThePointerAndComesBack) {
    if (!overSteps()) GTEST_SKIP() << "x is no step";
    openTwo();
    show(GetParam());
    const QCPRange whole = canvas().visibleX();
    const QPoint at = pixel(8, 0).x() > 0 ? QPoint(pixel(8, 0).x(), canvas().panels()[0]->center().y()) : QPoint();
    wheel(at, 4);
    const QCPRange zoomed = canvas().visibleX();
    EXPECT_LT(zoomed.size(), whole.size() * 0.7);
    EXPECT_NEAR(canvas().panels()[0]->axis(QCPAxis::atBottom)->pixelToCoord(at.x()), 8, 0.2)
        << "8 stays under the pointer";
    EXPECT_TRUE(canvas().isZoomed());
    view->undoZoom();
    EXPECT_NEAR(canvas().visibleX().size(), whole.size(), 1e-9) << "four clicks in a row are one entry";
    view->redoZoom();
    EXPECT_NEAR(canvas().visibleX().size(), zoomed.size(), 1e-9);
    QTest::mouseDClick(&canvas(), Qt::LeftButton, {}, at);
    EXPECT_FALSE(canvas().isZoomed());
    view->undoZoom();
    EXPECT_TRUE(canvas().isZoomed()) << "a reset can be undone";
    view->resetZoom();
    EXPECT_FALSE(canvas().isZoomed());
}

TEST_P(EveryView, PansByDraggingAndNeverLeavesTheRun) {
    openTwo();
    show(GetParam());
    const QPoint centre = canvas().panels()[0]->center();
    wheel(centre, 5);
    const QCPRange before = canvas().visibleX();
    drag(centre, centre + QPoint(-60, 0));
    const QCPRange after = canvas().visibleX();
    EXPECT_GT(after.lower, before.lower);
    EXPECT_NEAR(after.size(), before.size(), 1e-9);
    for (int i = 0; i < 30; ++i) drag(centre, centre + QPoint(300, 0));
    EXPECT_NEAR(canvas().visibleX().lower, canvas().fullX().lower, 1e-9);
    EXPECT_NEAR(canvas().visibleX().size(), before.size(), 1e-9);
}

TEST_P(EveryView, ZoomsIntoABoxAndSelectsSteps) {
    if (!overSteps()) GTEST_SKIP() << "x is no step";
    openTwo();
    show(GetParam());
    const QCPAxisRect* panel = canvas().panels()[0];
    const QPoint a(panel->left() + panel->width() / 4, panel->center().y() - 20);
    const QPoint b(panel->left() + panel->width() / 2, panel->center().y() + 20);
    const double first = panel->axis(QCPAxis::atBottom)->pixelToCoord(a.x());
    const double last = panel->axis(QCPAxis::atBottom)->pixelToCoord(b.x());
    drag(a, b, Qt::ControlModifier);
    EXPECT_EQ(workspace.cursor().firstStep, int(std::lround(first)));
    EXPECT_EQ(workspace.cursor().lastStep, int(std::lround(last)));
    EXPECT_FALSE(canvas().isZoomed());
    drag(a, b, Qt::ShiftModifier);
    EXPECT_NEAR(canvas().visibleX().lower, first, 0.05);
    EXPECT_NEAR(canvas().visibleX().upper, last, 0.05);
}

TEST_P(EveryView, MovesTheSharedCursorByKeys) {
    if (!overSteps()) GTEST_SKIP() << "x is no step";
    openTwo();
    show(GetParam());
    workspace.setCursor({.step = 5, .layer = 1});
    QTest::keyClick(&canvas(), Qt::Key_Right);
    EXPECT_EQ(workspace.cursor().step, 6);
    QTest::keyClick(&canvas(), Qt::Key_Left, Qt::ShiftModifier);
    EXPECT_EQ(workspace.cursor().step, 0);
    QTest::keyClick(&canvas(), Qt::Key_Down);
    EXPECT_EQ(workspace.cursor().layer, 2);
    QTest::keyClick(&canvas(), Qt::Key_Up);
    EXPECT_EQ(workspace.cursor().layer, 1);
    QTest::keyClick(&canvas(), Qt::Key_End);
    EXPECT_EQ(workspace.cursor().step, 20);
    QTest::keyClick(&canvas(), Qt::Key_Home);
    EXPECT_EQ(workspace.cursor().step, 0);
    const double whole = canvas().visibleX().size();
    QTest::keyClick(&canvas(), Qt::Key_Plus);
    EXPECT_LT(canvas().visibleX().size(), whole);
    QTest::keyClick(&canvas(), Qt::Key_Minus);
    EXPECT_NEAR(canvas().visibleX().size(), whole, 1e-9);
}

TEST_P(EveryView, KeepsTheCursorInSightWhenKeysMoveIt) {
    if (!overSteps()) GTEST_SKIP() << "x is no step";
    openTwo();
    show(GetParam());
    wheel(QPoint(canvas().panels()[0]->left() + 5, canvas().panels()[0]->center().y()), 6);
    QTest::keyClick(&canvas(), Qt::Key_End);
    EXPECT_TRUE(canvas().visibleX().contains(workspace.cursor().step));
}

TEST_P(EveryView, DrawsTheCursorWhereItIs) {
    if (!overSteps()) GTEST_SKIP() << "x is no step";
    openTwo();
    show(GetParam());
    workspace.setCursor({.step = 3});
    canvas().replot();
    const QImage before = canvas().grab().toImage();
    workspace.setCursor({.step = 12});
    QCoreApplication::processEvents();
    EXPECT_NE(canvas().grab().toImage(), before);
}

TEST_P(EveryView, IsDrawnInBothThemes) {
    openTwo();
    show(GetParam());
    for (const Theme* theme : {&Theme::dark(), &Theme::light()}) {
        Theme::apply(*qApp, *theme);
        view->applyTheme(*theme);
        canvas().replot();
        const QImage image = canvas().grab().toImage();
        EXPECT_EQ(image.pixelColor(1, 1), theme->plotBackground);
        EXPECT_GT(colours(image), 12u);
    }
}

TEST_P(EveryView, OffersTheSameMenu) {
    openTwo();
    show(GetParam());
    emit canvas().menuRequested(canvas().mapToGlobal(QPoint(50, 50)), true);
    auto* menu = view->findChild<QMenu*>(QStringLiteral("plotMenu"));
    ASSERT_NE(menu, nullptr);
    QStringList offered;
    for (QAction* action : menu->actions())
        if (!action->isSeparator()) offered << action->text();
    EXPECT_EQ(offered, (QStringList{"Copy as table", "Copy image", "Copy SQL", "Open in SQL page", "Export PNG…",
                                    "Export SVG…", "Export PDF…", "Export CSV…", "Export JSON lines…", "Undo zoom",
                                    "Redo zoom", "Reset zoom"}));
    menu->actions().first()->trigger();
    EXPECT_TRUE(waitFor([&] { return QApplication::clipboard()->text() == tableFromCsv(view->exportCsv()); }));
    EXPECT_FALSE(menu->actions()[3]->isEnabled()) << "there is no SQL page outside of a window";
    menu->close();
}

TEST_P(EveryView, SaysWhenATraceIsDamagedInsteadOfFailing) {
    // So many that no table lies before the damage as a whole, in whatever order the writer thread filled the pages.
    const QString path = recorded("damaged.kvtrace", {.decodeSteps = 2000});
    open(recorded("b.kvtrace", {}));
    const RunKey b = workspace.current()->key;
    open(path);
    workspace.setCompare(b);
    QByteArray bytes = bytesOf(path);
    ASSERT_GT(bytes.size(), 300'000);
    for (qsizetype at = 100'000; at < bytes.size(); ++at) bytes[at] = char(at * 31);
    QFile damaged(path);
    ASSERT_TRUE(damaged.open(QIODevice::WriteOnly | QIODevice::Truncate));
    damaged.write(bytes);
    damaged.close();
    QSignalSpy failed(&workspace, &Workspace::failed);
    show(GetParam());
    QStringList said{plot().emptyText(), plot().noteText()};
    for (const auto& call : failed) said << call[0].toString();
    EXPECT_TRUE(said.join(QLatin1Char(' ')).contains(QStringLiteral("damaged.kvtrace")))
        << said.join('\n').toStdString();
    EXPECT_TRUE(view->exportImage(file("damaged.png"), {640, 400}));
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryView,
                         ::testing::Values("locality", "selection", "transfers", "cache", "breakdown", "compare",
                                           "denoising"),
                         [](const auto& row) { return std::string(row.param); });

/// The first column of the table of views in the user guide.
std::set<std::string> viewsOfTheGuide() {
    QFile guide(QString::fromStdString(test::source("docs/user-guide.md")));
    EXPECT_TRUE(guide.open(QIODevice::ReadOnly));
    const QStringList lines = QString::fromUtf8(guide.readAll()).split(QLatin1Char('\n'));
    std::set<std::string> titles;
    for (qsizetype i = lines.indexOf(QStringLiteral("| view | shows |")) + 2; i > 1 && i < lines.size(); ++i) {
        if (!lines[i].startsWith(QLatin1String("| "))) break;
        titles.insert(lines[i].section(QLatin1Char('|'), 1, 1).trimmed().toStdString());
    }
    return titles;
}

TEST(ViewRegistry, NamesEveryViewOnceWithShortcutHelpAndARowOfTheGuide) {
    std::set<std::string> ids, titles, shortcuts;
    for (const ViewEntry& entry : views()) {
        EXPECT_TRUE(ids.insert(entry.id).second);
        EXPECT_TRUE(titles.insert(entry.title).second);
        EXPECT_TRUE(shortcuts.insert(entry.shortcut).second);
        EXPECT_GT(std::string(entry.help).size(), 20u);
    }
    EXPECT_EQ(titles, viewsOfTheGuide());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
