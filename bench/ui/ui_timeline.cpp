// How soon the timeline shows something, and how long a frame takes while a person pans and zooms.
#include "base/error.h"
#include "bench/generated_trace.h"
#include "bench/machine.h"
#include "bench/ui/timeline_tour.h"
#include "bench/ui/ui_bench.h"
#include "profiler/read/open_trace.h"
#include "ui/frame/view.h"
#include "ui/frame/workspace.h"
#include "ui/look/theme.h"
#include "ui/timeline/timeline_canvas.h"

#include <QApplication>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvscope::bench {
namespace {

using ui::TimelineCanvas;

double quantile(std::vector<double> values, double q) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[std::min(values.size() - 1, std::size_t(q * double(values.size())))];
}

} // namespace

nlohmann::ordered_json uiTimeline(const Settings& settings, const Log& log) {
    GeneratedTrace shape;
    std::optional<TemporaryFolder> folder; // of a generated trace
    std::string path;
    for (const auto& [key, value] : settings)
        if (key == "spans")
            shape.spans = std::clamp<std::int64_t>(std::atoll(value.c_str()), 1000, 200'000'000);
        else if (key == "trace")
            path = value;
        else
            throw Error(ErrorKind::BadInput, "ui-timeline has no setting " + key, "write --set spans=N or trace=FILE");
    const bool generated = path.empty();
    nlohmann::ordered_json result;
    if (generated) {
        path = folder.emplace().path() + "/timeline.kvtrace";
        const double took = seconds([&] { writeGeneratedTrace(path, shape, log); });
        log(fmt::format("written in {:.1f} s", took));
    }
    result["trace_mb"] = double(std::filesystem::file_size(path)) / 1e6;

    ui::Theme::apply(*qApp, ui::Theme::light());
    ui::Workspace workspace;
    const auto& all = ui::views();
    const auto entry =
        std::find_if(all.begin(), all.end(), [](const auto& e) { return e.id == std::string("timeline"); });
    const std::unique_ptr<ui::View> view(entry->make(workspace, nullptr));
    auto& canvas = *view->findChild<TimelineCanvas*>();
    view->resize(1600, 1000);
    double firstPicture = 0, whole = 0, worstWhileLoading = 0;
    const auto clock = [start = std::chrono::steady_clock::now()] {
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    };
    view->show();
    workspace.open(QString::fromStdString(path));
    while (canvas.data().index.size() == 0 && clock() < 60'000) QApplication::processEvents(QEventLoop::AllEvents, 5);
    canvas.repaint();
    firstPicture = clock();
    log(fmt::format("first picture after {:.0f} ms", firstPicture));
    while (!workspace.idle()) { // pans while the rest is being read
        worstWhileLoading = std::max(worstWhileLoading, pressKey(canvas, Qt::Key_D));
        QApplication::processEvents(QEventLoop::AllEvents, 10);
    }
    whole = clock();
    const std::size_t spans = canvas.data().index.size();
    log(fmt::format("{} spans in memory after {:.0f} ms", spans, whole));
    view->resetZoom();
    canvas.repaint();
    std::vector<double> frames = timelineTour(canvas);
    view->resetZoom();
    std::vector<double> wholeFrames;
    for (int i = 0; i < 40; ++i) wholeFrames.push_back(turnWheel(canvas, i % 2 == 0 ? 1 : -1, 900));
    if (generated)
        for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);

    result["spans"] = spans;
    result["first_picture_ms"] = firstPicture;
    result["all_spans_read_ms"] = whole;
    result["worst_frame_while_reading_ms"] = worstWhileLoading;
    result["frames"] = frames.size();
    result["frame_median_ms"] = quantile(frames, 0.5);
    result["frame_p99_ms"] = quantile(frames, 0.99);
    result["frame_worst_ms"] = quantile(frames, 1);
    result["frame_of_everything_median_ms"] = quantile(wholeFrames, 0.5);
    result["bytes_per_span"] = double(canvas.data().index.memoryBytes()) / double(std::max<std::size_t>(spans, 1));
    result["widget_pixels"] = fmt::format("{}x{}", int(canvas.width() * canvas.devicePixelRatioF()),
                                          int(canvas.height() * canvas.devicePixelRatioF()));
    return result;
}

} // namespace kvscope::bench
