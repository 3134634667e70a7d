#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/tick_fit.h"
#include "ui/views/cache/cache_plots.h"

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

QString CsvSeries::row(double x, double value) const {
    return QStringLiteral("%1,%2,%3,%4,%5,%6\n")
        .arg(QLatin1String(plot), series, QString::number(x, 'g', 10), QLatin1String(xUnit),
             QString::number(value, 'g', 12), QLatin1String(unit));
}

MissPlot::MissPlot(PlotCanvas& canvas, int panel) : canvas_(canvas), panel_(panel), rect_(canvas.panels()[panel]) {
    for (std::size_t i = 0; i < replayPolicies().size(); ++i) policies_.push_back(add(1));
    floor_ = add(1, Qt::DashLine);
    windows_ = add(0, Qt::NoPen);
    recorded_ = add(0, Qt::NoPen);
    asked_ = add(0, Qt::NoPen);
    for (QCPGraph* mark : {recorded_, asked_}) mark->setLayer(QStringLiteral("axes")); // over the line that is dragged
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
    rect_->axis(QCPAxis::atBottom)->setProperty(kShortTitle, tr("Cache size (slots)"));
    rect_->axis(QCPAxis::atLeft)->setProperty(kShortTitle, tr("Miss %"));
    QObject::connect(&canvas_, &QCustomPlot::afterLayout, &canvas_, [this] { placeWords(); });
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
        ->setLabel(whatIf.trace().shared ? tr("Cache size (block slots shared by all sequences)")
                                         : tr("Cache size (block slots per KV head)"));
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
    } else {
        floor_->data()->clear();
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
    showWorkingSets(0.016 * highest);
    const double margin = (last - first) * 0.02;
    canvas_.setFullX({first - margin, last + margin});
    canvas_.setFullY(panel_, {0, highest > 0 ? highest * 1.06 : 1});
    setUnitAxis(rect_->axis(QCPAxis::atLeft), tr("Miss ratio"), Unit::Percent);
    applyTheme(Theme::current());
}

/// Words stand where they fit, which only the layout knows: about the bound in its shade, windows beside each other.
void MissPlot::placeWords() {
    bound_->setVisible(false);
    if (!scene_.whatIf) return;
    const QCPAxis *x = rect_->axis(QCPAxis::atBottom), *y = rect_->axis(QCPAxis::atLeft);
    const QFontMetrics metrics(bound_->font());
    double taken = -1e9;
    for (std::size_t i = 0; i < windowNames_.size(); ++i) {
        if (!windows_->data()->isEmpty() && i < std::size_t(windows_->data()->size())) {
            const double centre = x->coordToPixel(windows_->data()->at(int(i))->key);
            const double half = metrics.horizontalAdvance(windowNames_[i]->text()) / 2. + 3;
            windowNames_[i]->setVisible(centre - half > taken);
            if (windowNames_[i]->visible()) taken = centre + half;
        } else {
            windowNames_[i]->setVisible(false);
        }
    }
    const auto bound = scene_.whatIf->curve(CurvePolicy::Belady, scene_.scope);
    if (!bound || bound->references == 0) return;
    const double left = x->coordToPixel(scene_.whatIf->smallestSlots()) + 8;
    const double right = left + metrics.horizontalAdvance(bound_->text()) + 8;
    const double floor = y->coordToPixel(100 * double(bound->compulsory) / double(bound->references));
    const double foot = std::min(y->coordToPixel(0) - 3.2 * metrics.height(), floor - 3); // above marks and floor
    if (y->coordToPixel(100 * bound->ratio(int(std::ceil(x->pixelToCoord(right))))) > foot - metrics.height() - 4)
        return;
    bound_->position->setCoords(x->pixelToCoord(left), y->pixelToCoord(foot));
    bound_->setVisible(true);
}

void MissPlot::showWorkingSets(double foot) {
    const auto profile = scene_.whatIf->locality(scene_.scope);
    windows_->data()->clear();
    if (!profile || profile->requests == 0) return;
    for (std::size_t i = 0; i < windowNames_.size(); ++i) {
        const double blocks = profile->workingSet(kMarkedWindows[i]);
        windows_->addData(blocks, foot);
        windowNames_[i]->setText(QStringLiteral("w%1").arg(kMarkedWindows[i]));
        windowNames_[i]->position->setCoords(blocks, foot);
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
    recorded_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDiamond, QPen(theme.text, 1.8), Qt::NoBrush, 17));
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
        swatches << Swatch{
            bound ? tr("belady (bound)") : nameOfPolicy(i), shade, bound ? Swatch::Mark::Fill : Swatch::Mark::Line, {}};
    }
    swatches << Swatch{tr("compulsory"), theme.mutedText, Swatch::Mark::Dashes, {}};
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
    return html + (coldSteps() == ColdSteps::LeftOut && whatIf.coldStepCount() > 0
                       ? tr("<p>Misses of all blocks selected in steps that are not cold, replayed from the recorded "
                            "selections. ≈ between replayed sizes. Click or drag the line to ask for a size.</p>")
                       : tr("<p>Misses of all selected blocks, replayed from the recorded selections. ≈ between "
                            "replayed sizes. Click or drag the line to ask for a size.</p>"));
}

QString MissPlot::csv() const {
    if (!scene_.whatIf) return {};
    const QCPRange visible = canvas_.visibleX();
    QString csv;
    CsvSeries rows{"miss_ratio", "block slots", "%", {}};
    for (std::size_t i = 0; i < policies_.size(); ++i) {
        rows.series = nameOfPolicy(i);
        for (const QCPGraphData& point : *policies_[i]->data())
            if (visible.contains(point.key)) csv += rows.row(point.key, point.value);
    }
    rows.series = QStringLiteral("recorded");
    for (const QCPGraphData& point : *recorded_->data()) csv += rows.row(point.key, point.value);
    return csv;
}

} // namespace kvscope::ui
