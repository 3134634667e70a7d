// kvscope-bench-desktop: runs one of the benchmarks of bench/ui, which need Qt. kvscope-bench starts it.
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "bench/ui/ui_bench.h"

#include <QApplication>

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace kvscope;

struct Arguments {
    std::string name;
    std::vector<std::string> settings;
};

void run(int& argc, char** argv, const Arguments& arguments) {
    const auto all = bench::uiBenchmarks();
    const auto entry = std::find_if(all.begin(), all.end(), [&](const auto& e) { return e.name == arguments.name; });
    if (entry == all.end())
        throw Error(ErrorKind::BadInput, fmt::format("there is no benchmark of the desktop named {}", arguments.name),
                    "kvscope-cli bench --help has the way to run them");
    const bench::Settings settings = bench::readSettings(arguments.settings);
    qputenv("QT_QPA_PLATFORM", "offscreen"); // whatever display there is, the numbers are those of this platform
    qunsetenv("QT_SCREEN_SCALE_FACTORS");
    if (qEnvironmentVariableIsEmpty("QT_SCALE_FACTOR")) qputenv("QT_SCALE_FACTOR", "1");
    qInstallMessageHandler([](QtMsgType type, const QMessageLogContext&, const QString& text) {
        if (type == QtCriticalMsg || type == QtFatalMsg) printErr("kvscope-bench-desktop: {}\n", text.toStdString());
    });
    QCoreApplication::setApplicationName(QStringLiteral("kvscope")); // the benchmark reads the desktop's own settings
    QCoreApplication::setApplicationVersion(QStringLiteral(KVSCOPE_VERSION));
    QGuiApplication::setApplicationDisplayName(QStringLiteral("KVScope"));
    const QApplication application(argc, argv);
    const auto result = entry->run(settings, [](std::string_view line) { printErr("  {}\n", line); });
    printOut("{}\n", result.dump(2));
}

/// Runs the program. @return its exit status, if standard output takes everything that was written
int runProgram(int argc, char** argv) {
    Arguments arguments;
    CommandLine program("kvscope-bench-desktop", "Run a benchmark of the desktop and print one JSON document.",
                        KVSCOPE_VERSION);
    program.add("name", arguments.name, "The benchmark").required();
    program.add("--set", arguments.settings, "key=value").repeatable();
    if (const std::optional<int> status = program.parse(argc, argv)) return *status;
    try {
        run(argc, argv, arguments);
        return 0;
    } catch (const Error& error) {
        printErr("kvscope-bench-desktop: {}\n", oneLine(error));
    } catch (const std::exception& error) {
        printErr("kvscope-bench-desktop: {}\n", error.what());
    }
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    prepareOutput();
    const int status = runProgram(argc, argv);
    return statusAfterOutput(status, "kvscope-bench-desktop");
}
