#include "ui/figures/figure_drawing.h"

#include "base/error.h"
#include "ui/frame/saved_file.h"
#include "ui/frame/svg_file.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"

#include <qcustomplot.h>

#include <QFileInfo>
#include <QFontDatabase>
#include <QPdfWriter>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <map>
#include <new>
#include <set>

namespace kvscope::ui {
namespace {

// All lengths are whole numbers of dots at this resolution.
constexpr int kDotsPerInch = 600;
constexpr double kDot = kDotsPerInch / 25.4; // dots per millimetre
constexpr double kPoint = kDotsPerInch / 72.0;

int dots(double points) { return std::max(1, int(std::lround(points * kPoint))); }

QFont face(double points = 7) {
    QFont font;
    const QStringList wanted{"Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"};
    const QStringList there = QFontDatabase::families();
    for (const QString& family : wanted)
        if (there.contains(family)) {
            font.setFamily(family);
            break;
        }
    font.setPixelSize(dots(points));
    font.setHintingPreference(QFont::PreferNoHinting);
    return font;
}

/// The colours of Okabe and Ito, the dark ones first.
QColor seriesColour(int index) {
    constexpr QRgb colours[] = {0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0x000000, 0xe69f00, 0x56b4e9};
    return QColor(colours[std::size_t(index) % std::size(colours)]);
}

QCPScatterStyle mark(int index, const QColor& colour, bool hollow) {
    constexpr QCPScatterStyle::ScatterShape shapes[] = {
        QCPScatterStyle::ssCircle, QCPScatterStyle::ssSquare, QCPScatterStyle::ssTriangle,
        QCPScatterStyle::ssTriangleInverted, QCPScatterStyle::ssDiamond};
    return {shapes[std::size_t(index) % std::size(shapes)], QPen(colour, dots(0.7)),
            QBrush(hollow ? Qt::white : colour), double(dots(3.6))};
}

QString labelOf(double value, int digits) {
    if (std::abs(value) >= 1000 && std::abs(value - std::round(value)) < 1e-6) return formatCount(std::llround(value));
    return QString::number(value, 'g', digits);
}

/// Ticks as QCustomPlot chooses them, labelled with "10,000".
class GroupedTicks final : public QCPAxisTicker {
protected:
    QString getTickLabel(double tick, const QLocale&, QChar, int) override {
        return labelOf(std::abs(tick) < 1e-12 ? 0 : tick, 6);
    }
};

/// Ticks at the given ascending values, labelled with plain numbers.
QSharedPointer<QCPAxisTicker> fixedTicks(const std::vector<double>& values) {
    auto ticker = QSharedPointer<QCPAxisTickerText>::create();
    double last = 0;
    for (const double value : values) {
        if (last > 0 && value < last * 1.18) continue; // the two labels would touch
        ticker->addTick(value, labelOf(value, value >= 100 ? 4 : 3));
        last = value;
    }
    return ticker;
}

struct Extent {
    double lower = 1e300, upper = -1e300;
    double size() const { return upper - lower; }
    void hold(double value) {
        lower = std::min(lower, value);
        upper = std::max(upper, value);
    }
};

class Drawing {
public:
    Drawing(const FigureData& data, QSizeF millimetres) : data_(data) {
        plot_.setAntialiasedElements(QCP::aeAll);
        plot_.setPlottingHints(QCP::phNone);
        plot_.setBackground(QBrush(Qt::white));
        plot_.plotLayout()->clear();
        plot_.setAutoAddPlottableToLegend(false);
        plot_.plotLayout()->setRowSpacing(dots(5));
        plot_.setFont(face());
        width_ = int(std::lround(millimetres.width() * kDot));
        addLegend();
        for (const FigurePanel& panel : data.panels) addPanel(panel);
        height_ = millimetres.height() > 0 ? int(std::lround(millimetres.height() * kDot)) : naturalHeight();
    }
    QSize size() const { return {width_, height_}; }
    void paint(QCPPainter& painter) {
        painter.setMode(QCPPainter::pmVectorized);
        painter.setMode(QCPPainter::pmNoCaching);
        painter.setMode(QCPPainter::pmNonCosmetic);
        plot_.toPainter(&painter, width_, height_);
    }

private:
    /// The number that sets a series' colour and mark; series of the same name in different panels have the same
    /// number.
    int numberOf(const FigureSeries& series) {
        return numbers_.try_emplace(series.name, int(numbers_.size())).first->second;
    }
    QColor colourOf(const FigureSeries& series) {
        return series.colour >= 0 ? Theme::light().component[std::size_t(series.colour)]
                                  : seriesColour(numberOf(series));
    }

    int naturalHeight() const {
        double points = legendRows_ * 10 + (legendRows_ > 0 ? 5 : 0);
        for (const FigurePanel& panel : data_.panels)
            points += panel.mark == FigurePanel::Mark::StackedBars ? 36 + 24 * double(panel.names.size()) : 132;
        return dots(points + 8);
    }

    /// Adds the legend above the panels, in as many columns as fit.
    void addLegend() {
        std::vector<const FigureSeries*> shown;
        std::set<std::string> names;
        for (const FigurePanel& panel : data_.panels)
            for (const FigureSeries& series : panel.series)
                if (names.insert(series.name).second) shown.push_back(&series);
        if (shown.size() < 2 && !(shown.size() == 1 && shown[0]->hollow)) return;
        const QFontMetricsF metrics(face());
        double widest = 0;
        for (const FigureSeries* series : shown)
            widest = std::max(widest, metrics.horizontalAdvance(QString::fromStdString(series->name)));
        const int columns = std::clamp(int((width_ - dots(8)) / (widest + dots(24))), 1, int(shown.size()));
        legendRows_ = (int(shown.size()) + columns - 1) / columns;
        legend_ = new QCPLegend;
        plot_.plotLayout()->addElement(0, 0, legend_);
        legend_->setFont(face());
        legend_->setBorderPen(Qt::NoPen);
        legend_->setBrush(Qt::NoBrush);
        legend_->setIconSize(dots(13), dots(7));
        legend_->setIconTextPadding(dots(3));
        legend_->setRowSpacing(dots(1));
        legend_->setColumnSpacing(dots(6));
        legend_->setMargins(QMargins(dots(2), dots(1), dots(2), 0));
        legend_->setFillOrder(QCPLegend::foColumnsFirst);
        legend_->setWrap(columns);
        plot_.plotLayout()->setRowStretchFactor(0, 0.001);
    }

    void styleAxis(QCPAxis* axis, const std::string& title) {
        axis->setLabel(QString::fromStdString(title));
        axis->setLabelFont(face());
        axis->setTickLabelFont(face(6.5));
        axis->setLabelColor(Qt::black);
        axis->setTickLabelColor(Qt::black);
        axis->setBasePen(QPen(Qt::black, dots(0.5)));
        axis->setTickPen(QPen(Qt::black, dots(0.5)));
        axis->setSubTicks(false);
        axis->setTickLength(0, dots(2.5));
        axis->setTickLabelPadding(dots(1.5));
        axis->setLabelPadding(dots(2.5));
        axis->setPadding(dots(1));
        axis->grid()->setPen(QPen(QColor(0xe2e2e2), dots(0.4)));
        axis->grid()->setZeroLinePen(Qt::NoPen);
        axis->grid()->setSubGridVisible(false);
    }

    void addPanel(const FigurePanel& panel) {
        auto* rect = new QCPAxisRect(&plot_, true);
        plot_.plotLayout()->addElement(plot_.plotLayout()->rowCount(), 0, rect);
        rect->setMarginGroup(QCP::msLeft | QCP::msRight, margins_); // aligns the panels' left and right edges
        rect->setMinimumMargins(QMargins(dots(4), dots(3), dots(6), dots(4)));
        QCPAxis *x = rect->axis(QCPAxis::atBottom), *y = rect->axis(QCPAxis::atLeft);
        styleAxis(x, panel.xTitle);
        styleAxis(y, panel.yTitle);
        for (const auto type : {QCPAxis::atTop, QCPAxis::atRight}) rect->axis(type)->setVisible(false);
        const bool bars = panel.mark == FigurePanel::Mark::StackedBars;
        x->grid()->setVisible(bars);
        y->grid()->setVisible(!bars);
        if (bars)
            addBars(panel, x, y);
        else
            addLines(panel, x, y);
    }

    void addLines(const FigurePanel& panel, QCPAxis* x, QCPAxis* y) {
        Extent across, up;
        for (const FigureSeries& series : panel.series) {
            auto* graph = plot_.addGraph(x, y);
            const QColor colour = colourOf(series);
            graph->setData(QVector<double>(series.x.begin(), series.x.end()),
                           QVector<double>(series.y.begin(), series.y.end()));
            graph->setLineStyle(panel.mark == FigurePanel::Mark::Points ? QCPGraph::lsNone : QCPGraph::lsLine);
            graph->setPen(QPen(colour, dots(0.9), series.hollow ? Qt::DashLine : Qt::SolidLine));
            QCPScatterStyle style = mark(numberOf(series), colour, series.hollow);
            if (series.x.size() > 24) style.setSize(dots(2.2));
            graph->setScatterStyle(style);
            addToLegend(graph, series);
            addBarsOfError(series, graph, colour);
            for (std::size_t i = 0; i < series.x.size(); ++i) {
                if (!std::isfinite(series.y[i])) continue;
                across.hold(series.x[i]);
                const bool interval = i < series.low.size() && std::isfinite(series.low[i]);
                up.hold(interval ? series.low[i] : series.y[i]);
                up.hold(interval ? series.high[i] : series.y[i]);
            }
        }
        setRange(panel, x, across, y, up);
    }

    static void setRange(const FigurePanel& panel, QCPAxis* x, const Extent& across, QCPAxis* y, const Extent& up) {
        if (across.lower > across.upper) return; // no point has a value
        if (panel.xLog && across.lower > 0) {
            x->setScaleType(QCPAxis::stLogarithmic);
            const double room = std::pow(std::max(across.upper / across.lower, 1.5), 0.06);
            x->setRange(across.lower / room, across.upper * room);
        } else {
            const double room = 0.04 * (across.size() > 0 ? across.size() : std::max(1.0, std::abs(across.lower)));
            x->setRange(panel.xFromZero ? 0 : across.lower - room, across.upper + room);
        }
        if (!panel.xTicks.empty())
            x->setTicker(fixedTicks(panel.xTicks));
        else
            x->setTicker(QSharedPointer<GroupedTicks>::create());
        y->setTicker(QSharedPointer<GroupedTicks>::create());
        const double spread = panel.yFromZero ? up.upper : up.size();
        const double room = 0.08 * (spread > 0 ? spread : std::max(1e-9, std::abs(up.upper)));
        const double low = panel.yFromZero ? 0 : up.lower - room;
        y->setRange(panel.yHigh > 0 ? std::max(low, 0.0) : low, panel.yHigh > 0 ? panel.yHigh : up.upper + room);
        y->ticker()->setTickCount(5);
    }

    void addBarsOfError(const FigureSeries& series, QCPGraph* graph, const QColor& colour) {
        if (series.low.empty()) return;
        auto* bars = new QCPErrorBars(graph->keyAxis(), graph->valueAxis());
        QVector<double> minus, plus;
        for (std::size_t i = 0; i < series.y.size(); ++i) {
            const bool known = std::isfinite(series.low[i]) && std::isfinite(series.high[i]);
            minus << (known ? series.y[i] - series.low[i] : 0);
            plus << (known ? series.high[i] - series.y[i] : 0);
        }
        bars->setDataPlottable(graph);
        bars->setData(minus, plus);
        bars->setPen(QPen(colour, dots(0.6)));
        bars->setWhiskerWidth(dots(2.5));
        bars->setSymbolGap(0);
        bars->removeFromLegend();
    }

    void addBars(const FigurePanel& panel, QCPAxis* x, QCPAxis* y) {
        auto ticker = QSharedPointer<QCPAxisTickerText>::create();
        for (std::size_t i = 0; i < panel.names.size(); ++i) {
            QString name = QString::fromStdString(panel.names[i]);
            name.replace(QLatin1String(" on "), QLatin1String("\non "));
            ticker->addTick(double(i), name);
        }
        y->setTicker(ticker);
        y->setTickLength(0, 0);
        y->setRange(double(panel.names.size()) - 0.4, -0.6);
        y->setRangeReversed(true);
        y->setRange(-0.6, double(panel.names.size()) - 0.4);
        QCPBars* below = nullptr;
        std::vector<double> lengths(panel.names.size(), 0);
        for (const FigureSeries& series : panel.series) {
            auto* bars = new QCPBars(y, x);
            const QColor colour = colourOf(series);
            bars->setWidth(0.62);
            bars->setData(QVector<double>(series.y.begin(), series.y.end()),
                          QVector<double>(series.x.begin(), series.x.end()));
            if (series.hollow) {
                bars->setBrush(Qt::NoBrush);
                bars->setPen(QPen(colour, dots(0.6), Qt::DashLine));
            } else {
                bars->setBrush(colour);
                bars->setPen(QPen(Qt::white, dots(0.3)));
            }
            if (below) bars->moveAbove(below);
            below = bars;
            addToLegend(bars, series);
            for (std::size_t i = 0; i < series.x.size(); ++i) lengths[std::size_t(series.y[i])] += series.x[i];
        }
        x->setRange(0, 1.03 * *std::max_element(lengths.begin(), lengths.end()));
    }

    void addToLegend(QCPAbstractPlottable* plottable, const FigureSeries& series) {
        plottable->setName(QString::fromStdString(series.name));
        if (legend_ == nullptr || !inLegend_.insert(series.name).second) return;
        plottable->addToLegend(legend_);
    }

    const FigureData& data_;
    QCustomPlot plot_;
    QCPMarginGroup* margins_ = new QCPMarginGroup(&plot_); // owned by plot_
    QCPLegend* legend_ = nullptr;
    std::map<std::string, int> numbers_;
    std::set<std::string> inLegend_;
    int width_ = 0, height_ = 0, legendRows_ = 0;
};

QImage imageOf(Drawing& drawing) {
    QImage picture(drawing.size(), QImage::Format_RGB32);
    picture.setDotsPerMeterX(int(kDotsPerInch / 0.0254));
    picture.setDotsPerMeterY(int(kDotsPerInch / 0.0254));
    picture.fill(Qt::white);
    QCPPainter painter(&picture);
    drawing.paint(painter);
    return picture;
}

} // namespace

QSizeF parseFigureSize(const std::string& text) {
    double width = 0, height = 0;
    std::string rest = text;
    if (rest.ends_with("mm")) rest.resize(rest.size() - 2);
    char end = 0;
    const int both = std::sscanf(rest.c_str(), "%lfx%lf%c", &width, &height, &end);
    if (both != 2) height = 0;
    const bool read = both == 2 || std::sscanf(rest.c_str(), "%lf%c", &width, &end) == 1;
    const auto fits = [](double length) { return length >= 40 && length <= 400; };
    if (!read || !fits(width) || (height != 0 && !fits(height)) || (both == 2 && height == 0))
        throw Error(ErrorKind::BadInput, "--size " + text + " is not a size of a figure",
                    "write its width, or width and height, in millimetres of 40 to 400, e.g. 85 or 170x90");
    return {width, height};
}

QImage figurePicture(const FigureData& data, QSizeF millimetres) {
    Drawing drawing(data, millimetres);
    return imageOf(drawing);
}

void writeFigure(const FigureData& data, const QString& path, QSizeF millimetres) {
    const QString suffix = QFileInfo(path).suffix().toLower();
    if (suffix != QLatin1String("svg") && suffix != QLatin1String("pdf") && suffix != QLatin1String("png"))
        throw Error(ErrorKind::BadInput, "figure file " + path.toStdString() + " has an unknown suffix",
                    "name it .svg, .pdf or .png");
    Drawing drawing(data, millimetres);
    const QSize size = drawing.size();
    QBuffer document;
    document.open(QIODevice::WriteOnly);
    if (suffix == QLatin1String("svg")) {
        SvgFile svg(size, kDotsPerInch, QStringLiteral("KVScope figure"), QString::fromStdString(data.note));
        QCPPainter painter(&svg.device());
        drawing.paint(painter);
        painter.end();
        document.write(svg.document());
    } else if (suffix == QLatin1String("pdf")) {
        if (!hasMemoryForPdf()) throw std::bad_alloc();
        QPdfWriter writer(&document);
        writer.setResolution(kDotsPerInch);
        writer.setPageSize(QPageSize(QSizeF(size) / kPoint, QPageSize::Point, {}, QPageSize::ExactMatch));
        writer.setPageMargins(QMarginsF(0, 0, 0, 0));
        writer.setTitle(QString::fromStdString(data.note));
        writer.setCreator(QStringLiteral("KVScope"));
        QCPPainter painter(&writer);
        drawing.paint(painter);
    } else {
        document.write(pngOf(imageOf(drawing)));
    }
    if (const QString why = whyNotSaved(document.data(), path); !why.isEmpty())
        throw Error(ErrorKind::Storage, ("figure file " + path + ": " + why).toStdString(),
                    "choose a folder that exists, is writable and has room");
}

} // namespace kvscope::ui
