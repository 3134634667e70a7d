// Frame times of the heatmap (layers x steps) and of the mask (blocks x steps) over a scripted tour of wheel and mouse
// events, in software rendering at 1600 x 1000, with every aggregate, from the whole run down to single steps.
#include "bench/selection_trace_file.h"
#include "bench/ui/shown_view.h"
#include "bench/ui/ui_bench.h"

#include <QComboBox>
#include <QCoreApplication>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {

namespace {

constexpr QSize kSize{1600, 1000};
constexpr int kRounds = 4;

nlohmann::ordered_json measure(const char* view, const char* picker, const BenchFolder& folder, int runId,
                               const Log& log) {
    folder.emptyCache();
    const std::int64_t before = residentBytes();
    ShownView shown(view, kSize);
    const auto opening = shown.open(folder.trace(), runId);
    const std::int64_t held = residentBytes() - before;
    log(fmt::format("{}: first picture after {:.0f} ms, everything read after {:.0f} ms", view, opening.firstPicture,
                    opening.everything));
    nlohmann::ordered_json result{{"first_picture_ms", opening.firstPicture},
                                  {"everything_read_ms", opening.everything},
                                  {"longest_stall_while_reading_ms", opening.longestStall},
                                  {"resident_mb", double(held) / 1e6},
                                  {"tiles_in_cache_mb", double(folder.cacheBytes()) / 1e6}};
    auto* aggregate = shown.plot()->findChild<QComboBox*>(QString::fromLatin1(picker));
    for (int i = 0; aggregate && i < aggregate->count(); ++i) {
        aggregate->setCurrentIndex(i);
        QCoreApplication::processEvents();
        const auto frames = frameTimes(shown.tour(kRounds));
        const std::string name = aggregate->itemText(i).toLower().toStdString();
        log(fmt::format("{}, {}: median {:.1f} ms, 99th percentile {:.1f} ms", view, name,
                        frames["median_ms"].get<double>(), frames["p99_ms"].get<double>()));
        result[name] = frames;
    }
    return result;
}

} // namespace

nlohmann::ordered_json uiHeatmap(const Settings& settings, const Log& log) {
    const HeatTraceShape shape = heatTraceShape(settings);
    const BenchFolder folder;
    const auto bytes = writeHeatTrace(folder.trace(), shape, log);
    nlohmann::ordered_json result{{"trace_mb", double(bytes) / 1e6},
                                  {"steps", shape.steps},
                                  {"layers", shape.layers},
                                  {"blocks", shape.blocks},
                                  {"selected_per_step", shape.selected}};
    result["heatmap"] = measure("locality", "aggregate", folder, 1, log);
    result["mask"] = measure("selection", "zoomed", folder, 2, log);
    return result;
}

} // namespace kvscope::bench
