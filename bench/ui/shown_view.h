// Opens a trace in a view, sends it the events that a person's mouse would, and times each event until the view has
// painted.
#pragma once

#include "bench/bench.h"
#include "profiler/read/open_trace.h"
#include "ui/frame/workspace.h"
#include "ui/plots/plot_view.h"

#include <nlohmann/json_fwd.hpp>

#include <QSize>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::ui {
class TimelineCanvas;
}

namespace kvscope::bench {

/// A folder for a generated trace. While the object lives the tile cache is in this folder too, so that the person's
/// own cache is not touched.
class BenchFolder {
public:
    BenchFolder();
    ~BenchFolder();
    BenchFolder(const BenchFolder&) = delete;
    BenchFolder& operator=(const BenchFolder&) = delete;
    std::string trace() const { return (folder_ / "generated.kvtrace").string(); }
    void emptyCache() const;
    std::uintmax_t cacheBytes() const;

private:
    TemporaryFolder temporary_;
    std::filesystem::path folder_{temporary_.path()};
};

class ShownView {
public:
    /// `id` as in the registry of views; the trace is not opened yet.
    ShownView(const char* id, QSize size);
    /// Milliseconds.
    struct Opening {
        double firstPicture = 0, everything = 0; // from the call until first data are drawn; until all are read
        double longestStall = 0;                 // the longest time that the GUI thread was busy at a stretch
    };
    /// Opens the trace and shows run `runId`, compared with run `compareId` if that is not 0, waiting until all is
    /// read. In a view without a plot the first picture is there when all is read. @throws Error when it cannot be
    /// opened
    Opening open(const std::string& trace, int runId, int compareId = 0);
    /// The view, or the page of it that is shown; null: it has no plot.
    ui::PlotView* plot();
    ui::TimelineCanvas* timeline(); // null: it is another view
    bool drawsFrames() { return timeline() || (plot() && plot()->emptyText().isEmpty()); }

    /// Runs a scripted tour: zooms in with the wheel, drags, zooms out, drags across the whole plot, zooms rows. The
    /// timeline has a tour of its own. @return the milliseconds of each frame. @pre drawsFrames()
    std::vector<double> tour(int rounds);

private:
    double frame();
    void wheel(QPointF at, int clicks, Qt::KeyboardModifiers modifiers, std::vector<double>& frames);
    bool isDrawn(); // whether a timeline has painted its first data
    void drag(QPointF from, QPointF by, int moves, std::vector<double>& frames);

    ui::Workspace workspace_;
    std::unique_ptr<ui::View> view_;
};

/// Bytes of memory the process holds now.
std::int64_t residentBytes();
/// The number of frames, and their median, 99th percentile and longest in milliseconds.
nlohmann::ordered_json frameTimes(std::vector<double> milliseconds);

} // namespace kvscope::bench
