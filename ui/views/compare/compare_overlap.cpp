// How alike the runs select: Jaccard of their blocks against A's, step by step and layer by layer.
#include "profiler/compare/overlap.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/compare/compare_pages.h"
#include "ui/views/compare/compare_ways.h"
#include "ui/views/compare/pair_feed.h"
#include "ui/views/run_text.h"
#include "ui/views/sequence_choice.h"
#include "ui/widgets/loading_strip.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace kvscope::ui {

namespace {

constexpr int kOverlapPairs = 512; // selections are read whole: some thousand a step
enum Panel { PerStep, PerLayer };

struct Chunk {
    SelectionCoverage coverage;
    std::vector<double> perPair;
    Numbered<double> sum, steadySum; // [layer]
    Numbered<int> count, steadyCount;
};

/// passes: of the steps of A from the first pair's on.
Chunk chunkOf(const OverlapRows& rows, NumberedSpan<const StepPair> pairs, const Filter& filter,
              const Numbered<bool>& passes) {
    OverlapRows kept = rows;
    const Extents<int, int> cells = rows.extents();
    for (int pair = 0; pair < rows.pairs; ++pair)
        for (int layer = 0; layer < rows.layers; ++layer)
            if (!passes[pairs[pair].a - pairs.front().a] || !filter.hasLayer(layer))
                kept.jaccard[cells.offset(pair, layer)] = std::numeric_limits<float>::quiet_NaN();
    Chunk chunk;
    chunk.coverage = rows.coverage;
    chunk.perPair = overlapPerPair(kept);
    chunk.sum.resize(rows.layers), chunk.steadySum.resize(rows.layers);
    chunk.count.resize(rows.layers), chunk.steadyCount.resize(rows.layers);
    for (int pair = 0; pair < rows.pairs; ++pair)
        for (int layer = 0; layer < rows.layers; ++layer) {
            const auto value = double(kept.jaccard[cells.offset(pair, layer)]);
            if (std::isnan(value)) continue;
            chunk.sum[layer] += value, ++chunk.count[layer];
            if (pairs[pair].steady) chunk.steadySum[layer] += value, ++chunk.steadyCount[layer];
        }
    return chunk;
}

class OverlapPage final : public PlotView {
    Q_OBJECT
public:
    OverlapPage(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Overlap"), parent) {
        sequence_ = addPicker(QStringLiteral("sequence"), tr("Sequence"),
                              tr("One sequence of the batch, or the mean over all that the runs have in common"));
        fillSequences(*sequence_, 1);
        connect(sequence_, &QComboBox::currentIndexChanged, this, &OverlapPage::reload);
        strip_ = new LoadingStrip(this);
        addAbovePlot(strip_);
        connect(strip_, &LoadingStrip::stopped, this, [this] {
            for (const auto& side : sides_) side->feed.pause();
            showProgress();
        });
        connect(strip_, &LoadingStrip::resumed, this, [this] {
            for (const auto& side : sides_) side->feed.resume();
            showProgress();
        });
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        QCPAxisRect* steps = canvas().addPanel(true, 0);
        QCPAxisRect* layers = canvas().addPanel(true, 1);
        setIntegerAxis(steps->axis(QCPAxis::atBottom), tr("Decode step"));
        setIntegerAxis(layers->axis(QCPAxis::atBottom), tr("Layer"));
        steps->axis(QCPAxis::atLeft)->setLabel(tr("Jaccard, all layers"));
        layers->axis(QCPAxis::atLeft)->setLabel(tr("Jaccard, all steps"));
        canvas().setMinimumSpan(1, 1);
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        QString csv = QStringLiteral("run,axis,index,jaccard\n");
        bool any = false;
        for (const auto& side : sides_) {
            const QString name =
                QStringLiteral("\"%1\"").arg(QString(side->name).replace(QLatin1Char('"'), QLatin1String("\"\"")));
            const auto add = [&](const QCPGraph* graph, const char* axis) {
                for (const QCPGraphData& point : *graph->data()) {
                    csv += QStringLiteral("%1,%2,%3,%4\n")
                               .arg(name, QLatin1String(axis))
                               .arg(std::lround(point.key))
                               .arg(point.value, 0, 'g', 9);
                    any = true;
                }
            };
            add(side->steps, "step");
            add(side->layers, "layer");
        }
        return any ? csv : QString();
    }

protected:
    void runChanged() override {
        sides_.clear(); // with their feeds
        refusals_.clear();
        canvas().clearPlottables();
        if (showEmptyWithoutRun(tr("This page shows how far two methods select the same blocks."))) return;
        const auto others = othersOf(workspace());
        if (others.empty()) {
            showEmpty(tr("Choose a second run to compare with"),
                      tr("Open another trace or record another run with another method, then choose it under “Compare "
                         "with…”. Each run's selections are compared with those of A."),
                      waysToCompare(*this, workspace()));
            return;
        }
        if (const QString missing = waitsFor(workspace()); !missing.isEmpty()) return showWaiting(missing);
        showEmpty({}, {});
        fillSequences(*sequence_, commonSequences(workspace()));
        for (std::size_t i = 0; i < others.size(); ++i) start(i + 1, *others[i]);
        if (sides_.empty()) showEmpty(tr("The selections cannot be compared"), refusals_.join(QLatin1Char(' ')));
        fillLegend();
        cursorMoved();
    }

    void runGrew() override {
        if (!run() || othersOf(workspace()).empty()) return;
        if (sides_.empty() && refusals_.isEmpty()) return runChanged(); // the page waited for a run's description
        for (const auto& side : sides_) side->feed.grew(!someGrow(workspace()));
    }

    void cursorMoved() override {
        const Cursor& cursor = workspace().cursor();
        CursorMark layer;
        if (run()) layer.x = cursor.layer;
        canvas().overlay().setMark(canvas().panels()[PerLayer], layer);
        showMark(stepMark(), {canvas().panels()[PerStep]});
    }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        for (const auto& side : sides_) colour(*side);
        fillLegend();
    }

    void clickedAt(int panel, QPointF at) override {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        (panel == PerStep ? cursor.step : cursor.layer) = std::max(0, int(std::lround(at.x())));
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int panel, QPointF at) override {
        const int index = int(std::lround(at.x()));
        QString html;
        for (const auto& side : sides_) {
            const auto points = (panel == PerStep ? side->steps : side->layers)->data();
            const auto found = points->findBegin(index, false);
            if (found == points->constEnd() || int(std::lround(found->key)) != index) continue;
            html += tr("<br>A and %1: <b>%2</b>").arg(side->letter, formatValue(Unit::Fraction, found->value));
        }
        if (html.isEmpty()) return {};
        return QStringLiteral("<b>%1</b>")
                   .arg(panel == PerStep ? stepName(run()->row, index) : tr("Layer %1").arg(index)) +
               html +
               tr("<p>Jaccard: blocks that both select over blocks that either selects, mean over the KV heads and "
                  "sequences that select in both runs.</p>");
    }

    int filterParts() const override { return FilterLayers | FilterSteps | FilterKvHeads | FilterText; }

    QString note() const override {
        QStringList notes = refusals_;
        int loaded = 0, total = 0;
        bool loading = false;
        for (const auto& side : sides_) {
            loading = loading || side->feed.loading();
            loaded += side->feed.loaded();
            total += side->feed.total();
            if (!side->feed.error().isEmpty())
                notes << tr("%1: reading stopped: %2.").arg(side->letter, side->feed.error());
            if (!side->feed.alignment().refusal.empty())
                notes << QString::fromStdString(side->feed.alignment().refusal) + QLatin1Char('.');
            if (side->feed.total() > 0 && side->feed.loaded() == side->feed.total())
                if (const QString why = whyNothing(*side); !why.isEmpty()) notes << why;
            if (side->otherBlocks)
                notes << tr("%1 has other block sizes than A: overlap is counted in tokens.").arg(side->letter);
        }
        return sentences(
            {tr("1: the same blocks, 0: none in common. Means per layer leave out the first decode step and "
                "steps that open a block."),
             sequenceNote(*sequence_), soFarNote(workspace()), loadingNote(loading, loaded, total),
             notes.join(QLatin1Char(' ')), healthNote()});
    }

    QString pictureTitle() const override {
        return run() ? tr("Overlap of the selected blocks with %1 (A)").arg(runName(*run(), workspace().runs()))
                     : PlotView::pictureTitle();
    }

private:
    void showWaiting(const QString& why) {
        showEmpty(tr("Waiting for the first decode step"), tr("%1. The overlap appears as it is recorded.").arg(why),
                  {stopRun()});
    }

    void showProgress() {
        int loaded = 0, total = 0;
        bool loading = false, paused = false;
        for (const auto& side : sides_) {
            loaded += side->feed.loaded(), total += side->feed.total();
            loading = loading || side->feed.loading(), paused = paused || side->feed.paused();
        }
        using State = LoadingStrip::State;
        strip_->show(paused ? State::Paused : loading && loaded < total ? State::Loading : State::Idle, loaded, total);
    }

    struct Side {
        explicit Side(Workspace& workspace) : feed(workspace, &context, "compare overlap", kOverlapPairs) {}
        QObject context; // answers for a side that is gone are dropped with it
        PairFeed<Chunk> feed;
        QString name, letter;
        std::size_t index = 1;
        bool otherBlocks = false;
        QCPGraph *steps = nullptr, *layers = nullptr;
        Chunk sums;
    };

    void start(std::size_t index, const OpenRun& open) {
        if (const std::string refusal = overlapRefusal(run()->row, open.row, runLetter(index).toStdString());
            !refusal.empty()) {
            refusals_ << QString::fromStdString(refusal) + QLatin1Char('.');
            return;
        }
        auto side = std::make_unique<Side>(workspace());
        Side& s = *side;
        sides_.push_back(std::move(side));
        s.name = runName(open, workspace().runs());
        s.letter = runLetter(index);
        s.index = index;
        s.otherBlocks = open.row.blockSize != run()->row.blockSize;
        const auto graph = [&](int panel) {
            QCPAxisRect* rect = canvas().panels()[panel];
            auto* made = new QCPGraph(rect->axis(QCPAxis::atBottom), rect->axis(QCPAxis::atLeft));
            made->setAntialiased(true);
            return made;
        };
        s.steps = graph(PerStep);
        s.layers = graph(PerLayer);
        colour(s);
        const Filter filter = workspace().filter();
        Numbered<bool> heads;
        if (!filter.kvHeads.all())
            for (int head = 0; head < run()->row.kvHeads; ++head) heads.push_back(filter.hasKvHead(head));
        s.feed.start(
            run()->key, open.key, s.letter, AlignBy::Step, 0,
            [filter, heads, read = appliedFilter(), runA = run()->key.runId, runB = open.key.runId,
             sequence = chosenSequence(*sequence_)](const TraceReader& a, const TraceReader& b,
                                                    std::span<const StepPair> pairs) {
                const auto passes =
                    pairs.empty() ? Numbered<bool>{} : stepsThatPass(a, runA, read, pairs.front().a, pairs.back().a);
                return chunkOf(readOverlap(a, runA, b, runB, pairs, heads, sequence), pairs, filter, passes);
            },
            [this, &s] {
                if (s.feed.loaded() == 0) {
                    s.steps->data()->clear();
                    s.sums = {};
                }
                const bool none = std::all_of(sides_.begin(), sides_.end(), [](const auto& each) {
                    return !each->feed.alignment().refusal.empty() || !each->feed.error().isEmpty();
                });
                const bool waits = std::any_of(sides_.begin(), sides_.end(),
                                               [](const auto& each) { return each->feed.alignment().tooEarly; });
                if (!none)
                    showEmpty({}, {});
                else if (waits && someGrow(workspace()))
                    showWaiting(QString::fromStdString(s.feed.alignment().refusal));
                else
                    showEmpty(tr("These runs cannot be aligned"),
                              s.feed.error().isEmpty()
                                  ? QString::fromStdString(s.feed.alignment().refusal) + QLatin1Char('.')
                                  : s.feed.error());
                showProgress();
                updateNote();
            },
            [this, &s](Chunk chunk, std::span<const StepPair> pairs) {
                take(s, std::move(chunk), pairs);
                showProgress();
                return true;
            });
    }

    void take(Side& side, Chunk chunk, std::span<const StepPair> pairs) {
        for (std::size_t i = 0; i < pairs.size(); ++i)
            if (!std::isnan(chunk.perPair[i])) side.steps->addData(pairs[i].at, chunk.perPair[i]);
        Chunk& sums = side.sums;
        sums.coverage.add(chunk.coverage);
        sums.sum.resize(chunk.sum.size()), sums.steadySum.resize(chunk.sum.size());
        sums.count.resize(chunk.sum.size()), sums.steadyCount.resize(chunk.sum.size());
        side.layers->data()->clear();
        for (std::size_t layer = 0; layer < chunk.sum.size(); ++layer) {
            sums.sum[layer] += chunk.sum[layer], sums.steadySum[layer] += chunk.steadySum[layer];
            sums.count[layer] += chunk.count[layer], sums.steadyCount[layer] += chunk.steadyCount[layer];
            const bool steady = sums.steadyCount[layer] > 0;
            const int count = steady ? sums.steadyCount[layer] : sums.count[layer];
            if (count > 0)
                side.layers->addData(double(layer), (steady ? sums.steadySum[layer] : sums.sum[layer]) / count);
        }
        double low = 1, last = 1;
        for (const auto& each : sides_)
            for (const QCPGraph* graph : {each->steps, each->layers}) {
                bool found = false;
                const QCPRange values = graph->getValueRange(found);
                if (found) low = std::min(low, values.lower);
                const QCPRange keys = graph->getKeyRange(found);
                if (found && graph == each->steps) last = std::max(last, keys.upper);
            }
        canvas().setFullX({0.5, last + 0.5}, 0);
        canvas().setFullX({-0.5, double(chunk.sum.size()) - 0.5}, 1);
        const QCPRange values(std::max(-0.02, std::floor(low * 10 - 0.5) / 10), 1.02);
        canvas().setFullY(PerStep, values);
        canvas().setFullY(PerLayer, values);
        replot();
        explainNothing();
    }

    /// Where all steps are read and no run has a point, the reason in place of empty axes.
    void explainNothing() {
        QStringList reasons;
        for (const auto& side : sides_) {
            const auto& feed = side->feed;
            if (feed.loading() && feed.loaded() < feed.total()) return; // more comes
            if (feed.loaded() < feed.total() || !side->steps->data()->isEmpty()) return;
            if (feed.total() > 0) reasons << whyNothing(*side);
        }
        if (reasons.isEmpty()) return; // nothing was aligned: said elsewhere
        if (!appliedFilter().empty())
            showEmptyByFilter(tr("Nothing passes the filter"));
        else
            showEmpty(tr("There are no selections to compare"), reasons.join(QLatin1Char(' ')),
                      {showView("breakdown")});
    }
    static QString whyNothing(const Side& side) {
        QString why = QString::fromStdString(coverageRefusal(side.sums.coverage, side.letter.toStdString()));
        if (!why.isEmpty()) why[0] = why[0].toUpper();
        return why.isEmpty() ? why : why + QLatin1Char('.');
    }

    void colour(Side& side) const {
        const QColor colour = runColour(side.index);
        for (QCPGraph* graph : {side.steps, side.layers})
            if (graph) graph->setPen(QPen(colour, 1));
        if (side.layers) side.layers->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, colour, colour, 5));
    }

    void fillLegend() {
        QVector<Swatch> swatches;
        for (const auto& side : sides_)
            swatches << Swatch{
                tr("A and %1: %2").arg(side->letter, side->name), runColour(side->index), Swatch::Mark::Line, {}};
        legend_->setSwatches(swatches);
    }

    QComboBox* sequence_ = nullptr;
    LoadingStrip* strip_ = nullptr;
    std::vector<std::unique_ptr<Side>> sides_;
    QStringList refusals_;
    LegendStrip* legend_ = nullptr;
};

} // namespace

View* makeCompareOverlap(Workspace& workspace, QWidget* parent) { return new OverlapPage(workspace, parent); }

} // namespace kvscope::ui

#include "compare_overlap.moc"
