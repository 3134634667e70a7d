// Capacity: what another device memory, load or admission would have done to a recorded serving run. Its requests go
// through the simulator, whose plans are the scheduler's own; what was assumed stands below the plot.
#include "profiler/replay/recorded_server.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/equal_panels.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/log_axis.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/serving/serving_plot_view.h"
#include "ui/views/serving/serving_strip.h"

#include "base/error.h"
#include "base/numbered_array.h"

#include <QComboBox>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

namespace kvscope::ui {

namespace {

constexpr double kMib = 1 << 20;
constexpr double kNear = 30; // pixels from a point that a click means
enum CapacityPanel { Attainment, Goodput, Pauses, Hits, kCapacityPanels };

/// How the server decides what it admits and what stays on the device.
struct Setting {
    QString name;
    std::shared_ptr<const RecordedServer> server;
};

struct SimulatedPoint {
    double value = 0; // of what is changed
    serve::ServingResult result;
};

/// What a worker found. problem: one sentence about why there is nothing; empty: all is well, or it was cancelled.
struct ServerAnswer {
    std::shared_ptr<const RecordedServer> server;
    QString problem, hint;
};
struct PointsAnswer {
    std::vector<SimulatedPoint> points;
    QString problem;
    bool cancelled = false;
};

double heightOf(const serve::ServingResult& result, int panel) {
    switch (panel) {
    case Attainment:
        return 100 * result.attainment;
    case Goodput:
        return result.goodput;
    case Pauses:
        return result.pauses;
    default:
        return 100 * result.hitRate;
    }
}

/// The settings that are tried: as recorded, and where blocks are loaded from the host, with the other rule of
/// admission and with the other cache.
std::vector<Setting> settingsOf(const std::shared_ptr<const RecordedServer>& server) {
    std::vector<Setting> settings{{View::tr("as recorded"), server}};
    if (!server->options.scheduler.offload) return settings;
    const auto add = [&](const QString& name, auto&& change) {
        auto other = std::make_shared<RecordedServer>(*server);
        change(other->options.scheduler);
        settings.push_back({name, other});
    };
    const bool control = server->options.scheduler.workingSetControl;
    add(control ? View::tr("no control of working sets") : View::tr("working sets controlled"),
        [&](serve::SchedulerOptions& options) { options.workingSetControl = !control; });
    const bool partition = server->options.scheduler.cache == serve::CachePlan::Partition;
    add(partition ? View::tr("one pool for all rows") : View::tr("a partition for each row"),
        [&](serve::SchedulerOptions& options) {
            options.cache = partition ? serve::CachePlan::GlobalLru : serve::CachePlan::Partition;
        });
    return settings;
}

class CapacityView final : public ServingPlotView {
    Q_OBJECT
public:
    CapacityView(Workspace& workspace, QWidget* parent)
        : ServingPlotView(
              workspace, tr("Capacity"),
              tr("This view says what another device memory, load or admission would have done to a serving "
                 "run: its requests go through a simulator that plans as the server does."),
              parent) {
        change_ =
            addPicker(QStringLiteral("change"), tr("Change"), tr("What the simulated servers have more or less of"));
        change_->addItems({tr("Device memory"), tr("Requests a second"), tr("Rows"), tr("Window of working sets")});
        connect(change_, &QComboBox::currentIndexChanged, this, &CapacityView::simulateAll);
        status_ = new MutedLabel({}, this);
        status_->setObjectName(QStringLiteral("capacityStatus"));
        status_->setWordWrap(true);
        status_->setTextInteractionFlags(Qt::TextSelectableByMouse);
        status_->hide();
        addAbovePlot(status_);
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        for (int panel = 0; panel < kCapacityPanels; ++panel) {
            // Captions above the panels: beside low ones there is no room for more than the unit.
            auto* caption = new QCPTextElement(&canvas());
            caption->setTextFlags(Qt::AlignLeft | Qt::AlignBottom);
            caption->setMargins(QMargins(2, 4, 0, 0));
            canvas().plotLayout()->addElement(canvas().plotLayout()->rowCount(), 0, caption);
            captions_[panel] = caption;
            QCPAxisRect* rect = canvas().addPanel(true);
            rect->setMinimumMargins(QMargins(15, 2, 15, panel + 1 == kCapacityPanels ? 15 : 4));
            if (panel + 1 < kCapacityPanels) rect->axis(QCPAxis::atBottom)->setTickLabels(false);
            recorded_[panel] = addGraph(panel);
            recorded_[panel]->setLineStyle(QCPGraph::lsNone);
            here_[panel] = addLine(*rect);
        }
        keepEquallyHigh(canvas(), canvas().axisRects());
        canvas().setSelectsSteps(false);
        canvas().setMinimumSpan(0.05);
        canvas().setAccessibleDescription(tr("Drag pans, the wheel zooms, a double click resets. Left and right arrow "
                                             "keys go to the next simulated server, up and down to the next setting."));
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }
    ~CapacityView() override { stop_.request_stop(); }

    QString exportCsv() const override;
    QString sql() const override {
        return run() ? QStringLiteral("SELECT count(*) AS requests, sum(pauses) AS pauses,\n"
                                      "  sum(hits) * 1.0 / (sum(hits) + sum(misses)) AS hit_rate\n"
                                      "FROM v_request WHERE run_id = %1;")
                           .arg(run()->key.runId)
                     : QString();
    }

protected:
    ServingWish wish() const override {
        ServingWish wanted;
        wanted.classes = true;
        return wanted;
    }
    void forget() override {
        stop_.request_stop();
        stop_ = {};
        server_.reset();
        settings_.clear();
        points_.clear();
        problem_.clear();
        chosen_.reset();
        status_->hide();
        draw();
    }
    void fill() override;
    void cursorMoved() override {} // the cursor is in another plane: iterations and rows
    void themed(const Theme& theme) override;
    void clickedAt(int panel, QPointF at) override { choose(pointAt(panel, at)); }
    QString tooltipAt(int panel, QPointF at) override {
        const auto point = pointAt(panel, at);
        return point ? describe(*point).toHtmlEscaped() : QString();
    }
    void moveCursor(int steps, int layers) override;
    void jumpCursor(bool toEnd) override;
    QString note() const override;

private:
    struct Place {
        std::size_t setting = 0, point = 0;
    };

    ServerChange change() const { return kServerChanges[std::size_t(std::max(change_->currentIndex(), 0))]; }
    QCPGraph* addGraph(int panel) {
        QCPAxisRect* rect = canvas().panels()[panel];
        auto* graph = new QCPGraph(rect->axis(QCPAxis::atBottom), rect->axis(QCPAxis::atLeft));
        graph->setAntialiased(true);
        return graph;
    }
    QCPItemStraightLine* addLine(QCPAxisRect& rect) {
        auto* line = new QCPItemStraightLine(&canvas());
        line->setClipAxisRect(&rect);
        for (QCPItemPosition* position : line->positions()) {
            position->setAxisRect(&rect);
            position->setAxes(rect.axis(QCPAxis::atBottom), rect.axis(QCPAxis::atLeft));
        }
        return line;
    }
    void simulateAll();
    void simulate(std::size_t setting);
    void draw();
    void nameAxes();
    void showStatus();
    double shownValue(double value) const { return change() == ServerChange::DeviceMemory ? value / kMib : value; }
    double across(double value) const { return std::log2(shownValue(value)); }
    QString valueText(double value) const;
    std::optional<double> recordedHeight(int panel) const;
    std::optional<Place> pointAt(int panel, QPointF at);
    void choose(std::optional<Place> place);
    QString describe(Place place) const;

    QComboBox* change_ = nullptr;
    MutedLabel* status_ = nullptr;
    LegendStrip* legend_ = nullptr;
    NumberedArray<QCPTextElement*, kCapacityPanels> captions_{};
    struct Lines {
        NumberedArray<QCPGraph*, kCapacityPanels> line{}, unsure{}; // unsure: points near saturation
    };
    std::vector<Lines> lines_; // by setting
    NumberedArray<QCPGraph*, kCapacityPanels> recorded_{};
    NumberedArray<QCPItemStraightLine*, kCapacityPanels> here_{}; // at what the run had

    std::stop_source stop_;
    std::shared_ptr<const RecordedServer> server_;
    std::vector<Setting> settings_;
    std::vector<std::vector<SimulatedPoint>> points_; // by setting; empty: not simulated yet
    QString problem_;                                 // of a simulation that failed
    std::optional<Place> chosen_;
};

void CapacityView::fill() {
    if (!run()) return;
    if (run()->row.status == RunStatus::Running) {
        showEmpty(tr("The server still runs"),
                  tr("Other servers are simulated with all of its requests, when the run has ended."),
                  {showView("serving")});
        return;
    }
    showReading();
    workspace().query<ServerAnswer>(
        this, "capacity server", run()->key,
        [row = run()->row, stop = stop_.get_token()](TraceReader& reader) {
            ServerAnswer answer;
            try {
                answer.server = std::make_shared<const RecordedServer>(readRecordedServer(reader, row, stop));
            } catch (const Error& error) {
                if (error.kind != ErrorKind::Cancelled) answer.problem = QString::fromStdString(error.what());
                answer.hint = QString::fromStdString(error.hint);
            }
            return answer;
        },
        [this](const ServerAnswer& answer) {
            if (!answer.problem.isEmpty())
                return showEmpty(tr("This run cannot be simulated"),
                                 answer.problem + QStringLiteral(".\n\n") + answer.hint, {showView("serving")});
            if (!answer.server) return;
            server_ = answer.server;
            settings_ = settingsOf(server_);
            showEmpty({}, {});
            simulateAll();
        });
}

void CapacityView::simulateAll() {
    if (!server_) return;
    stop_.request_stop();
    stop_ = {};
    points_.assign(settings_.size(), {});
    problem_.clear();
    chosen_.reset();
    canvas().overlay().clear();
    canvas().forgetZoom();
    themed(Theme::current());
    draw();
    showStatus();
    simulate(0);
}

/// Simulates the setting's servers on a worker, and then goes on with the next setting.
void CapacityView::simulate(std::size_t setting) {
    if (setting >= settings_.size() || !run()) return;
    workspace().query<PointsAnswer>(
        this, "capacity points", run()->key,
        [server = settings_[setting].server, what = change(), stop = stop_.get_token()](TraceReader&) {
            PointsAnswer answer;
            try {
                for (const double value : valuesAround(*server, what))
                    answer.points.push_back({value, simulateServer(changed(*server, what, value), stop)});
            } catch (const Error& error) {
                answer.cancelled = error.kind == ErrorKind::Cancelled;
                if (!answer.cancelled) answer.problem = QString::fromStdString(oneLine(error));
            }
            return answer;
        },
        [this, setting, stop = stop_.get_token()](PointsAnswer answer) {
            if (answer.cancelled || stop.stop_requested() || setting >= points_.size()) return;
            if (!answer.problem.isEmpty()) problem_ = answer.problem;
            points_[setting] = std::move(answer.points);
            draw();
            showStatus();
            updateNote();
            simulate(setting + 1);
        });
}

std::optional<double> CapacityView::recordedHeight(int panel) const {
    if (data().classes.empty() || !server_) return std::nullopt;
    const ServedClass& all = data().classes.front();
    double hits = 0, selected = 0;
    for (const RequestRow& request : data().rows.requests)
        hits += double(request.hits), selected += double(request.hits) + double(request.misses);
    switch (panel) {
    case Attainment:
        return 100 * all.attainment();
    case Goodput:
        return double(all.good) / (double(server_->workload.spanUs) / 1e6);
    case Pauses:
        return double(all.pauses);
    default:
        return selected > 0 ? std::optional(100 * hits / selected) : std::nullopt;
    }
}

void CapacityView::draw() {
    while (lines_.size() < points_.size()) {
        Lines lines;
        for (int panel = 0; panel < kCapacityPanels; ++panel) {
            lines.line[panel] = addGraph(panel), lines.unsure[panel] = addGraph(panel);
            lines.unsure[panel]->setLineStyle(QCPGraph::lsNone);
        }
        lines_.push_back(lines);
        themed(Theme::current());
    }
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (int panel = 0; panel < kCapacityPanels; ++panel) {
        double most = panel == Goodput ? 0 : panel == Pauses ? 1 : 100;
        for (std::size_t s = 0; s < lines_.size(); ++s) {
            QVector<double> x, y, unsureX, unsureY;
            if (s < points_.size())
                for (const SimulatedPoint& point : points_[s]) {
                    x << across(point.value), y << heightOf(point.result, panel);
                    most = std::max(most, y.back()), low = std::min(low, x.back()), high = std::max(high, x.back());
                    if (!point.result.promisesTtft()) unsureX << x.back(), unsureY << y.back();
                }
            lines_[s].line[panel]->setData(x, y, true);
            lines_[s].unsure[panel]->setData(unsureX, unsureY, true);
        }
        const std::optional<double> height = recordedHeight(panel);
        recorded_[panel]->setVisible(height.has_value());
        here_[panel]->setVisible(server_ != nullptr);
        if (server_) {
            const double at = across(valueOf(*server_, change()));
            here_[panel]->point1->setCoords(at, 0), here_[panel]->point2->setCoords(at, 1);
        }
        if (height) {
            const double at = across(valueOf(*server_, change()));
            recorded_[panel]->setData({at}, {*height}, true);
            most = std::max(most, *height), low = std::min(low, at), high = std::max(high, at);
        }
        canvas().setFullY(panel, {-0.06 * most, (most > 0 ? most : 1) * 1.1});
    }
    if (low > high) low = 0, high = 1;
    canvas().setFullX({low - 0.2, high + 0.2});
    nameAxes();
    replot();
}

void CapacityView::nameAxes() {
    const QString names[] = {tr("Device memory for KV and index (MiB)"), tr("Offered (requests/s)"),
                             tr("Rows: requests admitted at once"), tr("Window of working sets (steps)")};
    const QString heights[] = {tr("Attained (%)"), tr("Good (per s)"), tr("Pauses"), tr("Hits (%)")};
    for (int panel = 0; panel < kCapacityPanels; ++panel) {
        QCPAxisRect* rect = canvas().panels()[panel];
        setLogAxis(rect->axis(QCPAxis::atBottom),
                   panel + 1 == kCapacityPanels ? names[std::size_t(change_->currentIndex())] : QString(), 2);
        setUnitAxis(rect->axis(QCPAxis::atLeft), heights[panel], Unit::Fraction);
        captions_[panel]->setText(rect->axis(QCPAxis::atLeft)->label());
        rect->axis(QCPAxis::atLeft)->setLabel({});
        rect->axis(QCPAxis::atLeft)->ticker()->setTickCount(3);
    }
}

void CapacityView::showStatus() {
    const auto done = std::count_if(points_.begin(), points_.end(), [](const auto& points) { return !points.empty(); });
    QString text;
    if (chosen_)
        text = describe(*chosen_);
    else if (!problem_.isEmpty())
        text = problem_;
    else if (done < std::ptrdiff_t(points_.size()))
        text = tr("Simulating: %1 of %2 settings are done.").arg(done).arg(points_.size());
    status_->setText(text);
    status_->setVisible(!text.isEmpty());
}

void CapacityView::themed(const Theme& theme) {
    const std::array<QColor, 3> colours{theme.resource[0], theme.miss, theme.resource[1]};
    legend_->applyTheme(theme);
    for (int panel = 0; panel < kCapacityPanels; ++panel) {
        captions_[panel]->setFont(canvas().panels()[panel]->axis(QCPAxis::atLeft)->labelFont());
        captions_[panel]->setTextColor(theme.text);
    }
    QVector<Swatch> swatches;
    for (std::size_t s = 0; s < lines_.size(); ++s) {
        const QColor colour = colours[s % colours.size()];
        // Settings often have the same numbers. Each is thinner than those it is drawn over, so that all are seen.
        const double inner = double(std::min(s, colours.size() - 1)) / double(colours.size() - 1);
        for (QCPGraph* line : lines_[s].line) {
            line->setPen(QPen(colour, 5 - 3.8 * inner));
            line->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, colour, colour, 10 - 5 * inner));
        }
        for (QCPGraph* unsure : lines_[s].unsure)
            unsure->setScatterStyle(
                QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(colour, 1.5), theme.plotBackground, 12 - 6 * inner));
        if (s < settings_.size()) swatches << Swatch{settings_[s].name, colour, Swatch::Mark::Line, {}};
    }
    for (QCPGraph* recorded : recorded_)
        recorded->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDiamond, QPen(theme.text, 1.8), Qt::NoBrush, 15));
    for (QCPItemStraightLine* here : here_) here->setPen(QPen(theme.mutedText, 1, Qt::DotLine));
    legend_->setSwatches(swatches << Swatch{tr("recorded"), theme.text, Swatch::Mark::Diamond, {}});
}

std::optional<CapacityView::Place> CapacityView::pointAt(int panel, QPointF at) {
    const QCPAxisRect* rect = canvas().panels()[panel];
    const auto pixels = [&](double x, double y) {
        return QPointF(rect->axis(QCPAxis::atBottom)->coordToPixel(x), rect->axis(QCPAxis::atLeft)->coordToPixel(y));
    };
    std::optional<Place> best;
    double nearest = kNear;
    for (std::size_t s = 0; s < points_.size(); ++s)
        for (std::size_t p = 0; p < points_[s].size(); ++p) {
            const QPointF away =
                pixels(across(points_[s][p].value), heightOf(points_[s][p].result, panel)) - pixels(at.x(), at.y());
            if (const double distance = std::hypot(away.x(), away.y()); distance < nearest)
                nearest = distance, best = Place{s, p};
        }
    return best;
}

void CapacityView::choose(std::optional<Place> place) {
    chosen_ = place;
    for (int panel = 0; panel < kCapacityPanels; ++panel) {
        CursorMark mark;
        mark.size = 0;
        if (place) {
            const SimulatedPoint& point = points_[place->setting][place->point];
            mark.x = across(point.value), mark.y = heightOf(point.result, panel);
        }
        canvas().overlay().setMark(canvas().panels()[panel], mark);
    }
    canvas().replotOverlay();
    showStatus();
}

void CapacityView::moveCursor(int steps, int layers) {
    if (points_.empty() || points_.front().empty()) return;
    Place place = chosen_.value_or(Place{0, points_.front().size() / 2});
    const auto within = [](std::size_t now, int by, std::size_t count) {
        return std::size_t(std::clamp<std::ptrdiff_t>(std::ptrdiff_t(now) + by, 0, std::ptrdiff_t(count) - 1));
    };
    place.setting = within(place.setting, layers, points_.size());
    if (points_[place.setting].empty()) return;
    place.point = within(place.point, chosen_ ? steps : 0, points_[place.setting].size());
    choose(place);
}

void CapacityView::jumpCursor(bool toEnd) {
    if (points_.empty() || points_.front().empty()) return;
    const std::size_t setting = chosen_ ? chosen_->setting : 0;
    choose(Place{setting, toEnd ? points_[setting].size() - 1 : 0});
}

QString CapacityView::valueText(double value) const {
    switch (change()) {
    case ServerChange::DeviceMemory:
        return tr("%1 of device memory").arg(servingBytes(value));
    case ServerChange::Rate:
        return tr("%1 requests a second").arg(formatValue(Unit::Fraction, value));
    case ServerChange::Rows:
        return tr("%1 rows").arg(formatCount(std::llround(value)));
    case ServerChange::Window:
        return tr("a window of %1 steps").arg(formatCount(std::llround(value)));
    }
    return {};
}

QString CapacityView::describe(Place place) const {
    const auto& [value, result] = points_[place.setting][place.point];
    const auto bound = std::max_element(result.limitedBy.begin() + 1, result.limitedBy.end());
    QStringList parts{tr("attainment %1").arg(formatValue(Unit::Percent, 100 * result.attainment)),
                      tr("%1 good requests a second").arg(formatValue(Unit::Fraction, result.goodput)),
                      result.pauses == 1 ? tr("1 pause") : tr("%1 pauses").arg(formatCount(result.pauses)),
                      tr("%1 hits").arg(formatValue(Unit::Percent, 100 * result.hitRate)),
                      tr("utilisation %1").arg(formatValue(Unit::Fraction, result.utilisation))};
    if (result.refused > 0) parts << tr("%1 refused").arg(formatCount(result.refused));
    if (*bound > 0 && result.iterations > 0)
        parts << tr("%1 of the plans bound by %2")
                     .arg(formatValue(Unit::Percent, 100 * double(*bound) / double(result.iterations)),
                          servingLimit(QLatin1String(nameOf(serve::Limit(bound - result.limitedBy.begin())))));
    QString text = tr("Simulated, %1, %2: %3.")
                       .arg(settings_[place.setting].name, valueText(value), parts.join(QStringLiteral(", ")));
    if (!result.promisesTtft())
        text += QLatin1Char(' ') + (result.trend.grows() ? tr("The backlog grows: waits, and with them attainment, "
                                                              "depend on how long the load lasts.")
                                                         : tr("Near saturation small errors change waits much."));
    return text;
}

QString CapacityView::note() const {
    if (!server_) return healthNote();
    const serve::SimulationOptions& options = server_->options;
    return sentences(
        {tr("◇ recorded, all else simulated: the scheduler makes the plans, with its knobs as recorded but for what is "
            "changed."),
         tr("Iterations cost what the table says that the server planned with; in this run it was off by %1 (median).")
             .arg(formatValue(Unit::Percent, 100 * server_->predictionError)),
         !options.scheduler.offload ? tr("Nothing is offloaded.")
         : server_->hitsRecorded
             ? tr("Hits follow from replays of the blocks that this run selected.")
             : tr("Hits are those of a synthetic stream, because selections cannot be replayed (%1).")
                   .arg(QString::fromStdString(server_->whyNoHits)),
         options.scheduler.offload && std::isinf(options.costs.linkGbps[int(options.scheduler.transfers)])
             ? tr("In the table loads cost no time of their own, so that more or fewer hits change no iteration.")
             : QString(),
         tr("The %1 requests come as they came, from an empty server on, and again until the first reading of them has "
            "ended; good ones a second are over the %2 of one reading.")
             .arg(formatCount(std::int64_t(server_->workload.lines.size())),
                  servingTime(double(server_->workload.spanUs) * 1e3)),
         tr("○ utilisation above %1 or a growing backlog: there small errors change waits without bound.")
             .arg(formatValue(Unit::Fraction, serve::ServingResult::kPromised)),
         healthNote()});
}

QString CapacityView::exportCsv() const {
    if (!server_) return {};
    constexpr const char* kNames[] = {"device_kv_bytes", "rate", "rows", "window"};
    QString csv = QStringLiteral("setting,change,value,simulated,attainment,goodput_per_s,pauses,hit_rate,refused,"
                                 "utilisation\n");
    const auto number = [](double value) { return QString::number(value, 'g', 12); };
    const auto row = [&](const QString& setting, double value, const QStringList& rest) {
        csv += QStringLiteral("%1,%2,%3,").arg(setting, QLatin1String(kNames[int(change())]), number(value)) +
               rest.join(QLatin1Char(',')) + QLatin1Char('\n');
    };
    for (std::size_t s = 0; s < points_.size(); ++s)
        for (const auto& [value, r] : points_[s])
            row(settings_[s].name, value,
                {QStringLiteral("true"), number(r.attainment), number(r.goodput), number(r.pauses), number(r.hitRate),
                 number(r.refused), number(r.utilisation)});
    if (const auto attainment = recordedHeight(Attainment)) {
        const std::optional<double> hits = recordedHeight(Hits);
        row(tr("recorded"), valueOf(*server_, change()),
            {QStringLiteral("false"), number(*attainment / 100), number(*recordedHeight(Goodput)),
             number(*recordedHeight(Pauses)), hits ? number(*hits / 100) : QString(),
             number(double(data().classes.front().refused)), QString()});
    }
    return csv;
}

} // namespace

View* makeCapacityView(Workspace& workspace, QWidget* parent) { return new CapacityView(workspace, parent); }

} // namespace kvscope::ui

#include "capacity_view.moc"
