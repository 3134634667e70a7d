#include "ui/views/sql/sql_plot.h"

#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/models/sql_table_model.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/run_text.h"

#include <QComboBox>
#include <QMenu>
#include <QSignalBlocker>
#include <QToolButton>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kvscope::ui {

namespace {

constexpr std::size_t kMostBars = 20'000;  // beyond, bars are thinner than any pixel
constexpr std::size_t kMostNames = 10'000; // names along the x axis
constexpr std::size_t kLooked = 1000;      // rows that tell whether a column holds numbers
constexpr std::size_t kMostSeries = 8;     // colours that can still be told apart

QColor seriesColour(std::size_t index) {
    const Theme& theme = Theme::current();
    static constexpr std::array kOrder{0, 6, 8, 2, 9, 5, 3, 7}; // neighbours in the theme's list resemble each other
    return index == 0   ? theme.runA
           : index == 1 ? theme.runB
                        : theme.component[std::size_t(kOrder[index % kMostSeries])];
}

} // namespace

SqlPlot::SqlPlot(Workspace& workspace, const SqlTableModel& model, QWidget* parent)
    : PlotView(workspace, tr("SQL"), parent), model_(model) {
    x_ = addPicker(QStringLiteral("sqlX"), tr("Along x"), tr("Column along the x axis"));
    y_ = new QToolButton;
    y_->setObjectName(QStringLiteral("sqlY"));
    y_->setText(tr("Columns drawn"));
    y_->setAccessibleName(tr("Columns drawn"));
    y_->setToolTip(tr("Columns of numbers that are drawn against x"));
    y_->setPopupMode(QToolButton::InstantPopup);
    y_->setProperty("framed", true);
    menu_ = new QMenu(y_);
    y_->setMenu(menu_);
    addTool(y_);
    kind_ = addPicker(QStringLiteral("sqlKind"), tr("As"), tr("How the values are drawn"));
    kind_->addItems({tr("Lines"), tr("Bars"), tr("Points")});
    legend_ = new LegendStrip(&canvas());
    canvas().plotLayout()->addElement(0, 0, legend_);
    panel_ = canvas().addPanel(true);
    canvas().setSelectsSteps(false);
    canvas().setMinimumSpan(1e-9);
    connect(x_, &QComboBox::currentIndexChanged, this, [this] { canvas().forgetZoom(), present(); });
    connect(kind_, &QComboBox::currentIndexChanged, this, &SqlPlot::present);
    canvas().applyTheme(Theme::current());
    themed(Theme::current());
}

bool SqlPlot::numeric(int column) const {
    const SqlTable& rows = model_.rows();
    bool any = false;
    for (std::size_t row = 0; row < std::min(rows.rows(), kLooked); ++row) {
        const SqlType type = rows.type(row, column);
        if (type == SqlType::Text || type == SqlType::Blob) return false;
        any = any || type != SqlType::Null;
    }
    return any;
}

void SqlPlot::columnsChanged() {
    columns_.clear();
    for (const std::string& name : model_.rows().columns()) columns_ << QString::fromStdString(name);
    const QSignalBlocker quiet(x_);
    const QString before = x_->currentText();
    x_->clear();
    x_->addItems(columns_);
    x_->addItem(tr("(row number)"));
    x_->setCurrentIndex(std::max(0, x_->findText(before)));
    canvas().forgetZoom();
    fillMenu();
    present();
}

void SqlPlot::fillMenu() {
    const QStringList before = drawn();
    menu_->clear();
    for (const QString& column : columns_) {
        QAction* action = menu_->addAction(column);
        action->setCheckable(true);
        action->setChecked(before.contains(column));
        connect(action, &QAction::toggled, this, [this] { canvas().forgetZoom(), present(); });
    }
}

void SqlPlot::rowsChanged(bool complete) {
    // Which columns hold numbers is known with the rows: at first, the first column of numbers beside x is drawn.
    if (drawn().isEmpty() && model_.rows().rows() > 0) {
        for (int column = 0; column < columns_.size(); ++column) {
            if (column == x_->currentIndex() || !numeric(column)) continue;
            const QSignalBlocker quiet(menu_->actions()[column]);
            menu_->actions()[column]->setChecked(true);
            break;
        }
        // A single column of numbers is drawn in the order of its rows.
        if (drawn().isEmpty() && columns_.size() == 1 && numeric(0)) {
            const QSignalBlocker quietX(x_), quiet(menu_->actions()[0]);
            x_->setCurrentIndex(1);
            menu_->actions()[0]->setChecked(true);
        }
    }
    if (complete) present();
}

QStringList SqlPlot::drawn() const {
    QStringList names;
    for (const QAction* action : menu_->actions())
        if (action->isChecked()) names << action->text();
    return names;
}

void SqlPlot::setDrawn(const QStringList& columns) {
    for (QAction* action : menu_->actions()) {
        const QSignalBlocker quiet(action);
        action->setChecked(columns.contains(action->text()));
    }
    canvas().forgetZoom();
    present();
}

double SqlPlot::xOf(std::size_t row) const {
    const int column = x_->currentIndex();
    if (textAxis_ || column < 0 || column >= columns_.size()) return double(row);
    return model_.rows().number(model_.sourceRow(int(row)), column);
}

void SqlPlot::present() {
    for (int i = canvas().plottableCount() - 1; i >= 0; --i) canvas().removePlottable(i);
    const SqlTable& rows = model_.rows();
    const QStringList names = drawn();
    y_->setText(names.isEmpty() ? tr("Columns drawn") : tr("Drawn: %1").arg(names.join(QStringLiteral(", ")).left(60)));
    if (rows.rows() == 0) {
        showEmpty(tr("Nothing to plot yet"),
                  tr("Run a query that gives a column of numbers; its rows are drawn here."));
        return;
    }
    if (names.isEmpty()) {
        showEmpty(tr("Choose what to draw"),
                  tr("None of the columns holds numbers, or none is chosen. Choose columns under “Columns drawn”."));
        return;
    }
    showEmpty({}, {});
    textAxis_ = xIsColumn() && !numeric(x_->currentIndex()) && rows.rows() <= kMostNames;
    tooManyBars_ = kind_->currentIndex() == int(Kind::Bars) && rows.rows() > kMostBars;
    leftOut_ = drawnRows_ = 0;
    Drawing drawing = begunDrawing();
    drawing.series = std::min(std::size_t(names.size()), kMostSeries);
    QVector<Swatch> swatches;
    for (std::size_t s = 0; s < drawing.series; ++s) {
        const QString& name = names[qsizetype(s)];
        drawSeries(drawing, s, int(columns_.indexOf(name)));
        swatches << Swatch{
            name, seriesColour(s), drawing.kind == Kind::Lines ? Swatch::Mark::Line : Swatch::Mark::Fill, {}};
    }
    legend_->setSwatches(swatches.size() > 1 ? swatches : QVector<Swatch>());
    setRanges(drawing);
    nameAxes(names.mid(0, qsizetype(drawing.series)));
    cursorMoved();
    replot();
}

bool SqlPlot::xIsColumn() const { return x_->currentIndex() >= 0 && x_->currentIndex() < columns_.size(); }

SqlPlot::Drawing SqlPlot::begunDrawing() const {
    Drawing drawing;
    drawing.kind = tooManyBars_ ? Kind::Lines : Kind(std::max(kind_->currentIndex(), 0));
    drawing.xs.resize(model_.rows().rows());
    bool any = false;
    for (std::size_t row = 0; row < drawing.xs.size(); ++row) {
        const double x = drawing.xs[row] = xOf(row);
        if (std::isnan(x)) continue;
        drawing.low = any ? std::min(drawing.low, x) : x;
        drawing.high = any ? std::max(drawing.high, x) : x;
        any = true;
    }
    if (drawing.kind != Kind::Bars) return drawing;
    std::vector<double> sorted = drawing.xs;
    std::erase_if(sorted, [](double x) { return std::isnan(x); });
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 1; i < sorted.size(); ++i)
        if (const double gap = sorted[i] - sorted[i - 1]; gap > 0)
            drawing.smallestGap = drawing.smallestGap > 0 ? std::min(drawing.smallestGap, gap) : gap;
    if (!(drawing.smallestGap > 0)) drawing.smallestGap = 1;
    return drawing;
}

void SqlPlot::drawSeries(Drawing& drawing, std::size_t series, int column) {
    QVector<double> keys, values;
    for (std::size_t row = 0; row < drawing.xs.size(); ++row) {
        const double value = model_.rows().number(model_.sourceRow(int(row)), column);
        if (std::isnan(drawing.xs[row]) || std::isnan(value)) {
            ++leftOut_;
            continue;
        }
        keys << drawing.xs[row];
        values << value;
        drawing.bottom = drawing.anyValue ? std::min(drawing.bottom, value) : value;
        drawing.top = drawing.anyValue ? std::max(drawing.top, value) : value;
        drawing.anyValue = true;
    }
    drawnRows_ = std::max(drawnRows_, std::size_t(keys.size()));
    const QColor colour = seriesColour(series);
    QCPAxis *x = panel_->axis(QCPAxis::atBottom), *y = panel_->axis(QCPAxis::atLeft);
    if (drawing.kind == Kind::Bars) {
        auto* bars = new QCPBars(x, y);
        const double width = 0.8 * drawing.smallestGap / double(drawing.series);
        for (double& key : keys) key += (double(series) - double(drawing.series - 1) / 2) * width;
        bars->setWidth(width);
        bars->setPen(Qt::NoPen);
        bars->setBrush(colour);
        bars->setAntialiased(false);
        bars->setData(keys, values);
    } else {
        auto* graph = new QCPGraph(x, y);
        graph->setPen(QPen(colour, 1));
        graph->setAntialiased(keys.size() <= 4000);
        graph->setLineStyle(drawing.kind == Kind::Lines ? QCPGraph::lsLine : QCPGraph::lsNone);
        if (drawing.kind == Kind::Points || keys.size() <= 120)
            graph->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, colour, colour, 4));
        graph->setData(keys, values);
    }
}

void SqlPlot::setRanges(const Drawing& drawing) {
    const bool bars = drawing.kind == Kind::Bars;
    const double low = drawing.low, high = drawing.high;
    const double bottom = bars ? std::min(drawing.bottom, 0.) : drawing.bottom,
                 top = bars ? std::max(drawing.top, 0.) : drawing.top;
    const double margin = bars ? drawing.smallestGap / 2 + 1e-12 : std::max((high - low) * 0.01, 1e-12);
    canvas().setFullX({low - margin - (high == low ? 0.5 : 0), high + margin + (high == low ? 0.5 : 0)});
    const double space = top > bottom ? (top - bottom) * 0.04 : std::max(std::abs(top) * 0.1, 0.5);
    canvas().setFullY(0, {bars && bottom == 0 ? 0 : bottom - space, top + space});
}

void SqlPlot::nameAxes(const QStringList& drawnColumns) {
    QCPAxis *x = panel_->axis(QCPAxis::atBottom), *y = panel_->axis(QCPAxis::atLeft);
    const int column = x_->currentIndex();
    const QString title = xIsColumn() ? columns_.value(column) : tr("Row");
    if (textAxis_) {
        const SqlTable& rows = model_.rows();
        QStringList ticks;
        for (std::size_t row = 0; row < rows.rows(); ++row)
            ticks << QString::fromStdString(rows.text(model_.sourceRow(int(row)), column, true)).left(24);
        setNamedAxis(x, title, ticks);
    } else {
        x->setTicker(QSharedPointer<QCPAxisTicker>::create());
        x->setNumberFormat(QStringLiteral("gb"));
        x->setNumberPrecision(9);
        x->setLabel(title);
    }
    y->setTicker(QSharedPointer<QCPAxisTicker>::create());
    y->setNumberFormat(QStringLiteral("gb"));
    y->setNumberPrecision(6);
    y->setLabel(drawnColumns.join(QStringLiteral(", ")));
}

void SqlPlot::cursorMoved() {
    CursorMark mark; // a column named step follows the shared cursor like every other view
    const int column = x_->currentIndex();
    if (column >= 0 && column < columns_.size() && !textAxis_) {
        if (columns_[column] == QLatin1String("step")) mark.x = workspace().cursor().step;
        if (columns_[column] == QLatin1String("layer")) mark.x = workspace().cursor().layer;
    }
    showMark(mark, {panel_});
}

void SqlPlot::themed(const Theme& theme) {
    legend_->applyTheme(theme);
    present();
}

void SqlPlot::clickedAt(int, QPointF at) {
    const int column = x_->currentIndex();
    if (!run() || column < 0 || column >= columns_.size() || textAxis_) return;
    Cursor cursor = workspace().cursor();
    if (columns_[column] == QLatin1String("step")) cursor.step = std::max(0, int(std::lround(at.x())));
    if (columns_[column] == QLatin1String("layer")) cursor.layer = std::max(0, int(std::lround(at.x())));
    workspace().setCursor(cursor);
}

QString SqlPlot::tooltipAt(int, QPointF at) {
    const SqlTable& rows = model_.rows();
    std::size_t nearest = 0;
    double distance = std::numeric_limits<double>::infinity();
    for (std::size_t row = 0; row < rows.rows(); ++row)
        if (const double d = std::abs(xOf(row) - at.x()); d < distance) distance = d, nearest = row;
    if (!std::isfinite(distance)) return {};
    QString html = QStringLiteral("<table>");
    QStringList shown{columns_.value(x_->currentIndex())};
    shown += drawn();
    shown.removeDuplicates();
    for (const QString& name : shown) {
        const auto column = int(columns_.indexOf(name));
        if (column < 0) continue;
        html += QStringLiteral("<tr><td>%1&nbsp;&nbsp;</td><td align='right'><b>%2</b></td></tr>")
                    .arg(name.toHtmlEscaped(),
                         QString::fromStdString(rows.text(model_.sourceRow(int(nearest)), column, true))
                             .left(200)
                             .toHtmlEscaped());
    }
    return html + QStringLiteral("</table>");
}

QString SqlPlot::note() const {
    QString more;
    if (drawn().size() > qsizetype(kMostSeries))
        more = tr("Only the first %1 of the chosen columns are drawn.").arg(kMostSeries);
    return sentences(
        {tr("%1 rows.").arg(formatCount(qint64(drawnRows_))),
         leftOut_ > 0 ? tr("%1 values are not numbers and left out.").arg(formatCount(qint64(leftOut_))) : QString(),
         tooManyBars_ ? tr("More than %1 bars: drawn as lines.").arg(formatCount(kMostBars)) : QString(), more});
}

bool SqlPlot::hasNumbers() const { return model_.rows().rows() > 0; }

QString SqlPlot::exportCsv() const { return hasNumbers() ? textOf(model_.numbers()) : QString(); }

QString SqlPlot::pictureTitle() const {
    return tr("%1 against %2").arg(drawn().join(QStringLiteral(", ")), x_->currentText());
}

} // namespace kvscope::ui
