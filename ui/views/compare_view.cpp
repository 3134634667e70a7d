// Compare: key numbers of two runs with their differences, and both locality curves over the steps.
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/units.h"
#include "ui/theme.h"
#include "ui/views/key_numbers.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/step_feed.h"

#include <QHeaderView>
#include <QPainter>
#include <QTableWidget>
#include <QTimer>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace kvscope::ui {

namespace {

constexpr int kRefreshMs = 1000; // key numbers of a live run are summed again this often

/// As high as its rows, if there is room.
class KeyTable final : public QTableWidget {
public:
    using QTableWidget::QTableWidget;
    QSize sizeHint() const override {
        return {600, horizontalHeader()->sizeHint().height() + verticalHeader()->defaultSectionSize() * rowCount() + 4};
    }
    QSize minimumSizeHint() const override { return {200, 110}; }
};

class CompareView final : public PlotView {
    Q_OBJECT
public:
    CompareView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Compare"), parent), sides_{Side(workspace, this, "compare A"),
                                                             Side(workspace, this, "compare B")} {
        summaryTimer_.setSingleShot(true);
        summaryTimer_.setInterval(kRefreshMs);
        connect(&summaryTimer_, &QTimer::timeout, this, &CompareView::askSummaries);
        table_ = new KeyTable(this);
        table_->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Maximum);
        table_->setObjectName(QStringLiteral("keyNumbers"));
        table_->setAccessibleName(tr("Key numbers of both runs"));
        table_->setColumnCount(4);
        table_->setEditTriggers(QAbstractItemView::NoEditTriggers);
        table_->setSelectionBehavior(QAbstractItemView::SelectRows);
        table_->setShowGrid(false);
        table_->setAlternatingRowColors(true);
        table_->setFrameShape(QFrame::NoFrame);
        table_->verticalHeader()->hide();
        table_->verticalHeader()->setDefaultSectionSize(26);
        table_->horizontalHeader()->setSectionResizeMode(QHeaderView::Stretch);
        table_->horizontalHeader()->setHighlightSections(false);
        table_->setVerticalScrollBarPolicy(Qt::ScrollBarAsNeeded);
        addAbovePlot(table_);
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        panel_ = canvas().addPanel(true);
        setIntegerAxis(panel_->axis(QCPAxis::atBottom), tr("Decode step"));
        panel_->axis(QCPAxis::atLeft)->setLabel(tr("Locality, all layers and heads"));
        for (int s = 1; s >= 0; --s) {
            auto* graph = new QCPGraph(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft));
            graph->setAntialiased(true);
            sides_[std::size_t(s)].graph = graph;
        }
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (!workspace().compare() || numbers_.empty()) return {};
        QString csv = QStringLiteral("quantity,unit,a,b,difference\n");
        for (const KeyNumber& number : numbers_)
            csv +=
                QStringLiteral("\"%1\",%2,%3,%4,%5\n")
                    .arg(number.title, number.unitName, plain(number.a), plain(number.b), plain(number.b - number.a));
        return csv;
    }

protected:
    void runChanged() override {
        for (Side& side : sides_) side.clear();
        numbers_.clear();
        table_->hide();
        if (showEmptyWithoutRun(tr("This view puts the key numbers and locality curves of two runs side by side.")))
            return;
        if (!workspace().compare()) {
            showEmpty(
                tr("Choose a second run to compare with"),
                tr("The current run is “%1”. Open another trace or record another run, then mark it for comparison in "
                   "the list of runs; all views then overlay both.")
                    .arg(QString::fromStdString(run()->row.name)));
            return;
        }
        showEmpty({}, {});
        start(sides_[0], *workspace().current());
        start(sides_[1], *workspace().compare());
        askSummaries();
        fillLegend();
        cursorMoved();
    }

    void runGrew() override {
        if (!run() || !workspace().compare()) return;
        for (Side& side : sides_) side.feed.advance();
        if (!summaryTimer_.isActive()) summaryTimer_.start();
    }

    void cursorMoved() override {
        CursorMark mark;
        if (run()) {
            const Cursor& cursor = workspace().cursor();
            mark.x = cursor.step;
            if (cursor.firstStep >= 0) mark.selectedSteps = QCPRange(cursor.firstStep, cursor.lastStep);
        }
        canvas().overlay().setMark(panel_, mark);
        canvas().replotOverlay();
    }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        sides_[0].graph->setPen(QPen(theme.runA, 1));
        sides_[1].graph->setPen(QPen(theme.runB, 1));
        fillLegend();
        fillTable();
    }

    void clickedAt(int, QPointF at) override {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        cursor.step = std::max(0, int(std::lround(at.x())));
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int, QPointF at) override {
        const int step = int(std::lround(at.x()));
        QString html;
        const OpenRun* runs[] = {workspace().current(), workspace().compare()};
        for (std::size_t s = 0; s < 2; ++s) {
            const auto points = sides_[s].graph->data();
            const auto found = points->findBegin(step, false);
            if (!runs[s] || found == points->constEnd() || int(std::lround(found->key)) != step) continue;
            html += tr("<br>%1: locality <b>%2</b>")
                        .arg(QString::fromStdString(runs[s]->row.name).toHtmlEscaped(),
                             formatValue(Unit::Fraction, found->value));
        }
        if (html.isEmpty()) return {};
        return QStringLiteral("<b>%1</b>").arg(stepName(step)) + html +
               tr("<p>Locality: the share of the blocks selected now that the step before had selected too.</p>");
    }

    QString note() const override {
        for (const Side& side : sides_)
            if (!side.feed.error().isEmpty()) return tr("Reading stopped: %1.").arg(side.feed.error());
        const double perPixel =
            panel_->width() > 0 ? const_cast<CompareView*>(this)->canvas().visibleX().size() / panel_->width() : 0;
        return sentences({aggregationNote(perPixel, tr("the line keeps the extremes")),
                          tr("Averages of locality leave out the first decode step and steps that open a block."),
                          loadingNote(sides_[0].feed.loading(), sides_[0].feed.loaded(), sides_[0].feed.total()),
                          healthNote()});
    }

    QString pictureTitle() const override {
        if (!run() || !workspace().compare()) return PlotView::pictureTitle();
        return tr("Compare: %1 (A) and %2 (B)")
            .arg(QString::fromStdString(run()->row.name), QString::fromStdString(workspace().compare()->row.name));
    }

    int drawAbove(QPainter* painter, QRect area) const override {
        if (numbers_.empty()) return 0;
        const QFontMetrics metrics(painter->font());
        const int line = metrics.height() + 6, column = area.width() / 4;
        const Theme& theme = Theme::current();
        int y = area.top();
        const auto cell = [&](int index, const QString& text, const QColor& colour) {
            painter->setPen(colour);
            const QRect place(area.left() + index * column, y, column - 8, line);
            painter->drawText(place, (index == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter,
                              metrics.elidedText(text, Qt::ElideRight, place.width()));
        };
        const auto header = headerTexts();
        for (int i = 0; i < 4; ++i) cell(i, header[i], theme.mutedText);
        y += line;
        painter->setPen(QPen(theme.border, 1));
        painter->drawLine(area.left(), y, area.right(), y);
        for (const KeyNumber& number : numbers_) {
            cell(0, number.title, theme.text);
            cell(1, number.text(number.a), theme.text);
            cell(2, number.text(number.b), theme.text);
            cell(3, number.difference(), colourOf(number));
            y += line;
        }
        return y - area.top() + 12;
    }

private:
    struct Side {
        Side(Workspace& workspace, QObject* context, const char* slot) : feed(workspace, context, slot, 4096) {}
        void clear() {
            feed.stop();
            summary.reset();
            if (graph) graph->data()->clear();
        }
        StepFeed<std::vector<StepRow>> feed;
        std::optional<RunSummary> summary;
        QCPGraph* graph = nullptr;
    };

    static QString plain(double value) { return std::isnan(value) ? QString() : QString::number(value, 'g', 10); }

    void start(Side& side, const OpenRun& open) {
        side.feed.start(
            open.key,
            [](TraceReader& reader, int runId, int first, int last) { return reader.steps(runId, first, last); },
            [this, &side](std::vector<StepRow> rows, int, int) {
                for (const StepRow& row : rows) {
                    if (row.phase == Phase::Decode && row.kept >= 0 && row.selected > 0)
                        side.graph->addData(row.step, double(row.kept) / double(row.selected));
                }
                present();
            });
    }

    void askSummaries() {
        const OpenRun* runs[] = {workspace().current(), workspace().compare()};
        const char* requests[] = {"compare summary A", "compare summary B"};
        for (std::size_t s = 0; s < 2; ++s) {
            if (!runs[s] || !workspace().compare()) continue;
            workspace().query<RunSummary>(
                this, requests[s], runs[s]->key,
                [runId = runs[s]->key.runId](TraceReader& reader) { return summarize(reader, runId); },
                [this, s](RunSummary summary) {
                    sides_[s].summary = std::move(summary);
                    present();
                });
        }
    }

    void present() {
        const OpenRun *a = workspace().current(), *b = workspace().compare();
        if (!a || !b) return;
        for (const Side& side : sides_) {
            if (!side.feed.error().isEmpty() && side.graph->data()->isEmpty()) {
                table_->hide();
                showEmpty(tr("The trace cannot be read here"), side.feed.error());
                return;
            }
        }
        if (sides_[0].summary && sides_[1].summary) {
            numbers_ = keyNumbers(*sides_[0].summary, *sides_[1].summary);
            fillTable();
            table_->show();
        }
        double low = 1, last = 1;
        for (const Side& side : sides_) {
            bool found = false;
            const QCPRange values = side.graph->getValueRange(found);
            if (found) low = std::min(low, values.lower);
            const QCPRange keys = side.graph->getKeyRange(found);
            if (found) last = std::max(last, keys.upper);
        }
        canvas().setFullX({0.5, last + 0.5});
        canvas().setFullY(0, {std::max(-0.02, std::floor(low * 10 - 0.5) / 10), 1.02});
        replot();
    }

    QStringList headerTexts() const {
        const OpenRun *a = workspace().current(), *b = workspace().compare();
        return {tr("Decode"), a ? tr("A: %1").arg(QString::fromStdString(a->row.name)) : QString(),
                b ? tr("B: %1").arg(QString::fromStdString(b->row.name)) : QString(), tr("B against A")};
    }

    static QColor colourOf(const KeyNumber& number) {
        const Theme& theme = Theme::current();
        const int verdict = number.verdict();
        return verdict > 0 ? theme.ok : verdict < 0 ? theme.danger : theme.mutedText;
    }

    void fillTable() {
        table_->setHorizontalHeaderLabels(headerTexts());
        table_->setRowCount(int(numbers_.size()));
        for (int row = 0; row < table_->rowCount(); ++row) {
            const KeyNumber& number = numbers_[std::size_t(row)];
            const QString texts[] = {number.title, number.text(number.a), number.text(number.b), number.difference()};
            for (int column = 0; column < 4; ++column) {
                QTableWidgetItem* item = table_->item(row, column);
                if (!item) table_->setItem(row, column, item = new QTableWidgetItem);
                item->setText(texts[column]);
                item->setToolTip(number.help);
                item->setTextAlignment((column == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
                item->setForeground(column == 3 ? colourOf(number) : Theme::current().text);
            }
        }
        for (int column = 1; column < 4; ++column)
            if (auto* item = table_->horizontalHeaderItem(column))
                item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
        if (auto* item = table_->horizontalHeaderItem(0)) item->setTextAlignment(Qt::AlignLeft | Qt::AlignVCenter);
        table_->updateGeometry();
    }

    void fillLegend() {
        const Theme& theme = Theme::current();
        QVector<Swatch> swatches;
        if (const OpenRun* a = workspace().current())
            swatches << Swatch{
                tr("A: %1").arg(QString::fromStdString(a->row.name)), theme.runA, Swatch::Mark::Line, {}};
        if (const OpenRun* b = workspace().compare())
            swatches << Swatch{
                tr("B: %1").arg(QString::fromStdString(b->row.name)), theme.runB, Swatch::Mark::Line, {}};
        legend_->setSwatches(swatches);
    }

    std::array<Side, 2> sides_;
    QTableWidget* table_ = nullptr;
    QTimer summaryTimer_;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    std::vector<KeyNumber> numbers_;
};

} // namespace

View* makeCompareView(Workspace& workspace, QWidget* parent) { return new CompareView(workspace, parent); }

} // namespace kvscope::ui

#include "compare_view.moc"
