// kvscope --bench: the benchmarks that need Qt, started by kvscope-cli bench.
#include "app/kvscope/commands.h"

#include "app/kvscope/offscreen.h"
#include "app/terminal/output.h"
#include "base/error.h"
#include "bench/ui/ui_bench.h"

#include <QApplication>

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::app {

int runBench(int& argc, char** argv, const BenchOptions& options) {
    const auto all = bench::uiBenchmarks();
    const auto entry = std::find_if(all.begin(), all.end(), [&](const auto& e) { return e.name == options.name; });
    if (entry == all.end())
        throw Error(ErrorKind::BadInput, fmt::format("there is no benchmark of the desktop named {}", options.name),
                    "kvscope-cli bench --help has the way to run them");
    bench::Settings settings;
    for (const std::string& setting : options.settings) {
        const auto equals = setting.find('=');
        if (equals == std::string::npos || equals == 0)
            throw Error(ErrorKind::BadInput, fmt::format("cannot read --set '{}'", setting), "write --set key=value");
        settings[setting.substr(0, equals)] = setting.substr(equals + 1);
    }
    useOffscreenPlatform();
    if (qEnvironmentVariableIsEmpty("QT_SCALE_FACTOR")) qputenv("QT_SCALE_FACTOR", "1");
    nameApplication();
    const QApplication application(argc, argv);
    const auto result = entry->run(settings, [](std::string_view line) { printErr("  {}\n", line); });
    printOut("{}\n", result.dump(2));
    return 0;
}

} // namespace kvscope::app
