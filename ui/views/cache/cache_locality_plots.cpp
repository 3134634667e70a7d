#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/cache/cache_plots.h"

#include <QCoreApplication>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
QString tr(const char* text) { return QCoreApplication::translate("CacheView", text); }
} // namespace

LocalityPlots::LocalityPlots(PlotCanvas& canvas, int workingSetPanel, int keptPanel, int group)
    : canvas_(canvas), panels_{workingSetPanel, keptPanel}, group_(group) {
    for (int i = 0; i < 2; ++i) {
        QCPAxisRect* rect = canvas.panels()[panels_[i]];
        graphs_[i] = new QCPGraph(rect->axis(QCPAxis::atBottom), rect->axis(QCPAxis::atLeft));
        graphs_[i]->setAntialiased(true);
        setIntegerAxis(rect->axis(QCPAxis::atBottom),
                       i == 0 ? tr("Working set by window (steps)") : tr("Locality by distance (steps)"));
    }
    canvas_.setFullX({0, WhatIf::kLongestWindow + 1.0}, group_);
}

void LocalityPlots::show(const CacheScene& scene) {
    profile_ = scene.whatIf->locality(scene.scope);
    double highest[2] = {0, 0};
    for (int i = 0; i < 2; ++i) graphs_[i]->data()->clear();
    for (int steps = 1; profile_ && profile_->requests > 0 && steps <= profile_->longest(); ++steps) {
        const double values[2] = {profile_->workingSet(steps), 100 * profile_->kept(steps)};
        for (int i = 0; i < 2; ++i) {
            if (std::isnan(values[i])) continue;
            graphs_[i]->addData(steps, values[i]);
            highest[i] = std::max(highest[i], values[i]);
        }
    }
    canvas_.setFullY(panels_[0], {0, std::max(highest[0] * 1.08, 1.0)});
    canvas_.setFullY(panels_[1], {0, 102});
    setUnitAxis(canvas_.panels()[panels_[0]]->axis(QCPAxis::atLeft), tr("Blocks"), Unit::Count);
    setUnitAxis(canvas_.panels()[panels_[1]]->axis(QCPAxis::atLeft), tr("Kept"), Unit::Percent);
    applyTheme(Theme::current());
}

void LocalityPlots::applyTheme(const Theme& theme) {
    for (int i = 0; i < 2; ++i) {
        QColor fill = theme.runA;
        fill.setAlpha(36);
        graphs_[i]->setPen(QPen(theme.runA, 1.6));
        graphs_[i]->setBrush(fill);
    }
}

QString LocalityPlots::tooltip(bool kept, int steps) const {
    if (!profile_ || profile_->requests == 0 || steps < 1 || steps > profile_->longest()) return {};
    if (kept)
        return tr("<b>%1 steps apart</b><br>%2 of a selection's blocks were selected then too<p>Mean over steps and KV "
                  "heads, measured. Distance 1 is the locality, here with the steps that open a block.</p>")
            .arg(formatCount(steps), formatValue(Unit::Percent, 100 * profile_->kept(steps)));
    return tr("<b>Window of %1 steps</b><br>%2 blocks are selected at least once<p>Denning's working set: mean over "
              "steps and KV heads, measured.</p>")
        .arg(formatCount(steps), formatValue(Unit::Fraction, profile_->workingSet(steps)));
}

QString LocalityPlots::csv() const {
    QString csv;
    const QCPRange visible = canvas_.visibleX(group_);
    const CsvSeries series[] = {{"working_set_by_window", "steps", "blocks", QStringLiteral("mean")},
                                {"kept_by_distance", "steps", "%", QStringLiteral("mean")}};
    for (int i = 0; i < 2; ++i)
        for (const QCPGraphData& point : *graphs_[i]->data())
            if (visible.contains(point.key)) csv += series[i].row(point.key, point.value);
    return csv;
}

} // namespace kvscope::ui
