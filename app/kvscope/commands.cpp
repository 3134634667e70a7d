#include "app/kvscope/commands.h"

#include "app/kvscope/offscreen.h"
#include "app/terminal/interruption.h"
#include "app/terminal/output.h"
#include "base/error.h"
#include "profiler/store/trace_store.h"
#include "ui/frame/background_thread.h"
#include "ui/output/render.h"
#include "ui/output/report.h"
#include "ui/session/session_controller.h"
#include "ui/window/main_window.h"

#include <QApplication>
#include <QDeadlineTimer>
#include <QElapsedTimer>
#include <QFileInfo>
#include <QIcon>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>

namespace kvscope::app {
namespace {

constexpr std::chrono::seconds kLongestEnd{10};

/// Milliseconds since the kernel started this process; -1 when it does not say.
double processAgeMs() {
    std::ifstream stat("/proc/self/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), {});
    const std::size_t afterName = text.rfind(')'); // the name may hold blanks
    if (afterName == std::string::npos) return -1;
    std::istringstream fields(text.substr(afterName + 2));
    std::string field;
    for (int index = 3; index <= 22; ++index) fields >> field; // 22: start time in clock ticks since boot
    timespec now{};
    if (!fields || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return -1;
    return double(now.tv_sec) * 1e3 + double(now.tv_nsec) / 1e6 - std::stod(field) * 1e3 / double(sysconf(_SC_CLK_TCK));
}

QSize parseSize(const std::string& text) {
    int width = 0, height = 0;
    char end = 0;
    if (std::sscanf(text.c_str(), "%dx%d%c", &width, &height, &end) != 2 || width < 80 || height < 80 ||
        width > 16384 || height > 16384)
        throw Error(ErrorKind::BadInput, "--size " + text + " is not a picture size",
                    "write WIDTHxHEIGHT, 80 to 16384 each, e.g. 1600x1000");
    return {width, height};
}

void requireFile(const std::string& path) {
    if (!QFileInfo(QString::fromLocal8Bit(path.c_str())).isFile())
        throw Error(ErrorKind::BadInput, "trace " + path + " is not there",
                    "name a .kvtrace file, or one of the commands in kvscope --help");
}

} // namespace

void nameApplication() {
    QCoreApplication::setApplicationName(QStringLiteral("kvscope"));
    QCoreApplication::setApplicationVersion(QStringLiteral(KVSCOPE_VERSION));
    QGuiApplication::setApplicationDisplayName(QStringLiteral("KVScope"));
}

void useOffscreenPlatform() {
    qputenv("QT_QPA_PLATFORM", "offscreen");
    qunsetenv("QT_SCREEN_SCALE_FACTORS"); // the size asked for is the size written
    // The platform without a window warns about things that a picture does not need. Its warnings are dropped, so that
    // stderr has one line of ours.
    qInstallMessageHandler([](QtMsgType type, const QMessageLogContext&, const QString& text) {
        if (text.startsWith(QLatin1String("QThread::start: "))) {
            printErr("kvscope: {}\n", kNoThreads);
            std::_Exit(1); // at once: the thread that waits for the new one would wait for ever
        }
        if (type == QtCriticalMsg || type == QtFatalMsg) printErr("kvscope: {}\n", text.toStdString());
    });
}

QString absolute(const std::string& path) { return QFileInfo(QString::fromLocal8Bit(path.c_str())).absoluteFilePath(); }

/// Ends the program after a signal asked for it; runs in the GUI thread. It stops sessions as a person would, so that
/// their runs say `stopped` and their traces are whole. It asks no questions, because nobody may be there to answer,
/// and waits for sessions no longer than kLongestEnd.
void endOrderly() {
    const auto isActive = [](const ui::SessionController* session) {
        return session->state() != ui::SessionController::State::Idle;
    };
    QList<ui::SessionController*> sessions;
    for (const QWidget* window : QApplication::topLevelWidgets())
        sessions += window->findChildren<ui::SessionController*>();
    for (ui::SessionController* session : sessions) session->stop();
    const QDeadlineTimer limit(kLongestEnd);
    while (std::any_of(sessions.begin(), sessions.end(), isActive) && !limit.hasExpired()) {
        QCoreApplication::processEvents(QEventLoop::ExcludeUserInputEvents); // sessions say so when they are over
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    QCoreApplication::exit(Interruption::exitStatus());
}

/// The paths of the traces that a window has open.
std::set<std::string> tracesOf(ui::MainWindow& window) {
    std::set<std::string> paths;
    for (const ui::OpenRun& run : window.workspace().runs()) paths.insert(run.key.path.toStdString());
    return paths;
}

/// Shows the window until the program ends. @return its exit status; `traces` gets the traces that were open then
int showDesktop(QApplication& application, const DesktopOptions& options, std::set<std::string>& traces) {
    QGuiApplication::setWindowIcon(QIcon(QStringLiteral(":/kvscope.svg")));
    QGuiApplication::setDesktopFileName(QStringLiteral("kvscope")); // Wayland takes the icon of that file
    ui::letBackgroundThreadsYield();
    ui::MainWindow window{ui::Settings(options.fresh)};
    if (!options.theme.empty()) window.setTheme(QString::fromStdString(options.theme));
    if (qEnvironmentVariableIsSet("KVSCOPE_STARTUP_TIMING"))
        QObject::connect(&window, &ui::MainWindow::firstPainted, &window,
                         [] { printErr("first paint after {:.0f} ms\n", processAgeMs()); });
    window.show();
    QStringList files;
    for (const std::string& file : options.files) files << absolute(file);
    QObject::connect(&window, &ui::MainWindow::firstPainted, &window, [&window, files, again = options.again] {
        if (again)
            window.runAgainWhenOpen(files.front());
        else
            window.openFiles(files);
    });
    const Interruption interruption;
    const std::stop_callback onStop(Interruption::token(), [&application] {
        QMetaObject::invokeMethod(&application, endOrderly, Qt::QueuedConnection);
    });
    const int status = QApplication::exec();
    for (QWidget* widget : QApplication::topLevelWidgets())
        if (auto* other = qobject_cast<ui::MainWindow*>(widget)) {
            traces.merge(tracesOf(*other));
            if (other != &window) delete other; // where a signal ends the program, nobody has closed the windows
        }
    return status;
}

int runDesktop(int& argc, char** argv, const DesktopOptions& options) {
    for (const std::string& file : options.files) requireFile(file);
    if (qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM") && qEnvironmentVariableIsEmpty("DISPLAY") &&
        qEnvironmentVariableIsEmpty("WAYLAND_DISPLAY")) {
        printErr("kvscope: there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set); use 'kvscope render', "
                 "'kvscope report' or kvscope-cli here\n");
        return 2;
    }
    nameApplication();
    QApplication application(argc, argv);
    std::set<std::string> traces;
    const int status = showDesktop(application, options, traces);
    for (const std::string& trace : traces) TraceStore::settle(trace); // the windows' readers of the traces are gone
    return status;
}

int runReport(int& argc, char** argv, const ReportOptions& options) {
    const QString suffix = QFileInfo(QString::fromStdString(options.output)).suffix().toLower();
    if (suffix != QLatin1String("html") && suffix != QLatin1String("htm") && suffix != QLatin1String("pdf"))
        throw Error(ErrorKind::BadInput, "--output " + options.output + " has no suffix of a report",
                    "name it .html or .pdf");
    for (const std::string& trace : options.traces) requireFile(trace);
    useOffscreenPlatform();
    qputenv("QT_SCALE_FACTOR", "2"); // figures sharp enough for print
    nameApplication();
    const QApplication application(argc, argv);
    std::vector<std::string> traces;
    for (const std::string& trace : options.traces) traces.push_back(absolute(trace).toStdString());
    const reports::Report report = reports::makeReport(traces);
    ui::writeReport(report, absolute(options.output));
    if (!options.csv.empty()) reports::writeCsvFolder(report, absolute(options.csv).toStdString());
    return 0;
}

int runRender(int& argc, char** argv, const RenderOptions& options) {
    ui::RenderRequest request;
    request.size = parseSize(options.size);
    const QString suffix = QFileInfo(QString::fromStdString(options.output)).suffix().toLower();
    if (options.scaleGiven && (suffix == QLatin1String("svg") || suffix == QLatin1String("pdf")))
        throw Error(ErrorKind::BadInput,
                    "--scale has no effect on " + options.output + ": only the pictures made of pixels have one",
                    "leave --scale out, or name a .png");
    requireFile(options.trace);
    useOffscreenPlatform();
    qputenv("QT_SCALE_FACTOR", options.window ? QByteArray::number(options.scale) : QByteArray("1"));
    nameApplication();
    const QApplication application(argc, argv);
    request.trace = absolute(options.trace);
    request.view = QString::fromStdString(options.view);
    request.output = absolute(options.output);
    request.theme = QString::fromStdString(options.theme);
    request.scale = options.scale;
    request.window = options.window;
    if (!options.compare.empty()) {
        requireFile(options.compare);
        request.compareTrace = absolute(options.compare);
    }
    request.cursor.step = options.step;
    request.cursor.layer = options.layer;
    request.cursor.kvHead = options.kvHead;
    request.cursor.sequence = options.sequence;
    request.cursor.block = options.block;
    ui::renderView(request);
    return 0;
}

} // namespace kvscope::app
