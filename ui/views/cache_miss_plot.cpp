#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/units.h"
#include "ui/theme.h"
#include "ui/views/cache_plots.h"

#include <QCoreApplication>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

QString tr(const char* text) { return QCoreApplication::translate("CacheView", text); }
QString nameOfPolicy(std::size_t index) { return QString::fromStdString(replayPolicies()[index].name); }
constexpr std::string_view kBound = "belady";

} // namespace

QColor policyColour(const Theme& theme, const std::string& policy) {
    if (policy == kBound) return theme.mutedText;
    static const std::map<std::string, std::size_t> components{
        {"keep-selected", 0}, {"lru", 5}, {"fifo", 10}, {"lfu", 6}, {"arc", 2}};
    const auto found = components.find(policy);
    return theme.component[found == components.end() ? 8 : found->second];
}

QString csvRow(const char* plot, const QString& series, double x, double value) {
    return QStringLiteral("%1,%2,%3,%4\n")
        .arg(QLatin1String(plot), series, QString::number(x, 'g', 10), QString::number(value, 'g', 10));
}

MissPlot::MissPlot(PlotCanvas& canvas, int panel)
    : canvas_(canvas), panel_(panel), rect_(canvas.panels()[std::size_t(panel)]) {
    for (std::size_t i = 0; i < replayPolicies().size(); ++i) policies_.push_back(add(1));
    floor_ = add(1, Qt::DashLine);
    windows_ = add(0, Qt::NoPen);
    recorded_ = add(0, Qt::NoPen);
    asked_ = add(0, Qt::NoPen);
    handle_ = new QCPItemStraightLine(&canvas_);
    bound_ = new QCPItemText(&canvas_);
    bound_->setText(tr("no policy can be below"));
    bound_->setPositionAlignment(Qt::AlignLeft | Qt::AlignBottom);
    for (QCPItemText*& name : windowNames_) {
        name = new QCPItemText(&canvas_);
        name->setPositionAlignment(Qt::AlignHCenter | Qt::AlignBottom);
        name->setPadding(QMargins(0, 0, 0, 9));
    }
    std::vector<QCPAbstractItem*> items{handle_, bound_};
    items.insert(items.end(), windowNames_.begin(), windowNames_.end());
    for (QCPAbstractItem* item : items) {
        item->setClipAxisRect(rect_);
        item->setClipToAxisRect(true);
        for (QCPItemPosition* position : item->positions()) {
            position->setAxisRect(rect_);
            position->setAxes(rect_->axis(QCPAxis::atBottom), rect_->axis(QCPAxis::atLeft));
        }
    }
    setIntegerAxis(rect_->axis(QCPAxis::atBottom), {});
}

QCPGraph* MissPlot::add(int width, Qt::PenStyle style) {
    auto* graph = new QCPGraph(rect_->axis(QCPAxis::atBottom), rect_->axis(QCPAxis::atLeft));
    graph->setAntialiased(true);
    graph->setPen(QPen(Qt::black, width, style));
    if (style == Qt::NoPen) graph->setLineStyle(QCPGraph::lsNone);
    return graph;
}

void MissPlot::show(const CacheScene& scene) {
    scene_ = scene;
    const WhatIf& whatIf = *scene_.whatIf;
    rect_->axis(QCPAxis::atBottom)
        ->setLabel(whatIf.trace().shared ? tr("Cache size (block slots per layer and KV head, all sequences)")
                                         : tr("Cache size (block slots per sequence, layer and KV head)"));
    double highest = 0;
    for (std::size_t i = 0; i < policies_.size(); ++i) {
        const std::string& name = replayPolicies()[i].name;
        QVector<double> sizes, ratios;
        const auto add = [&](int size, double ratio) {
            if (std::isnan(ratio)) return;
            sizes << size;
            ratios << 100 * ratio;
            highest = std::max(highest, ratios.back());
        };
        bool curve = false;
        for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) {
            if (name != nameOf(policy)) continue;
            curve = true;
            if (const auto known = whatIf.curve(policy, scene_.scope))
                for (int size = whatIf.smallestSlots(); size <= whatIf.largestSlots(); ++size)
                    add(size, known->ratio(size));
        }
        if (!curve)
            for (const MissPoint& point : whatIf.replayedPoints(name, scene_.scope)) add(point.size, point.ratio);
        policies_[i]->setData(sizes, ratios, true);
        policies_[i]->setVisible(!sizes.isEmpty());
    }
    const double first = whatIf.smallestSlots(), last = std::max(whatIf.largestSlots(), whatIf.smallestSlots() + 1);
    if (const auto bound = whatIf.curve(CurvePolicy::Belady, scene_.scope); bound && bound->references > 0) {
        const double floor = 100 * double(bound->compulsory) / double(bound->references);
        floor_->setData({first, last}, {floor, floor}, true);
        // The words belong into the shade, where it is high enough for them.
        const double at = first + (last - first) * 0.02, height = 100 * bound->ratio(int(at));
        bound_->position->setCoords(at, highest * 0.015);
        bound_->setVisible(height > 0.12 * highest);
    } else {
        floor_->data()->clear();
        bound_->setVisible(false);
    }
    const double recorded = 100 * whatIf.recordedMissRatio(scene_.scope);
    recorded_->data()->clear();
    if (!std::isnan(recorded)) {
        recorded_->setData({double(whatIf.trace().run.deviceSlots)}, {recorded}, true);
        highest = std::max(highest, recorded);
    }
    const int size = scene_.question.size;
    const double asked = 100 * whatIf.missRatio(scene_.question.policy, size, scene_.scope);
    asked_->data()->clear();
    if (!std::isnan(asked)) asked_->setData({double(size)}, {asked}, true);
    handle_->point1->setCoords(size, 0);
    handle_->point2->setCoords(size, 1);
    canvas_.setHandle(panel_, size);
    showWorkingSets();
    const double margin = (last - first) * 0.02;
    canvas_.setFullX({first - margin, last + margin});
    canvas_.setFullY(panel_, {0, highest > 0 ? highest * 1.06 : 1});
    setUnitAxis(rect_->axis(QCPAxis::atLeft), tr("Miss ratio"), Unit::Percent);
    applyTheme(Theme::current());
}

void MissPlot::showWorkingSets() {
    const auto profile = scene_.whatIf->locality(scene_.scope);
    windows_->data()->clear();
    double before = -1e9;
    const double spacing = double(scene_.whatIf->largestSlots() - scene_.whatIf->smallestSlots()) * 0.05;
    for (std::size_t i = 0; i < windowNames_.size(); ++i) {
        const int window = kMarkedWindows[i];
        const double blocks =
            profile && profile->requests > 0 ? profile->workingSet(window) : std::numeric_limits<double>::quiet_NaN();
        const bool shown = !std::isnan(blocks);
        if (shown) windows_->addData(blocks, 0);
        windowNames_[i]->setVisible(shown && blocks - before > spacing);
        if (!shown) continue;
        windowNames_[i]->setText(QStringLiteral("w%1").arg(window));
        windowNames_[i]->position->setCoords(blocks, 0);
        if (blocks - before > spacing) before = blocks;
    }
}

void MissPlot::applyTheme(const Theme& theme) {
    for (std::size_t i = 0; i < policies_.size(); ++i) {
        const std::string& name = replayPolicies()[i].name;
        const QColor colour = policyColour(theme, name);
        const bool asked = scene_.question.policy == name;
        policies_[i]->setPen(QPen(colour, asked ? 2.6 : 1.2));
        QColor shade = colour;
        shade.setAlpha(46);
        policies_[i]->setBrush(name == kBound ? QBrush(shade) : QBrush());
        const bool curve = name == nameOf(CurvePolicy::Lru) || name == nameOf(CurvePolicy::Belady);
        policies_[i]->setScatterStyle(
            curve ? QCPScatterStyle() : QCPScatterStyle(QCPScatterStyle::ssDisc, QPen(colour), colour, asked ? 5 : 4));
    }
    floor_->setPen(QPen(theme.mutedText, 1, Qt::DashLine));
    windows_->setScatterStyle(
        QCPScatterStyle(QCPScatterStyle::ssTriangle, QPen(theme.mutedText, 1.4), theme.plotBackground, 9));
    recorded_->setScatterStyle(
        QCPScatterStyle(QCPScatterStyle::ssDiamond, QPen(theme.text, 1.8), theme.plotBackground, 11));
    const QColor asked = policyColour(theme, scene_.question.policy);
    asked_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(theme.plotBackground, 1.5), asked, 11));
    handle_->setPen(QPen(theme.accent, 1.6));
    bound_->setColor(theme.mutedText);
    QFont small = rect_->axis(QCPAxis::atLeft)->tickLabelFont();
    bound_->setFont(small);
    for (QCPItemText* name : windowNames_) {
        name->setColor(theme.mutedText);
        name->setFont(small);
    }
}

QVector<Swatch> MissPlot::swatches(const Theme& theme) const {
    QVector<Swatch> swatches;
    for (std::size_t i = 0; i < policies_.size(); ++i) {
        const std::string& name = replayPolicies()[i].name;
        const bool bound = name == kBound;
        QColor shade = policyColour(theme, name);
        if (bound) shade.setAlpha(90);
        swatches << Swatch{bound ? tr("belady: the bound, no policy is below") : nameOfPolicy(i),
                           shade,
                           bound ? Swatch::Mark::Fill : Swatch::Mark::Line,
                           {}};
    }
    swatches << Swatch{tr("compulsory: no size is below"), theme.mutedText, Swatch::Mark::Dashes, {}};
    return swatches;
}

QString MissPlot::tooltip(int size) const {
    const WhatIf& whatIf = *scene_.whatIf;
    if (size < whatIf.smallestSlots() || size > whatIf.largestSlots()) return {};
    QString html = tr("<b>%1 block slots</b>").arg(formatCount(size));
    for (std::size_t i = 0; i < policies_.size(); ++i) {
        const std::string& name = replayPolicies()[i].name;
        bool estimated = false;
        const double ratio = whatIf.missRatio(name, size, scene_.scope, &estimated);
        if (std::isnan(ratio)) continue;
        const QString value = (estimated ? QStringLiteral("≈ ") : QString()) + formatValue(Unit::Percent, 100 * ratio);
        const bool asked = name == scene_.question.policy;
        html +=
            QStringLiteral("<br><span style=\"color:%1\">●</span> ").arg(policyColour(Theme::current(), name).name()) +
            nameOfPolicy(i) + QStringLiteral(": ") + (asked ? QStringLiteral("<b>%1</b>").arg(value) : value);
    }
    if (const double recorded = whatIf.recordedMissRatio(scene_.scope);
        !std::isnan(recorded) && size == whatIf.trace().run.deviceSlots)
        html += tr("<br>◇ recorded: %1").arg(formatValue(Unit::Percent, 100 * recorded));
    return html + tr("<p>Misses of all selected blocks, replayed from the recorded selections. ≈ between replayed "
                     "sizes. Click or drag the line to ask for a size.</p>");
}

QString MissPlot::csv() const {
    if (!scene_.whatIf) return {};
    const QCPRange visible = canvas_.visibleX();
    QString csv;
    for (std::size_t i = 0; i < policies_.size(); ++i)
        for (const QCPGraphData& point : *policies_[i]->data())
            if (visible.contains(point.key))
                csv += csvRow("miss_percent_by_slots", nameOfPolicy(i), point.key, point.value);
    for (const QCPGraphData& point : *recorded_->data())
        csv += csvRow("miss_percent_by_slots", QStringLiteral("recorded"), point.key, point.value);
    return csv;
}

} // namespace kvscope::ui
