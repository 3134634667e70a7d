// Roofline: predicted decode throughput, what binds it, and the open runs as measured points beside their predictions.
#include "base/error.h"
#include "core/select/method.h"
#include "profiler/read/step_kind.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/run_names.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/log_axis.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/roofline_plottable.h"
#include "ui/views/make_views.h"
#include "ui/views/parts_feed.h"
#include "ui/views/roofline/roofline_controls.h"
#include "ui/views/run_text.h"
#include "ui/widgets/loading_strip.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr double kReach = 12;      // pixels around a point that are its own
constexpr double kNear = 0.1;      // relative: a run's context or batch that counts as the curves' own
constexpr double kNearHits = 0.02; // absolute, of a hit rate
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// An open run as far as it is known.
struct RunPoint {
    MeasuredRun run;
    std::optional<ModelShape> shape;
    std::optional<RunBesideFloor> comparison; // needs the shape, and an entry for the run's own device
    QString gpu;                              // title of that entry
    // the steps whose parts the explanation knows: reading them takes a while in a long run
    int explainedSteps = 0;
};

QString shapesName(const RunPoint& point) {
    return QString::fromStdString(point.shape ? point.shape->name : point.run.row.model);
}

class RooflineView final : public PlotView {
    Q_OBJECT
public:
    RooflineView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Roofline"), parent) {
        controls_ = new RooflineControls(this);
        addAbovePlot(controls_);
        strip_ = new LoadingStrip(this);
        addAbovePlot(strip_);
        strip_->steer(parts_, [this] {
            // The person decides when the parts are read, so the run's point does not wait for them.
            if (parts_.paused()) refresh_.answered();
            strip_->show(parts_);
        });
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        panel_ = canvas().addPanel(true);
        panel_->setAutoMargins(QCP::msLeft | QCP::msBottom | QCP::msTop); // names stand in the right margin
        panel_->axis(QCPAxis::atBottom)->grid()->setVisible(true);
        canvas().setSelectsSteps(false);
        chart_ = new RooflinePlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft));
        connect(controls_, &RooflineControls::changed, this, &RooflineView::draw);
        connect(&workspace, &Workspace::runsChanged, this, &RooflineView::followRuns);
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        static constexpr std::array names{"batch", "context_tokens", "hit_rate", "kq_share"};
        QString csv = QStringLiteral("kind,curve,%1,tokens_per_s,step_ns,hbm_ns,compute_ns,link_ns,bound_by,decoded_"
                                     "together,sequences_that_fit\n")
                          .arg(QLatin1String(names[std::size_t(choice_.axis)]));
        const QCPRange visible = const_cast<RooflineView*>(this)->canvas().visibleX();
        for (const RooflineCurve& curve : curves_)
            for (const RooflineSample& sample : curve.samples)
                if (visible.contains(xOf(sample.x))) csv += row("predicted", curve.name, sample.x, sample.cost);
        for (const auto& [key, point] : points_) {
            const QString name = QString::fromStdString(point.run.row.name);
            csv += QStringLiteral("measured,%1,%2,%3,%4,,,,,,\n")
                       .arg(quoted(name))
                       .arg(valueOf(point), 0, 'g', 8)
                       .arg(point.run.tokensPerSecond, 0, 'g', 8)
                       .arg(point.run.stepNs, 0, 'f', 0);
            if (point.comparison)
                csv += row("predicted for the run", name, valueOf(point), point.comparison->predicted);
        }
        return csv;
    }

protected:
    void runChanged() override {
        showEmpty({}, {});
        // Other steps count for the means of the points.
        if (std::exchange(counted_, coldSteps()) != coldSteps()) points_.clear();
        followRuns();
        tellControls();
        draw();
    }

    void runGrew() override {
        if (!run()) return;
        const auto found = points_.find(keyOf(run()->key));
        if (found == points_.end() || found->second.run.row.steps != run()->row.steps) refresh_.grew();
    }

    void cursorMoved() override {}
    bool hasNumbers() const override { return true; }

    void moveCursor(int steps, int) override { // x is no step: the keys pan
        QCPRange x = canvas().visibleX();
        x += steps * 0.05 * x.size();
        canvas().zoomTo(x);
    }
    void jumpCursor(bool toEnd) override {
        QCPRange x = canvas().visibleX();
        x += toEnd ? canvas().fullX().upper - x.upper : canvas().fullX().lower - x.lower;
        canvas().zoomTo(x);
    }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        chart_->applyTheme(theme);
        panel_->axis(QCPAxis::atBottom)->grid()->setVisible(true);
        draw();
    }

    void clickedAt(int, QPointF at) override {
        if (const auto* hit = pointAt(at))
            for (const OpenRun& open : workspace().runs())
                if (keyOf(open.key) == hit->first) {
                    workspace().setCurrent(open.key);
                    return;
                }
    }

    QString tooltipAt(int, QPointF at) override {
        if (const auto* hit = pointAt(at)) return describe(hit->second);
        if (curves_.empty()) return {};
        const double x = valueAt(at.x());
        const RooflineCurve* nearest = nullptr;
        double best = 1e30;
        for (const RooflineCurve& curve : curves_) {
            const double away = std::abs(yOf(curve.at(x).cost.tokensPerSecond) - at.y());
            if (away < best) best = away, nearest = &curve; // NaN is never nearer
        }
        QString html = QStringLiteral("<b>%1</b> (%2)<table cellspacing='0' cellpadding='2'>")
                           .arg(conditions(curves_.front().at(x).x), tr("predicted"));
        html += tr("<tr><td></td><td align='right'>tokens/s&nbsp;</td><td align='right'>step&nbsp;</td>"
                   "<td align='right'>HBM&nbsp;</td><td align='right'>compute&nbsp;</td><td "
                   "align='right'>link&nbsp;</td><td>bound by</td></tr>");
        for (const RooflineCurve& curve : curves_) {
            const StepCost& cost = curve.at(x).cost;
            const auto time = [](double ns) { return formatValue(Unit::Nanoseconds, ns); };
            const QString name = &curve == nearest ? QStringLiteral("<b>%1</b>").arg(curve.name.toHtmlEscaped())
                                                   : curve.name.toHtmlEscaped();
            if (cost.batch == 0) {
                html += tr("<tr><td>%1</td><td colspan='6'>not one sequence fits the memory</td></tr>").arg(name);
                continue;
            }
            html +=
                QStringLiteral("<tr><td>%1&nbsp;</td><td align='right'>%2&nbsp;</td><td align='right'>%3&nbsp;</td>"
                               "<td align='right'>%4&nbsp;</td><td align='right'>%5&nbsp;</td>"
                               "<td align='right'>%6&nbsp;</td><td>%7%8</td></tr>")
                    .arg(name, formatCount(std::int64_t(std::lround(cost.tokensPerSecond))), time(cost.stepNs),
                         time(cost.hbmNs), time(cost.computeNs), time(cost.linkNs), QLatin1String(nameOf(cost.binding)),
                         cost.batch < cost.fits || cost.binding < Resource::MemoryCapacity
                             ? QString()
                             : tr(": %1 at a time").arg(formatCount(cost.batch)));
        }
        return html + QStringLiteral("</table>");
    }

    void visibleStepsChanged() override { layoutNames(); }

    QString note() const override {
        const auto source = [](const GpuSpec& gpu, const char* key) {
            return gpu.isMeasured(key) ? tr("measured") : tr("nominal");
        };
        const QString device =
            tr("Predicted for %1: %2 GB/s (%3), %4 TFLOP/s (%5), link %6 GB/s; no step is faster than its bytes and "
               "operations allow.")
                .arg(QString::fromStdString(choice_.gpu.title))
                .arg(choice_.gpu.readGbps, 0, 'g', 4)
                .arg(source(choice_.gpu, "read_gbps"))
                .arg(choice_.gpu.tflops, 0, 'g', 4)
                .arg(source(choice_.gpu, "tflops"))
                .arg(choice_.gpu.linkGbps, 0, 'g', 4);
        QString runs, elsewhere, above;
        int hidden = 0;
        for (const auto& [key, point] : points_) {
            if (!isDrawn(point))
                ++hidden;
            else if (point.comparison && point.comparison->aboveRoof)
                above +=
                    tr("%1 lies above its roof: %2. ")
                        .arg(QString::fromStdString(point.run.row.name), QString::fromStdString(point.comparison->why));
        }
        if (hidden < int(points_.size()))
            runs = tr("Dots are measured at their own conditions; hollow ones differ from the curves'.");
        if (hidden > 0)
            elsewhere = hidden == 1
                            ? tr("A run of another model or machine, or of one that the trace does not name, is not "
                                 "drawn under this roof.")
                            : tr("%1 runs of other models or machines, or of some that the traces do not name, are "
                                 "not drawn under this roof.")
                                  .arg(formatCount(hidden));
        const QString noModel = tr("the trace of this run does not say what its model looks like");
        const QString noMachine =
            tr("its machine is not in the GPU table (kvscope-cli roofline --measure adds this one)");
        const bool model = controls_->knowsModel(), machine = controls_->knowsMachine();
        const QString noRoof = tr("No roof: %1. Choose %2 to see one.")
                                   .arg(model     ? noMachine
                                        : machine ? noModel
                                                  : tr("%1, and %2").arg(noModel, noMachine),
                                        model     ? tr("a GPU")
                                        : machine ? tr("a model")
                                                  : tr("a model and a GPU"));
        return sentences({trouble_, above.trimmed(), choice_.known ? device : noRoof, runs, elsewhere,
                          failures_.mid(0, 2).join(QLatin1Char(' ')), controls_->problem(), healthNote()});
    }

    QString pictureTitle() const override {
        if (!choice_.known) return tr("Measured runs without a roof");
        return tr("Roofline: %1 on %2")
            .arg(QString::fromStdString(choice_.shape.name), QString::fromStdString(choice_.gpu.title));
    }

private:
    using Key = std::pair<QString, int>;
    static Key keyOf(const RunKey& key) { return {key.path, key.runId}; }

    // Runs.

    void followRuns() {
        if (!isVisible()) return;
        std::erase_if(points_, [this](const auto& entry) {
            return std::none_of(workspace().runs().begin(), workspace().runs().end(), [&](const OpenRun& open) {
                return keyOf(open.key) == entry.first && // another run may stand in the same file by now
                       (open.row.createdUtc.empty() || open.row.createdUtc == entry.second.run.row.createdUtc);
            });
        });
        parts_.keepOpen();
        strip_->show(parts_);
        failures_.clear();
        for (const OpenRun& open : workspace().runs())
            if (!points_.contains(keyOf(open.key))) ask(open.key);
        draw();
    }

    void ask(const RunKey& key) {
        struct Answer {
            std::optional<MeasuredRun> run;
            QString why;
        };
        const QByteArray slot = QStringLiteral("roofline %1 %2").arg(key.runId).arg(key.path).toUtf8();
        workspace().query<Answer>(
            this, slot.constData(), key,
            [key](TraceReader& reader) {
                Answer answer;
                try {
                    answer.run = measuredSteps(reader, key.runId);
                } catch (const Error& error) {
                    // A run without a decode step, of an unknown method, of a server or of a diffusion model has no
                    // point; other errors are the reader's.
                    if (error.kind != ErrorKind::BadInput && error.kind != ErrorKind::Unsupported) throw;
                    answer.why = QString::fromStdString(oneLine(error));
                }
                return answer;
            },
            [this, key](Answer answer) {
                if (!answer.run) {
                    if (run() && run()->key == key) refresh_.answered();
                    pointless_.insert(keyOf(key));
                    tellControls();
                    return tellFailure(answer.why);
                }
                take(key, *answer.run, false);
                parts_.add(key, *answer.run);
                // While reading is stopped, the run's point does not wait for the parts.
                if (parts_.paused()) refresh_.answered();
                strip_->show(parts_);
            });
    }

    void take(const RunKey& key, const MeasuredRun& run, bool partsKnown) {
        RunPoint point;
        point.run = run;
        point.shape = shapeOfRun(run.row);
        if (const GpuSpec* gpu = gpuOfRun(controls_->gpus(), run.row); gpu && point.shape) {
            try {
                point.comparison = compare(run, *point.shape, *gpu);
                point.gpu = QString::fromStdString(gpu->title);
            } catch (const Error&) {
                // Absurd numbers of a damaged file: the point stands without a prediction.
            }
        }
        if (partsKnown) point.explainedSteps = run.steps;
        RunPoint& shown = points_[keyOf(key)];
        if (!partsKnown && shown.run.row.createdUtc == run.row.createdUtc && shown.comparison && point.comparison) {
            // The explanation stays until the parts of the later steps are read.
            point.explainedSteps = shown.explainedSteps;
            point.comparison->why = shown.comparison->why;
        }
        shown = std::move(point);
        pointless_.erase(keyOf(key));
        if (workspace().current() && keyOf(workspace().current()->key) == keyOf(key)) tellControls();
        draw();
    }

    void takeParts(const RunKey& key, const MeasuredRun& read, const QString& problem) {
        if (run() && run()->key == key) refresh_.answered();
        if (problem.isEmpty()) return take(key, read, true);
        tellFailure(problem);
    }

    void tellFailure(const QString& why) {
        const QString sentence = why + QLatin1Char('.');
        if (!failures_.contains(sentence)) failures_ << sentence;
        updateNote();
    }

    void tellControls() {
        const OpenRun* open = run();
        const auto found = open ? points_.find(keyOf(open->key)) : points_.end();
        if (found != points_.end())
            controls_->setRun(found->second.run, found->second.shape);
        else if (!open || pointless_.contains(keyOf(open->key)))
            controls_->setRun({}, {}); // otherwise the run is being read, and the controls wait for it
    }

    // Coordinates.

    double xOf(double value) const {
        switch (choice_.axis) {
        case RooflineAxis::Batch:
        case RooflineAxis::Context:
            return std::log2(value);
        case RooflineAxis::HitRate:
            return 100 * value;
        default:
            return value;
        }
    }
    double valueAt(double x) const {
        return choice_.axis == RooflineAxis::HitRate      ? x / 100
               : choice_.axis == RooflineAxis::QueryShare ? x
                                                          : std::exp2(x);
    }
    double yOf(double tokensPerSecond) const {
        if (!(tokensPerSecond > 0)) return kNaN;
        return controls_->logarithmic() ? std::log10(tokensPerSecond) : tokensPerSecond;
    }
    /// Where a run stands along the axis.
    double valueOf(const RunPoint& point) const {
        switch (choice_.axis) {
        case RooflineAxis::Batch:
            return point.run.batch;
        case RooflineAxis::Context:
            return point.run.context;
        case RooflineAxis::HitRate:
            return point.run.offloaded() ? point.run.hitRate : 1; // everything resident: nothing is ever missed
        default:
            return queryShare(point.run.method);
        }
    }

    /// Whether the curves are drawn for a run's conditions, the varied one aside.
    bool comparable(const RunPoint& point) const {
        const auto near = [](double a, double b) { return std::abs(a - b) <= kNear * b; };
        const bool batch = choice_.axis == RooflineAxis::Batch || choice_.family == RooflineFamily::Batches ||
                           near(point.run.batch, choice_.batch);
        const bool context = choice_.axis == RooflineAxis::Context || near(point.run.context, choice_.context);
        const bool hits = choice_.axis == RooflineAxis::HitRate || choice_.axis == RooflineAxis::QueryShare ||
                          !point.run.offloaded() || std::abs(point.run.hitRate - choice_.hitRate) <= kNearHits;
        const bool method =
            point.run.method.dense || QString::fromStdString(methodTitle(point.run.row.method)) == choice_.methodTitle;
        return choice_.known && isDrawn(point) && batch && context && hits && method;
    }

    /// A roof is of one model on one machine: runs of others are not judged by it. Without a roof all are drawn.
    bool isDrawn(const RunPoint& point) const {
        if (!choice_.known) return true;
        const ModelShape& roof = choice_.shape;
        return point.shape && point.shape->name == roof.name && point.shape->layers == roof.layers &&
               point.shape->hidden == roof.hidden && point.gpu.toStdString() == choice_.gpu.title;
    }

    // Drawing.

    void draw() {
        if (!isVisible()) return;
        choice_ = controls_->choice();
        trouble_.clear();
        try {
            curves_ = rooflineCurves(choice_);
        } catch (const Error& error) {
            curves_.clear();
            trouble_ = QString::fromStdString(oneLine(error)) + QLatin1Char('.');
        }
        std::vector<RooflineLine> lines;
        for (const RooflineCurve& curve : curves_) {
            RooflineLine line{curve.name, curve.style, {}, {}};
            for (const RooflineSample& sample : curve.samples) {
                line.points << QPointF(xOf(sample.x), yOf(sample.cost.tokensPerSecond));
                line.resource.push_back(int(sample.cost.binding));
            }
            lines.push_back(std::move(line));
        }
        chart_->setLines(std::move(lines));
        const Theme& theme = Theme::current();
        std::vector<RooflinePoint> dots;
        const auto sides = workspace().sides();
        for (const auto& [key, point] : points_) {
            std::optional<std::size_t> place;
            for (std::size_t side = 0; side < sides.size(); ++side)
                if (keyOf(sides[side]->key) == key) place = side;
            const double x = xOf(valueOf(point));
            if (!std::isfinite(x) || !isDrawn(point)) continue;
            RooflinePoint dot{x, yOf(point.run.tokensPerSecond), kNaN, labelOf(point), theme.text, comparable(point)};
            dot.colour = place ? runColour(*place) : lastingColour({key.first, key.second});
            if (place && sides.size() > 1) dot.label = QStringLiteral("%1: %2").arg(runLetter(*place), dot.label);
            if (point.comparison) dot.predicted = yOf(point.run.batch / point.comparison->predictedNs * 1e9);
            dots.push_back(dot);
        }
        chart_->setPoints(std::move(dots));
        setGuide();
        setAxes();
        fillLegend();
        layoutNames();
        replot();
    }

    static QString labelOf(const RunPoint& point) {
        QString name = QString::fromStdString(point.run.row.name);
        if (name.size() > 48) name = name.left(47).trimmed() + QChar(0x2026);
        if (!point.comparison) return name;
        return tr("%1, %2 % of predicted").arg(name).arg(100 * point.comparison->shareOfFloor, 0, 'f', 0);
    }

    void setGuide() {
        const double share = controls_->queryShare();
        std::optional<RooflineGuide> guide;
        if (choice_.axis == RooflineAxis::HitRate && share < 1)
            guide = RooflineGuide{xOf(1 - share), tr("1 \u2212 k_q/k = %1 %").arg(100 * (1 - share), 0, 'f', 1)};
        else if (choice_.axis == RooflineAxis::QueryShare)
            guide = RooflineGuide{share, tr("%1: k_q/k = %2").arg(choice_.methodTitle).arg(share, 0, 'f', 3)};
        chart_->setGuide(guide);
    }

    void setAxes() {
        QCPAxis *x = panel_->axis(QCPAxis::atBottom), *y = panel_->axis(QCPAxis::atLeft);
        const auto [low, high] = rooflineRange(choice_.axis);
        double first = low, last = high;
        if (choice_.axis == RooflineAxis::Batch || choice_.axis == RooflineAxis::Context)
            for (const auto& [key, point] : points_)
                if (isDrawn(point)) first = std::min(first, std::max(1.0, valueOf(point) / 1.2));
        const bool shares = choice_.axis == RooflineAxis::HitRate || choice_.axis == RooflineAxis::QueryShare;
        const double margin = shares ? 0.015 * (xOf(last) - xOf(first)) : 0.12;
        if (axis_ != choice_.axis || logarithmic_ != controls_->logarithmic()) {
            axis_ = choice_.axis;
            logarithmic_ = controls_->logarithmic();
            canvas().forgetZoom(); // ranges mean something else now
            switch (choice_.axis) {
            case RooflineAxis::Batch:
                setLogAxis(x, tr("Batch (sequences)"), 2);
                break;
            case RooflineAxis::Context:
                setLogAxis(x, tr("Context (tokens per sequence)"), 2);
                break;
            case RooflineAxis::HitRate:
                setUnitAxis(x, tr("Hit rate"), Unit::Percent);
                break;
            case RooflineAxis::QueryShare:
                setUnitAxis(x, tr("k_q / k, at the hit rate 1 \u2212 k_q/k that it guarantees"), Unit::Fraction);
                break;
            }
            if (logarithmic_)
                setLogAxis(y, tr("Tokens per second"), 10);
            else
                setUnitAxis(y, tr("Tokens per second"), Unit::Count);
            canvas().setMinimumSpan(shares ? 0.02 * xOf(last) : 0.5);
            canvas().setMinimumHeight(0, logarithmic_ ? 0.05 : 1);
        }
        canvas().setFullX({xOf(first) - margin, xOf(last) + margin});
        bool found = false;
        QCPRange values = chart_->getValueRange(found, QCP::sdBoth, {});
        if (!found) values = logarithmic_ ? QCPRange(0, 4) : QCPRange(0, 1000);
        const double room = 0.06 * std::max(values.size(), logarithmic_ ? 0.3 : 1.0);
        canvas().setFullY(0, logarithmic_ ? QCPRange(values.lower - room, values.upper + room)
                                          : QCPRange(0, values.upper + room));
    }

    /// The right margin is as wide as the names.
    void layoutNames() {
        QMargins margins = panel_->margins();
        margins.setRight(chart_->nameWidth());
        panel_->setMinimumMargins(QMargins(0, 0, chart_->nameWidth(), 0));
        panel_->setMargins(margins);
    }

    void fillLegend() {
        const Theme& theme = Theme::current();
        QVector<Swatch> swatches;
        for (const Resource resource : kResources) {
            if (curves_.empty()) break; // a key to colours that are not there
            const bool occurs = std::any_of(curves_.begin(), curves_.end(), [&](const RooflineCurve& curve) {
                return std::any_of(curve.samples.begin(), curve.samples.end(), [&](const RooflineSample& sample) {
                    return sample.cost.tokensPerSecond > 0 && sample.cost.binding == resource;
                });
            });
            if (!occurs && resource == Resource::HostCapacity) continue; // known on few machines
            swatches << Swatch{tr("bound by %1").arg(QLatin1String(nameOf(resource))),
                               theme.resource[std::size_t(resource)],
                               Swatch::Mark::Fill,
                               {}};
        }
        if (!points_.empty()) {
            swatches << Swatch{tr("measured run"), theme.runA, Swatch::Mark::Dot, {}};
            const bool predicted = std::any_of(points_.begin(), points_.end(), [this](const auto& entry) {
                return isDrawn(entry.second) && entry.second.comparison;
            });
            if (predicted) swatches << Swatch{tr("predicted for that run"), theme.runA, Swatch::Mark::Tick, {}};
        }
        legend_->setSwatches(swatches);
    }

    // Words.

    /// The numbers that hold at x, the varied one first.
    QString conditions(double x) const {
        const QString batch = tr("batch %1"), context = tr("%1 tokens"), hits = tr("hit rate %1");
        const bool batches = choice_.family == RooflineFamily::Batches && choice_.axis != RooflineAxis::Batch;
        const auto percent = [](double share) { return formatValue(Unit::Percent, 100 * share); };
        QStringList parts;
        switch (choice_.axis) {
        case RooflineAxis::Batch:
            parts << batch.arg(formatCount(std::int64_t(x)));
            break;
        case RooflineAxis::Context:
            parts << context.arg(formatCount(std::int64_t(x)));
            break;
        case RooflineAxis::HitRate:
            parts << hits.arg(percent(x));
            break;
        case RooflineAxis::QueryShare:
            parts << tr("k_q/k %1, hit rate %2").arg(x, 0, 'f', 3).arg(percent(1 - x));
            break;
        }
        if (choice_.axis != RooflineAxis::Batch && !batches) parts << batch.arg(choice_.batch);
        if (choice_.axis != RooflineAxis::Context) parts << context.arg(formatCount(choice_.context));
        if (choice_.axis == RooflineAxis::Batch || choice_.axis == RooflineAxis::Context)
            parts << hits.arg(percent(choice_.hitRate));
        return parts.join(QStringLiteral(", "));
    }

    QString describe(const RunPoint& point) const {
        const MeasuredRun& run = point.run;
        const auto time = [](double ns) { return formatValue(Unit::Nanoseconds, ns); };
        const auto rate = [](double perSecond) { return formatValue(Unit::Count, std::round(perSecond * 10) / 10); };
        QString html = QStringLiteral("<b>%1</b><br>").arg(QString::fromStdString(run.row.name).toHtmlEscaped());
        html += tr("%1 on %2, batch %3, %4 tokens, mean of %5 decode steps%6<br>")
                    .arg(shapesName(point).toHtmlEscaped(),
                         QString::fromStdString(run.row.device).section(QLatin1Char(','), 0, 0).toHtmlEscaped(),
                         formatValue(Unit::Count, std::round(run.batch * 100) / 100),
                         formatCount(std::int64_t(std::lround(run.context))), formatCount(run.steps),
                         run.leftOut.empty()
                             ? QString()
                             : tr(" (%1 cold left out)").arg(formatCount(std::int64_t(run.leftOut.size()))));
        html += tr("Measured: <b>%1 tokens/s</b>, %2 a step").arg(rate(run.tokensPerSecond), time(run.stepNs));
        if (run.offloaded())
            html += tr("<br>Hit rate %1, %2 over the link a step, exposed %3 (%4)")
                        .arg(known(Unit::Percent, 100 * run.hitRate), known(Unit::Bytes, run.linkBytes),
                             run.row.knows.has(Known::ExposedTimes) ? time(run.exposedNs) : tr("not known"),
                             timingWord(run.row));
        if (point.comparison) {
            const RunBesideFloor& c = *point.comparison;
            html += tr("<br>Predicted: %1 tokens/s, %2 a step, bound by %3")
                        .arg(rate(run.batch / c.predictedNs * 1e9), time(c.predictedNs),
                             QLatin1String(nameOf(c.predicted.binding)));
            html += tr("<br>Predicted over measured time: <b>%1</b>. %2.")
                        .arg(c.shareOfFloor, 0, 'f', 3)
                        .arg(explanationOf(point));
            if (run.offloaded() && !run.linkMeasured())
                html += tr("<br>The link's time is modelled in this run and left out of both times.");
        } else if (!point.shape) {
            html += tr("<br>No prediction: the trace does not say what its model looks like.");
        } else {
            html +=
                tr("<br>No prediction: this device is not in the GPU table; kvscope-cli roofline --measure adds the "
                   "machine.");
        }
        return html;
    }

    static QString known(Unit unit, double value) {
        return std::isnan(value) ? tr("not known") : formatValue(unit, value);
    }
    static QString explanationOf(const RunPoint& point) {
        if (point.explainedSteps == 0) return tr("Where the difference lies is shown when the stages are read");
        const QString why = sentenceCase(QString::fromStdString(point.comparison->why)).toHtmlEscaped();
        if (point.explainedSteps == point.run.steps) return why;
        return tr("Of the first %1 of these steps: %2").arg(formatCount(point.explainedSteps), why);
    }

    static QString sentenceCase(QString text) {
        if (!text.isEmpty()) text[0] = text[0].toUpper();
        return text;
    }

    const std::pair<const Key, RunPoint>* pointAt(QPointF at) const {
        const QCPAxis *x = panel_->axis(QCPAxis::atBottom), *y = panel_->axis(QCPAxis::atLeft);
        const QPointF pixel(x->coordToPixel(at.x()), y->coordToPixel(at.y()));
        const std::pair<const Key, RunPoint>* best = nullptr;
        double nearest = kReach;
        for (const auto& entry : points_) {
            if (!isDrawn(entry.second)) continue;
            const QPointF dot(x->coordToPixel(xOf(valueOf(entry.second))),
                              y->coordToPixel(yOf(entry.second.run.tokensPerSecond)));
            const double away = std::hypot(dot.x() - pixel.x(), dot.y() - pixel.y());
            if (away < nearest) nearest = away, best = &entry;
        }
        return best;
    }

    static QString quoted(QString text) {
        return QLatin1Char('"') + text.replace(QLatin1Char('"'), QLatin1String("\"\"")) + QLatin1Char('"');
    }
    static QString row(const char* kind, const QString& name, double x, const StepCost& cost) {
        return QStringLiteral("%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11\n")
            .arg(QLatin1String(kind), quoted(name))
            .arg(x, 0, 'g', 8)
            .arg(cost.tokensPerSecond, 0, 'g', 8)
            .arg(std::isnan(cost.stepNs) ? QString() : QString::number(cost.stepNs, 'f', 0))
            .arg(cost.hbmNs, 0, 'f', 0)
            .arg(cost.computeNs, 0, 'f', 0)
            .arg(cost.linkNs, 0, 'f', 0)
            .arg(QLatin1String(nameOf(cost.binding)))
            .arg(cost.batch)
            .arg(cost.fits);
    }

    RooflineControls* controls_ = nullptr;
    LoadingStrip* strip_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    RooflinePlottable* chart_ = nullptr;
    RooflineChoice choice_;
    std::vector<RooflineCurve> curves_;
    std::map<Key, RunPoint> points_;
    std::set<Key> pointless_;          // read, and without a decode step or of an unknown method
    std::optional<RooflineAxis> axis_; // as drawn last
    bool logarithmic_ = true;
    ColdSteps counted_ = coldSteps();
    QString trouble_;
    QStringList failures_;
    PartsFeed parts_{
        workspace(), this,
        [this](const RunKey& key, const MeasuredRun& read, const QString& problem) { takeParts(key, read, problem); },
        [this] { strip_->show(parts_); }};
    GrowthTimer refresh_{GrowthTimer::kJudgeMs, [this] {
                             if (run()) ask(run()->key);
                         }};
};

} // namespace

View* makeRooflineView(Workspace& workspace, QWidget* parent) { return new RooflineView(workspace, parent); }

} // namespace kvscope::ui

#include "roofline_view.moc"
