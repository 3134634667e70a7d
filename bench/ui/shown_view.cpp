#include "bench/ui/shown_view.h"

#include "base/error.h"
#include "bench/ui/timeline_tour.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/timeline/timeline_canvas.h"

#include <QApplication>
#include <QElapsedTimer>
#include <QFileInfo>
#include <QMouseEvent>
#include <QWheelEvent>

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace kvscope::bench {

namespace fs = std::filesystem;

namespace {
constexpr int kDoneMs = 500; // a view without a plot counts as complete when it has read nothing for so long
} // namespace

BenchFolder::BenchFolder() { qputenv("KVSCOPE_CACHE_DIR", QByteArray::fromStdString((folder_ / "cache").string())); }

BenchFolder::~BenchFolder() { qunsetenv("KVSCOPE_CACHE_DIR"); }

void BenchFolder::emptyCache() const { fs::remove_all(folder_ / "cache"); }

std::uintmax_t BenchFolder::cacheBytes() const {
    std::uintmax_t bytes = 0;
    if (!fs::exists(folder_ / "cache")) return 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cache"))
        if (entry.is_regular_file()) bytes += entry.file_size();
    return bytes;
}

ShownView::ShownView(const char* id, QSize size) {
    ui::Theme::apply(*qApp, ui::Theme::dark());
    for (const ui::ViewEntry& entry : ui::views())
        if (std::string_view(entry.id) == id) view_.reset(entry.make(workspace_, nullptr));
    if (!view_) throw Error(ErrorKind::Unsupported, fmt::format("there is no view {}", id));
    view_->resize(size);
    view_->show();
    QCoreApplication::processEvents();
}

ui::PlotView* ShownView::plot() {
    if (auto* whole = dynamic_cast<ui::PlotView*>(view_.get())) return whole;
    for (ui::PlotView* page : view_->findChildren<ui::PlotView*>())
        if (page->isVisible()) return page;
    return nullptr;
}

ui::TimelineCanvas* ShownView::timeline() { return view_->findChild<ui::TimelineCanvas*>(); }

bool ShownView::isDrawn() {
    ui::TimelineCanvas* canvas = timeline();
    if (!canvas || canvas->data().empty()) return false;
    canvas->repaint(); // paints the first piece; a person can use the timeline while more pieces come
    return true;
}

ShownView::Opening ShownView::open(const std::string& trace, int runId, int compareId) {
    Opening opening;
    QString failure;
    const auto failing = QObject::connect(&workspace_, &ui::Workspace::openFailed, view_.get(),
                                          [&](const QString&, const QString& sentence) { failure = sentence; });
    const QString path = QFileInfo(QString::fromStdString(trace)).absoluteFilePath();
    bool drawn = false;
    QMetaObject::Connection drawing;
    if (ui::PlotView* plot = this->plot())
        drawing = QObject::connect(&plot->canvas(), &QCustomPlot::afterReplot, plot, [&, plot] {
            // An axis wider than 1.2 has got its range from data.
            drawn = drawn || (plot->emptyText().isEmpty() && plot->canvas().fullX().size() > 1.2);
        });
    QElapsedTimer all, turn, idle;
    all.start();
    idle.start();
    workspace_.open(path);
    const auto ms = [](const QElapsedTimer& timer) { return double(timer.nsecsElapsed()) / 1e6; };
    do {
        turn.start();
        QCoreApplication::processEvents();
        opening.longestStall = std::max(opening.longestStall, ms(turn));
        if (!failure.isEmpty()) throw Error(ErrorKind::BadInput, failure.toStdString());
        if (const auto* run = workspace_.current(); run && run->key.runId != runId) {
            all.restart(); // opening showed another run of the file first, which is not timed
            drawn = false;
            workspace_.setCurrent({run->key.path, runId});
        }
        if (const auto* run = workspace_.current(); run && compareId > 0 && !workspace_.compare())
            workspace_.setCompare(ui::RunKey{run->key.path, compareId});
        drawn = drawn || isDrawn();
        if (drawn && opening.firstPicture == 0) opening.firstPicture = ms(all);
        const bool quiet = workspace_.idle() && workspace_.current() && workspace_.current()->key.runId == runId;
        if (!quiet) idle.restart();
        if (quiet && !drawn) QCoreApplication::processEvents(QEventLoop::AllEvents, 5);
    } while (!workspace_.current() || !workspace_.idle() || (!drawn && idle.elapsed() < kDoneMs));
    QCoreApplication::processEvents();
    opening.everything = ms(all) - (drawn ? 0.0 : double(idle.elapsed()));
    if (opening.firstPicture == 0) opening.firstPicture = opening.everything;
    QObject::disconnect(drawing);
    QObject::disconnect(failing);
    return opening;
}

double ShownView::frame() {
    QElapsedTimer timer;
    timer.start();
    QCoreApplication::processEvents(); // runs the queued replot and paints it
    return double(timer.nsecsElapsed()) / 1e6;
}

void ShownView::wheel(QPointF at, int clicks, Qt::KeyboardModifiers modifiers, std::vector<double>& frames) {
    ui::PlotCanvas& canvas = plot()->canvas();
    for (int i = 0; i < std::abs(clicks); ++i) {
        QWheelEvent event(at, canvas.mapToGlobal(at), {}, {0, clicks > 0 ? 120 : -120}, Qt::NoButton, modifiers,
                          Qt::NoScrollPhase, false);
        QElapsedTimer timer;
        timer.start();
        QApplication::sendEvent(&canvas, &event);
        const double handled = double(timer.nsecsElapsed()) / 1e6;
        frames.push_back(handled + frame());
    }
}

void ShownView::drag(QPointF from, QPointF by, int moves, std::vector<double>& frames) {
    ui::PlotCanvas& canvas = plot()->canvas();
    const auto send = [&](QEvent::Type type, QPointF at, Qt::MouseButton button, Qt::MouseButtons buttons) {
        QMouseEvent event(type, at, canvas.mapToGlobal(at), button, buttons, {});
        QApplication::sendEvent(&canvas, &event);
    };
    send(QEvent::MouseButtonPress, from, Qt::LeftButton, Qt::LeftButton);
    for (int i = 1; i <= moves; ++i) {
        QElapsedTimer timer;
        timer.start();
        send(QEvent::MouseMove, from + by * i / moves, Qt::NoButton, Qt::LeftButton);
        const double handled = double(timer.nsecsElapsed()) / 1e6;
        frames.push_back(handled + frame());
    }
    send(QEvent::MouseButtonRelease, from + by, Qt::LeftButton, Qt::NoButton);
    QCoreApplication::processEvents();
}

std::vector<double> ShownView::tour(int rounds) {
    std::vector<double> frames;
    if (timeline()) return timelineTour(*timeline());
    const QRectF area = plot()->canvas().panels().front()->rect();
    const auto at = [&](double x, double y) {
        return QPointF(area.left() + x * area.width(), area.top() + y * area.height());
    };
    for (int round = 0; round < rounds; ++round) {
        const double focus = 0.15 + 0.7 * double(round % 5) / 4;
        wheel(at(focus, 0.5), 12, {}, frames);
        drag(at(0.8, 0.5), QPointF(-0.6 * area.width(), 0), 20, frames);
        wheel(at(0.5, 0.5), 10, {}, frames);
        drag(at(0.2, 0.5), QPointF(0.6 * area.width(), 0), 20, frames);
        wheel(at(0.5, 0.4), 6, Qt::ControlModifier, frames);
        drag(at(0.5, 0.3), QPointF(0.1 * area.width(), 0.4 * area.height()), 12, frames);
        wheel(at(0.5, 0.4), -6, Qt::ControlModifier, frames);
        wheel(at(0.5, 0.5), -22, {}, frames);
        view_->resetZoom();
        QCoreApplication::processEvents();
    }
    return frames;
}

std::int64_t residentBytes() {
    std::ifstream statm("/proc/self/statm");
    std::int64_t total = 0, resident = 0;
    statm >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

nlohmann::ordered_json frameTimes(std::vector<double> milliseconds) {
    std::sort(milliseconds.begin(), milliseconds.end());
    const auto at = [&](double share) {
        if (milliseconds.empty()) return 0.0;
        return milliseconds[std::min(milliseconds.size() - 1, std::size_t(share * double(milliseconds.size())))];
    };
    return {{"frames", milliseconds.size()},
            {"median_ms", at(0.5)},
            {"p99_ms", at(0.99)},
            {"longest_ms", at(1)},
            {"share_within_16_7_ms",
             milliseconds.empty() ? 0.0
                                  : double(std::upper_bound(milliseconds.begin(), milliseconds.end(), 1000.0 / 60) -
                                           milliseconds.begin()) /
                                        double(milliseconds.size())}};
}

} // namespace kvscope::bench
