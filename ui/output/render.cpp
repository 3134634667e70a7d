#include "ui/output/render.h"

#include "base/error.h"
#include "base/nearest_name.h"
#include "profiler/read/trace_reader.h"
#include "ui/frame/picture.h"
#include "ui/frame/run_checks.h"
#include "ui/frame/saved_file.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/session/session_controller.h"
#include "ui/window/main_window.h"

#include <QApplication>
#include <QEventLoop>
#include <QFileInfo>
#include <QProgressBar>
#include <QStringList>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace kvscope::ui {

namespace {

/// Sets the theme of the picture while the picture is made, and afterwards the theme that the program had.
class ThemeForNow {
public:
    explicit ThemeForNow(const Theme& wanted) : before_(Theme::current()) { Theme::apply(*qApp, wanted); }
    ~ThemeForNow() {
        if (Theme::current().id != before_.id) Theme::apply(*qApp, before_);
    }
    ThemeForNow(const ThemeForNow&) = delete;
    ThemeForNow& operator=(const ThemeForNow&) = delete;

private:
    const Theme& before_;
};

template <class Condition> void waitUntil(Condition&& condition) {
    while (!condition()) QCoreApplication::processEvents(QEventLoop::AllEvents | QEventLoop::WaitForMoreEvents);
    QCoreApplication::processEvents();
}
void waitUntilIdle(Workspace& workspace) {
    waitUntil([&] { return workspace.idle() && !RunChecks::of(workspace).busy(); });
}

/// Opens a trace and returns its run. Errors, which the workspace reports with a signal, are thrown. @throws Error
RunKey openRun(Workspace& workspace, const QString& path, int runId) {
    QString failure;
    const auto connection = QObject::connect(&workspace, &Workspace::openFailed, &workspace,
                                             [&](const QString&, const QString& sentence) { failure = sentence; });
    workspace.open(path);
    waitUntilIdle(workspace);
    QObject::disconnect(connection);
    if (!failure.isEmpty()) throw Error(ErrorKind::BadInput, failure.toStdString());
    const QString file = QFileInfo(path).absoluteFilePath();
    for (const OpenRun& run : workspace.runs())
        if (QFileInfo(run.key.path) == QFileInfo(file) && (runId < 0 || run.key.runId == runId)) return run.key;
    throw Error(ErrorKind::BadInput, (path + QStringLiteral(": there is no run %1").arg(runId)).toStdString(),
                "kvscope-cli info lists the runs of a trace");
}

/// How many blocks of a sequence have begun, by the tokens that were recorded; in a run without tokens, by its
/// positions.
std::int64_t blocksOf(const OpenRun& run, int sequence) {
    if (run.row.blockSize <= 0) return std::numeric_limits<std::int64_t>::max();
    const TraceReader reader(run.key.path.toStdString());
    std::int64_t tokens = 0;
    for (const auto& rows : {reader.prompt(run.key.runId, sequence), reader.tokens(run.key.runId, sequence)})
        for (const TokenRow& token : rows) tokens = std::max(tokens, std::int64_t(token.position) + 1);
    if (tokens == 0) tokens = std::int64_t(1) << 31;
    return (tokens + run.row.blockSize - 1) / run.row.blockSize;
}

/// Refuses a cursor outside of the run: the picture would not show what was asked for. @throws Error(BadInput)
void requireInside(const OpenRun& open, const Cursor& cursor) {
    const RunRow& run = open.row;
    const bool there = cursor.sequence < run.sequences || cursor.sequence <= 0; // another sequence is refused below
    const std::int64_t blocks =
        cursor.block > 0 && there ? blocksOf(open, cursor.sequence) : std::numeric_limits<std::int64_t>::max();
    const std::tuple<const char*, std::int64_t, std::int64_t> places[] = {{"step", cursor.step, run.steps},
                                                                          {"layer", cursor.layer, run.layers},
                                                                          {"KV head", cursor.kvHead, run.kvHeads},
                                                                          {"sequence", cursor.sequence, run.sequences},
                                                                          {"block", cursor.block, blocks}};
    for (const auto& [what, place, count] : places)
        if (place >= count && place > 0)
            throw Error(ErrorKind::BadInput,
                        QStringLiteral("the run has no %1 %2").arg(QLatin1String(what)).arg(place).toStdString(),
                        count > 0 ? QStringLiteral("choose 0 to %1").arg(count - 1).toStdString() : "it has none");
}

void showRuns(Workspace& workspace, const RenderRequest& request) {
    const RunKey shown = openRun(workspace, request.trace, request.runId);
    for (const OpenRun& run : workspace.runs())
        if (run.key == shown) requireInside(run, request.cursor);
    if (!request.compareTrace.isEmpty()) {
        const RunKey other = openRun(workspace, request.compareTrace, request.compareRunId);
        workspace.setCurrent(shown);
        workspace.setCompare(other);
    }
    workspace.setCurrent(shown);
    workspace.setCursor(request.cursor);
}

[[noreturn]] void refusePicture(const QString& path, const QString& why) {
    throw Error(ErrorKind::Storage,
                QStringLiteral("the picture %1 could not be written: %2").arg(path, why).toStdString(),
                "choose a folder that exists, is writable and has room, or a smaller --size");
}

/// Renders the whole window as the user sees it after the first start of the program. The user's own settings are
/// neither read nor written.
void renderWindow(const RenderRequest& request) {
    MainWindow window{Settings(true)};
    window.setTheme(request.theme);
    window.resize(request.size);
    window.show();
    // When the model is loaded, the form shows the parameters.
    waitUntil([&] { return window.controller().model() != nullptr; });
    showRuns(window.workspace(), request);
    window.showView(request.view);
    QCoreApplication::processEvents();
    waitUntilIdle(window.workspace());
    // A view with a visible progress bar is not complete yet, e.g. while the rows of a query arrive.
    waitUntil([&] {
        const auto bars = window.currentView()->findChildren<QProgressBar*>();
        return std::none_of(bars.begin(), bars.end(), [](const QProgressBar* bar) { return bar->isVisible(); });
    });
    const QString why = whyNotSaved(pngOf(window.grab().toImage()), request.output);
    if (!why.isEmpty()) refusePicture(request.output, why);
}

} // namespace

QString viewNames() {
    QStringList names;
    for (const ViewEntry& entry : views()) names << QString::fromLatin1(entry.id);
    return names.join(QStringLiteral(", "));
}

void renderView(const RenderRequest& request) {
    const auto entry = std::find_if(views().begin(), views().end(),
                                    [&](const ViewEntry& e) { return request.view == QLatin1String(e.id); });
    if (entry == views().end()) {
        std::vector<std::string> names;
        for (const ViewEntry& known : views()) names.emplace_back(known.id);
        const std::string wrong = request.view.toStdString();
        throw Error(ErrorKind::BadInput, "there is no view named " + wrong + didYouMean(wrong, names),
                    ("choose one of " + viewNames()).toStdString());
    }
    const QString suffix = QFileInfo(request.output).suffix().toLower();
    if (suffix != QLatin1String("png") && suffix != QLatin1String("svg") && suffix != QLatin1String("pdf"))
        throw Error(ErrorKind::BadInput,
                    (request.output + ": the name of a picture ends in .png, .svg or .pdf").toStdString());
    if (request.window && suffix != QLatin1String("png"))
        throw Error(ErrorKind::BadInput, (request.output + ": a picture of the window is a .png").toStdString());
    if (request.theme != Theme::light().id && request.theme != Theme::dark().id)
        throw Error(ErrorKind::BadInput, ("there is no theme named " + request.theme).toStdString(),
                    "choose light or dark");
    if (request.size.width() < 200 || request.size.height() < 150 || request.size.width() > 16'384 ||
        request.size.height() > 16'384)
        throw Error(ErrorKind::BadInput,
                    QStringLiteral("%1x%2 is not a size for a picture")
                        .arg(request.size.width())
                        .arg(request.size.height())
                        .toStdString(),
                    "choose 200x150 to 16384x16384");
    if (!(request.scale >= 1) || request.scale > kLargestScale ||
        std::max(request.size.width(), request.size.height()) * request.scale > kLargestPicture)
        throw Error(ErrorKind::BadInput,
                    QStringLiteral("%1 is not a scale for a picture of %2x%3")
                        .arg(request.scale)
                        .arg(request.size.width())
                        .arg(request.size.height())
                        .toStdString(),
                    "choose 1 to 8, and at most 16384 pixels a side");

    const ThemeForNow theme(Theme::byId(request.theme));
    if (request.window) {
        renderWindow(request);
        return;
    }
    Workspace workspace;
    showRuns(workspace, request);

    QString failure;
    QObject::connect(&workspace, &Workspace::failed, &workspace, [&](const QString& sentence) { failure = sentence; });
    const std::unique_ptr<View> view(entry->make(workspace, nullptr));
    view->setAttribute(Qt::WA_DontShowOnScreen);
    view->resize(request.size);
    view->show();
    QCoreApplication::processEvents();
    waitUntilIdle(workspace);
    if (!failure.isEmpty()) throw Error(ErrorKind::BadInput, failure.toStdString());
    setPictureScale(*view, request.scale);
    const QString why = whyNoPicture(*view, request.output, request.size);
    if (!why.isEmpty()) refusePicture(request.output, why);
}

} // namespace kvscope::ui
