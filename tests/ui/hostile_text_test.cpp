// Text of a file is shown as it is written: with markup in every name that a trace may bring, no label, tooltip,
// message or picture takes it for markup.
#include "tests/ui/view_fixture.h"

#include "profiler/read/notes.h"
#include "profiler/report/report.h"
#include "tests/ui/waiting.h"
#include "ui/figures/figure.h"
#include "ui/figures/figure_dialog.h"
#include "ui/figures/figure_drawing.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/json_lines.h"
#include "ui/output/report.h"
#include "ui/timeline/timeline_canvas.h"
#include "ui/widgets/token_strip.h"
#include "ui/window/main_window.h"

#include <QAction>
#include <QHeaderView>
#include <QHelpEvent>
#include <QJsonDocument>
#include <QLabel>
#include <QMenu>
#include <QMessageBox>
#include <QProcess>
#include <QStandardPaths>
#include <QTabBar>
#include <QTableWidget>
#include <QTemporaryDir>
#include <QTextDocument>
#include <QToolTip>
#include <QTreeWidget>
#include <QXmlStreamReader>

#include <fstream>
#include <sstream>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

const QString kMarkup = QStringLiteral("<img src=\"hostile.png\">");
const std::string kHostile = "<img src=\"hostile.png\"><b>bold</b> & <script>alert(1)</script> %1 %2 \x01";

/// Whether a widget that takes rich text where it looks like it would make an image of this.
bool isMarkup(const QString& text) { return Qt::mightBeRichText(text) && text.contains(kMarkup); }

class HostileText : public testing::Test {
protected:
    HostileText() { QStandardPaths::setTestModeEnabled(true); }

    template <class Condition> static bool until(Condition&& condition) { return waitUntil(condition); }

    /// Every text that a trace has, as an attacker writes it.
    QString hostileTrace(const QString& name, RunStatus status, std::uint64_t seed = 1) {
        const QString path = folder.filePath(name);
        const synthetic::RunShape shape{.layers = 3, .sequences = 2, .decodeSteps = 12, .seed = seed};
        Recorder recorder(path.toStdString(), {});
        RunInfo info = synthetic::infoOf(shape);
        for (std::string* text : {&info.name, &info.model, &info.method, &info.device, &info.link}) *text = kHostile;
        info.name += std::to_string(seed);
        info.paramsJson =
            R"({"<img src=\"hostile.png\">": "<b>x</b><img src=\"hostile.png\">", "n": )" + std::to_string(seed) + "}";
        info.prompts = {std::make_shared<const RunPrompts::Ids>(*info.prompts.ids()),
                        [](std::int32_t) { return kHostile; }};
        recorder.beginRun(info);
        synthetic::RunGenerator generator(shape);
        std::int64_t from = 0, end = 0;
        for (int i = 0; i < generator.steps(); ++i) {
            auto step = recorder.acquire();
            generator.fillNext(*step, RecordLevel::Full);
            for (TokenRecord& token : step->generated) token.bytes = kHostile;
            if (i == 1) from = step->startNs;
            end = step->startNs + step->durationNs;
            recorder.take(std::move(step));
        }
        const std::int64_t length = end - from;
        recorder.take(std::vector<SpanRecord>{
            {-1, -1, SpanRecord::Kind::Kernel, kHostile, kHostile, from, length / 2, 0},
            {2, 1, SpanRecord::Kind::Range, kHostile, kHostile + " 2", from + length / 2, length / 3, 0}});
        recorder.take(std::vector<CounterSample>{{kHostile, from, length / 2, 1'000'000},
                                                 {kHostile, from + length / 2, length / 2, 7}});
        recorder.endRun(status, kHostile);
        recorder.flush();
        Note note;
        note.runId = 1;
        note.startNs = from;
        note.durationNs = length / 4;
        note.text = kHostile;
        addNote(path.toStdString(), note);
        return path;
    }

    /// Opens two such traces, the second one as the run to compare with.
    void openTwo(Workspace& workspace) {
        const QString a = hostileTrace("a.kvtrace", RunStatus::Finished),
                      b = hostileTrace("b.kvtrace", RunStatus::Failed, 2);
        workspace.open(b);
        ASSERT_TRUE(waitFor([&] { return workspace.current() && workspace.idle(); }));
        workspace.open(a);
        ASSERT_TRUE(waitFor([&] { return workspace.runs().size() == 2 && workspace.idle(); }));
        workspace.setCurrent({a, 1});
        workspace.setCompare(RunKey{b, 1});
    }

    /// Every label, tooltip, tab and item of a window, as it is now.
    static void expectPlain(const QWidget& root, const std::string& where) {
        QList<const QWidget*> all{&root};
        for (const QWidget* widget : root.findChildren<QWidget*>()) all << widget;
        for (const QWidget* widget : all) {
            const std::string who =
                where + ": " + widget->metaObject()->className() + ' ' + widget->objectName().toStdString();
            EXPECT_FALSE(isMarkup(widget->toolTip())) << who << " tooltip " << widget->toolTip().toStdString();
            EXPECT_FALSE(isMarkup(widget->whatsThis())) << who;
            if (const auto* label = qobject_cast<const QLabel*>(widget)) {
                const bool rich = label->textFormat() == Qt::RichText ||
                                  (label->textFormat() != Qt::PlainText && Qt::mightBeRichText(label->text()));
                EXPECT_FALSE(rich && label->text().contains(kMarkup))
                    << who << " shows " << label->text().toStdString();
            }
            if (const auto* box = qobject_cast<const QMessageBox*>(widget)) {
                EXPECT_FALSE(box->textFormat() != Qt::PlainText && isMarkup(box->text())) << who;
            }
            if (const auto* tabs = qobject_cast<const QTabBar*>(widget)) {
                for (int i = 0; i < tabs->count(); ++i) EXPECT_FALSE(isMarkup(tabs->tabToolTip(i))) << who;
            }
            const auto* menu = qobject_cast<const QMenu*>(widget); // shows no tooltips unless it is told to
            for (const QAction* action : widget->actions())
                EXPECT_FALSE((!menu || menu->toolTipsVisible()) && isMarkup(action->toolTip())) << who;
            if (const auto* view = qobject_cast<const QAbstractItemView*>(widget); view && view->model())
                expectPlainItems(*view->model(), {}, who, 0);
        }
    }
    static void expectPlainItems(const QAbstractItemModel& model, const QModelIndex& parent, const std::string& who,
                                 int depth) {
        for (int column = 0; column < model.columnCount(parent); ++column) {
            const QString tip = model.headerData(column, Qt::Horizontal, Qt::ToolTipRole).toString();
            EXPECT_FALSE(isMarkup(tip)) << who << " header";
        }
        for (int row = 0; row < std::min(model.rowCount(parent), 200); ++row)
            for (int column = 0; column < model.columnCount(parent); ++column) {
                const QModelIndex index = model.index(row, column, parent);
                EXPECT_FALSE(isMarkup(index.data(Qt::ToolTipRole).toString()))
                    << who << ' ' << index.data(Qt::ToolTipRole).toString().toStdString();
                if (column == 0 && depth < 3 && model.hasChildren(index))
                    expectPlainItems(model, index, who, depth + 1);
            }
    }
    /// The pointer goes over a plot in steps.
    template <class Widget> static void hoverAllOver(Widget& widget, const std::string& where) {
        for (int y = 6; y < widget.height(); y += std::max(8, widget.height() / 9))
            for (int x = 6; x < widget.width(); x += std::max(8, widget.width() / 9)) {
                QMouseEvent move(QEvent::MouseMove, QPointF(x, y), QPointF(widget.mapToGlobal(QPoint(x, y))),
                                 Qt::NoButton, Qt::NoButton, {});
                QApplication::sendEvent(&widget, &move);
                EXPECT_FALSE(QToolTip::isVisible() && isMarkup(QToolTip::text()))
                    << where << ' ' << QToolTip::text().toStdString();
            }
        QToolTip::hideText();
    }

    QTemporaryDir folder;
};

TEST_F(HostileText, IsPlainInEveryViewOfTheWindow) {
    const QString a = hostileTrace("a<b>.kvtrace", RunStatus::Finished),
                  b = hostileTrace("b<b>.kvtrace", RunStatus::Failed, 2),
                  notThere = folder.filePath(QStringLiteral("<img src=\"hostile.png\">.kvtrace"));
    MainWindow window(Settings(true, folder.filePath("desktop.ini")));
    window.resize(1500, 950);
    window.show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(&window));
    window.openFiles({b});
    ASSERT_TRUE(until([&] { return window.workspace().current() && window.workspace().idle(); }));
    window.openFiles({a});
    ASSERT_TRUE(until([&] { return window.workspace().runs().size() == 2 && window.workspace().idle(); }));
    QTest::qWait(20);
    window.workspace().setCursor({.step = 5, .firstStep = 2, .lastStep = 6, .layer = 1, .block = 1});
    for (const bool compared : {false, true}) {
        if (compared)
            for (const OpenRun& run : window.workspace().runs()) window.workspace().setCompared(run.key, true);
        for (const ViewEntry& entry : views()) {
            window.showView(QString::fromLatin1(entry.id));
            QCoreApplication::processEvents();
            ASSERT_TRUE(until([&] { return window.workspace().idle(); }));
            const std::string where = std::string(entry.id) + (compared ? " compared" : "");
            expectPlain(window, where);
            for (QTabBar* pages : window.currentView()->findChildren<QTabBar*>())
                for (int page = 0; page < pages->count(); ++page) {
                    pages->setCurrentIndex(page);
                    QCoreApplication::processEvents();
                    ASSERT_TRUE(until([&] { return window.workspace().idle(); }));
                    expectPlain(window, where + " page " + std::to_string(page));
                    for (PlotCanvas* plot : window.currentView()->findChildren<PlotCanvas*>())
                        if (plot->isVisible()) hoverAllOver(*plot, where + " page " + std::to_string(page));
                }
            for (PlotCanvas* plot : window.currentView()->findChildren<PlotCanvas*>())
                if (plot->isVisible()) hoverAllOver(*plot, where);
            for (TimelineCanvas* timeline : window.currentView()->findChildren<TimelineCanvas*>()) {
                hoverAllOver(*timeline, where);
                for (int lane = 0; lane < timeline->data().index.laneCount(); ++lane) {
                    emit timeline->spanClicked({lane, 0});
                    ASSERT_TRUE(until([&] { return window.workspace().idle(); }));
                    expectPlain(window, where + " span");
                }
            }
        }
    }
    TokenStrip& strip = *window.tokens().strip();
    for (int step = 0; step < 6; ++step) {
        const QPoint at = strip.revealStep(step);
        QHelpEvent help(QEvent::ToolTip, at, strip.viewport()->mapToGlobal(at));
        QApplication::sendEvent(strip.viewport(), &help);
        EXPECT_FALSE(QToolTip::isVisible() && isMarkup(QToolTip::text())) << QToolTip::text().toStdString();
    }
    QToolTip::hideText();
    window.openFiles({notThere}); // the error that follows names the file
    ASSERT_TRUE(until([&] { return window.findChild<QLabel*>("statusMessage")->text().contains(kMarkup); }));
    expectPlain(window, "a file that is not there");
    window.showMessage(QString::fromStdString(kHostile), true);
    emit window.workspace().failed(QString::fromStdString(kHostile));
    expectPlain(window, "messages");
    FigureDialog figures({a, b}, &window);
    figures.show();
    QSignalSpy judged(&figures, &FigureDialog::judged);
    ASSERT_TRUE(until([&] { return !judged.isEmpty(); }));
    expectPlain(figures, "figures");
    QTest::qWait(50);
}

TEST_F(HostileText, IsPlainInTheTimelineOfAnotherTool) {
    const QString path = folder.filePath(QStringLiteral("other.json"));
    const std::string hostile = R"(<img src=\"hostile.png\"><b>x</b>)";
    std::ofstream file(path.toStdString());
    file << R"({"traceEvents":[{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":")" << hostile << R"("}},)"
         << R"({"ph":"X","pid":1,"tid":1,"ts":10,"dur":900,"name":")" << hostile << R"(","cat":")" << hostile
         << R"(","args":{")" << hostile << R"(":")" << hostile << R"("}},)"
         << R"({"ph":"C","pid":1,"ts":10,"name":")" << hostile << R"(","args":{"value":5}}]})";
    file.close();
    MainWindow window(Settings(true, folder.filePath("desktop.ini")));
    window.resize(1200, 900);
    window.show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(&window));
    window.openFiles({path});
    ASSERT_TRUE(until([&] { return window.workspace().current() && window.workspace().idle(); }));
    window.showView(QStringLiteral("timeline"));
    QCoreApplication::processEvents();
    ASSERT_TRUE(until([&] { return window.workspace().idle(); }));
    auto& timeline = *window.currentView()->findChild<TimelineCanvas*>();
    ASSERT_GT(timeline.data().index.size(), 0u);
    QSignalSpy hovered(&timeline, &TimelineCanvas::hovered);
    hoverAllOver(timeline, "imported");
    ASSERT_FALSE(hovered.isEmpty());
    emit timeline.spanClicked({0, 0});
    ASSERT_TRUE(until([&] { return window.workspace().idle(); }));
    // The arguments come with a second answer.
    const TimelineRow* row = timeline.scene().layout.rowOf(0);
    ASSERT_TRUE(row);
    const QPoint at(timeline.areas().body.center().x(), timeline.areas().body.top() + row->y + 4);
    QMouseEvent move(QEvent::MouseMove, QPointF(at), QPointF(timeline.mapToGlobal(at)), Qt::NoButton, Qt::NoButton, {});
    QApplication::sendEvent(&timeline, &move);
    ASSERT_TRUE(until([&] { return window.workspace().idle(); }));
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("&lt;img"))) << QToolTip::text().toStdString();
    EXPECT_FALSE(QToolTip::text().contains(kMarkup));
    expectPlain(window, "imported");
    for (const ViewEntry& entry : views()) {
        window.showView(QString::fromLatin1(entry.id));
        QCoreApplication::processEvents();
        ASSERT_TRUE(until([&] { return window.workspace().idle(); }));
        expectPlain(window, entry.id);
    }
}

/// Elements of an SVG, its title, and all of its text; a failure where it is not well-formed.
struct Parsed {
    QSet<QString> elements;
    QString title, text;
};
Parsed parsed(const QString& path) {
    Parsed result;
    QFile file(path);
    EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << path.toStdString();
    QXmlStreamReader xml(&file);
    while (!xml.atEnd()) {
        xml.readNext();
        if (xml.isStartElement()) {
            result.elements << xml.name().toString();
            if (xml.name() == QLatin1String("title")) result.title = xml.readElementText();
        } else if (xml.isCharacters()) {
            result.text += xml.text();
        }
    }
    EXPECT_FALSE(xml.hasError()) << path.toStdString() << ": " << xml.errorString().toStdString() << " in line "
                                 << xml.lineNumber();
    return result;
}

TEST_F(HostileText, PicturesAreWellFormedAndHoldNoForeignElement) {
    Workspace workspace;
    ASSERT_NO_FATAL_FAILURE(openTwo(workspace));
    const QString shown = QString::fromStdString(kHostile).remove(QChar(1));
    for (const ViewEntry& entry : views()) {
        std::unique_ptr<View> view(entry.make(workspace, nullptr));
        view->resize(1100, 800);
        view->show();
        ASSERT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        QCoreApplication::processEvents();
        ASSERT_TRUE(waitFor([&] { return workspace.idle(); }));
        const auto check = [&](const QString& name) {
            const QString path = folder.filePath(name + QStringLiteral(".svg"));
            ASSERT_TRUE(view->exportImage(path, {900, 600})) << name.toStdString();
            const Parsed svg = parsed(path);
            for (const char* element : {"img", "b", "script"})
                EXPECT_FALSE(svg.elements.contains(QLatin1String(element))) << name.toStdString();
            EXPECT_TRUE(svg.title.contains(shown) || !svg.title.contains(QLatin1Char('<')))
                << name.toStdString() << ": " << svg.title.toStdString();
        };
        check(QString::fromLatin1(entry.id));
        if (auto* pages = view->findChild<QTabBar*>(QStringLiteral("comparePages")))
            for (int page = 0; page < pages->count(); ++page) {
                pages->setCurrentIndex(page);
                QCoreApplication::processEvents();
                ASSERT_TRUE(waitFor([&] { return workspace.idle(); }));
                check(QStringLiteral("%1-%2").arg(QLatin1String(entry.id)).arg(page));
            }
    }
    const Parsed breakdown = parsed(folder.filePath(QStringLiteral("breakdown.svg")));
    EXPECT_TRUE(breakdown.title.contains(shown)) << breakdown.title.toStdString();
}

/// Records of a CSV by RFC 4180; empty where it is none.
std::vector<QStringList> recordsOf(const QString& csv) {
    std::vector<QStringList> rows{{QString()}};
    bool quoted = false;
    for (qsizetype i = 0; i < csv.size(); ++i) {
        const QChar c = csv[i];
        QString& field = rows.back().back();
        if (quoted && c == QLatin1Char('"') && i + 1 < csv.size() && csv[i + 1] == c)
            field += csv[++i];
        else if (quoted && c == QLatin1Char('"'))
            quoted = false;
        else if (quoted)
            field += c;
        else if (c == QLatin1Char('"') && field.isEmpty())
            quoted = true;
        else if (c == QLatin1Char('"'))
            return {};
        else if (c == QLatin1Char(','))
            rows.back() << QString();
        else if (c == QLatin1Char('\n'))
            rows.push_back({QString()});
        else
            field += c;
    }
    if (quoted || rows.back() != QStringList{QString()}) return {};
    rows.pop_back();
    return rows;
}

TEST_F(HostileText, NumbersOfViewsStayTablesAndObjects) {
    Workspace workspace;
    ASSERT_NO_FATAL_FAILURE(openTwo(workspace));
    int tables = 0;
    for (const ViewEntry& entry : views()) {
        std::unique_ptr<View> view(entry.make(workspace, nullptr));
        view->resize(1100, 800);
        view->show();
        ASSERT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        const auto check = [&](const std::string& name) {
            QCoreApplication::processEvents();
            ASSERT_TRUE(waitFor([&] { return workspace.idle(); }));
            const QString csv = view->exportCsv();
            if (csv.isEmpty()) return;
            ++tables;
            const auto rows = recordsOf(csv);
            ASSERT_FALSE(rows.empty()) << name;
            for (const QStringList& row : rows)
                EXPECT_EQ(row.size(), rows.front().size()) << name << ": " << row.join('|').toStdString();
            const std::string lines = JsonLines().convert(csv.toStdString());
            std::istringstream stream(lines);
            std::size_t objects = 0;
            for (std::string line; std::getline(stream, line); ++objects)
                EXPECT_TRUE(QJsonDocument::fromJson(QByteArray::fromStdString(line)).isObject())
                    << name << ": " << line;
            EXPECT_EQ(objects + 1, rows.size()) << name;
            for (const QString& line : tableFromCsv(csv).split(QLatin1Char('\n'), Qt::SkipEmptyParts))
                EXPECT_EQ(line.count(QLatin1Char('\t')) + 1, rows.front().size()) << name;
        };
        check(entry.id);
        if (auto* pages = view->findChild<QTabBar*>(QStringLiteral("comparePages")))
            for (int page = 0; page < pages->count(); ++page) {
                pages->setCurrentIndex(page);
                check(std::string(entry.id) + " page " + std::to_string(page));
            }
    }
    EXPECT_GE(tables, 6);
}

/// Every object of a PDF is where its table says; the text of its pages, where a reader of it is installed.
TEST_F(HostileText, ReportsAreWholeDocuments) {
    const QString a = hostileTrace("a.kvtrace", RunStatus::Finished),
                  b = hostileTrace("b.kvtrace", RunStatus::Failed, 2);
    const reports::Report report = reports::makeReport({a.toStdString(), b.toStdString()});
    const auto content = [](const QString& path) {
        QFile file(path);
        EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << path.toStdString();
        return file.readAll();
    };
    const QString html = folder.filePath(QStringLiteral("report.html"));
    writeReport(report, html);
    QXmlStreamReader page(content(html));
    QSet<QString> elements;
    while (!page.atEnd())
        if (page.readNext() == QXmlStreamReader::StartElement) {
            elements << page.name().toString();
            const QString source = page.attributes().value(QLatin1String("src")).toString();
            EXPECT_TRUE(source.isEmpty() || source.startsWith(QLatin1String("data:"))) << source.toStdString();
        } else if (page.isCharacters()) {
            EXPECT_NE(page.text(), QLatin1String("bold")) << "an element of its own";
        }
    EXPECT_FALSE(page.hasError()) << page.errorString().toStdString() << " in line " << page.lineNumber();
    EXPECT_TRUE(elements.contains(QLatin1String("b"))) << "of the report itself";

    const QString path = folder.filePath(QStringLiteral("report.pdf"));
    writeReport(report, path);
    const QByteArray pdf = content(path);
    ASSERT_TRUE(pdf.startsWith("%PDF-1."));
    ASSERT_TRUE(pdf.trimmed().endsWith("%%EOF"));
    const qsizetype last = pdf.lastIndexOf("startxref");
    ASSERT_GT(last, 0);
    const qsizetype table = pdf.mid(last + 9, 30).trimmed().split('\n').front().trimmed().toLongLong();
    ASSERT_TRUE(pdf.mid(table).startsWith("xref"));
    const QList<QByteArray> rows = pdf.mid(table, last - table).split('\n');
    int objects = 0;
    for (qsizetype i = 3; i < rows.size(); ++i) { // behind "xref", the range and the free entry
        const QList<QByteArray> fields = rows[i].simplified().split(' ');
        if (fields.size() != 3 || fields[2] != "n") break;
        ++objects;
        EXPECT_TRUE(pdf.mid(fields[0].toLongLong()).startsWith(QByteArray::number(objects) + " 0 obj")) << objects;
    }
    EXPECT_GT(objects, 10);

    const QString reader = QStandardPaths::findExecutable(QStringLiteral("pdftotext"));
    if (reader.isEmpty()) GTEST_SKIP() << "pdftotext (poppler-utils) is not installed: the text of the PDF is not read";
    QProcess text;
    text.start(reader, {QStringLiteral("-layout"), path, QStringLiteral("-")});
    ASSERT_TRUE(text.waitForFinished(60'000));
    EXPECT_EQ(text.exitCode(), 0) << text.readAllStandardError().toStdString();
    const QString words = QString::fromUtf8(text.readAllStandardOutput());
    EXPECT_TRUE(words.contains(QStringLiteral("<img src="))) << "text of a trace is shown as it is written";
    EXPECT_TRUE(words.contains(QStringLiteral("<script>")));
}

TEST_F(HostileText, FiguresAreWellFormed) {
    const QString a = hostileTrace("a.kvtrace", RunStatus::Finished),
                  b = hostileTrace("b.kvtrace", RunStatus::Failed, 2);
    const FigureSources sources = readFigureSources({a.toStdString(), b.toStdString()});
    int drawn = 0;
    for (const FigureEntry& entry : figures()) {
        if (!entry.refusal(sources).empty()) continue;
        ++drawn;
        const FigureData data = makeFigure(entry, sources);
        const QString path = folder.filePath(QString::fromStdString(std::string(entry.id)) + QStringLiteral(".svg"));
        writeFigure(data, path, {85, 60});
        const Parsed svg = parsed(path);
        for (const char* element : {"img", "b", "script"})
            EXPECT_FALSE(svg.elements.contains(QLatin1String(element))) << entry.id;
        const auto rows = recordsOf(QString::fromStdString(figureCsv(data)));
        ASSERT_FALSE(rows.empty()) << entry.id;
        for (const QStringList& row : rows) EXPECT_EQ(row.size(), rows.front().size()) << entry.id;
    }
    EXPECT_GE(drawn, 2);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
