// The summary page of Compare: the verdict on two runs, their key numbers with differences, and both locality curves
// over the steps.
#include "ui/look/theme.h"
#include "ui/plots/curve_plottable.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/units.h"
#include "ui/views/compare_pages.h"
#include "ui/views/compare_ways.h"
#include "ui/views/growth_timer.h"
#include "ui/views/key_numbers.h"
#include "ui/views/run_text.h"
#include "ui/views/step_series.h"
#include "ui/views/tile_text.h"

#include <QHeaderView>
#include <QLabel>
#include <QPainter>
#include <QTableWidget>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <span>

namespace kvscope::ui {

namespace {

constexpr int kRefreshMs = 1000; // key numbers of a live run are summed again this often
constexpr int kRowsShown = 10;   // the components below them are for scrolling

/// What the library says about two runs.
struct Judgement {
    std::vector<Obstacle> obstacles;
    std::optional<Comparison> comparison; // none: an obstacle cannot be ignored
};

Judgement judge(const RunSample& a, const RunSample& b) {
    const std::span<const RunSample> left(&a, 1), right(&b, 1);
    Judgement judgement{findObstacles(left, right), {}};
    if (std::all_of(judgement.obstacles.begin(), judgement.obstacles.end(),
                    [](const Obstacle& o) { return o.mayBeIgnored; }))
        judgement.comparison = compareRuns(left, right);
    return judgement;
}

/// As high as its first rows, if there is room.
class KeyTable final : public QTableWidget {
public:
    using QTableWidget::QTableWidget;
    QSize sizeHint() const override {
        const int rows = std::min(rowCount(), kRowsShown);
        return {600, horizontalHeader()->sizeHint().height() + verticalHeader()->defaultSectionSize() * rows + 4};
    }
    QSize minimumSizeHint() const override { return {200, 110}; }
};

class CompareView final : public PlotView {
    Q_OBJECT
public:
    CompareView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Compare"), parent), sides_{Side(workspace, this, "compare A"),
                                                             Side(workspace, this, "compare B")} {
        verdict_ = new QLabel(this);
        verdict_->setObjectName(QStringLiteral("verdict"));
        verdict_->setWordWrap(true);
        verdict_->setTextInteractionFlags(Qt::TextSelectableByMouse);
        verdict_->setContentsMargins(4, 4, 4, 4);
        addAbovePlot(verdict_);
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
            Side& side = sides_[std::size_t(s)];
            side.curve = new CurvePlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft),
                                            side.series.columns(), int(TransferNumber::Locality));
        }
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (!workspace().compare() || numbers_.empty()) return {};
        QString csv = QStringLiteral("quantity,unit,a,b,difference,low,high\n");
        for (const KeyNumber& number : allNumbers())
            csv += QStringLiteral("\"%1\",%2,%3,%4,%5,%6,%7\n")
                       .arg(number.title, number.unitName, plain(number.a), plain(number.b), plain(number.b - number.a),
                            plain(number.low), plain(number.high));
        return csv;
    }

    QString sql() const override { return run() && workspace().compare() ? stepLocalitySql(sqlScope()) : QString(); }

protected:
    void runChanged() override {
        for (Side& side : sides_) side.clear();
        numbers_.clear();
        judgement_.reset();
        table_->hide();
        verdict_->hide();
        if (showEmptyWithoutRun(tr("This view puts the key numbers and locality curves of two runs side by side.")))
            return;
        if (!workspace().compare()) {
            showEmpty(
                tr("Choose a second run to compare with"),
                tr("The current run is “%1”. Open another trace or record another run, then mark it for comparison in "
                   "the list of runs; all views then overlay both.")
                    .arg(QString::fromStdString(run()->row.name)),
                waysToCompare(*this, workspace()));
            return;
        }
        showEmpty({}, {});
        start(sides_[0], *workspace().current());
        start(sides_[1], *workspace().compare());
        askSummaries();
        askVerdict();
        fillLegend();
        cursorMoved();
    }

    void visibleStepsChanged() override {
        const QCPRange visible = canvas().visibleX();
        for (Side& side : sides_) side.series.prefer(visible.lower, visible.upper);
    }

    void runGrew() override {
        if (!run() || !workspace().compare()) return;
        for (Side& side : sides_) side.series.advance();
        summaryTimer_.grew();
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
        sides_[0].curve->setPen(QPen(theme.runA, 1));
        sides_[1].curve->setPen(QPen(theme.runB, 1));
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
            const double locality = sides_[s].curve->value(step);
            if (!runs[s] || std::isnan(locality)) continue;
            html += tr("<br>%1: locality <b>%2</b>")
                        .arg(QString::fromStdString(runs[s]->row.name).toHtmlEscaped(),
                             formatValue(Unit::Fraction, locality));
        }
        if (html.isEmpty()) return {};
        return QStringLiteral("<b>%1</b>").arg(stepName(step)) + html +
               tr("<p>Locality: the share of the blocks selected now that the step before had selected too.</p>");
    }

    QString note() const override {
        for (const Side& side : sides_)
            if (const QString& error = side.series.feed().error(); !error.isEmpty())
                return tr("Reading stopped: %1.").arg(error);
        const double perPixel =
            panel_->width() > 0 ? const_cast<CompareView*>(this)->canvas().visibleX().size() / panel_->width() : 0;
        const auto& feed = sides_[0].series.feed();
        const auto& tiles = sides_[0].series.columns().tiles();
        return sentences({aggregationNote(perPixel, tr("the line keeps the extremes")),
                          tiles.hasPreview() ? previewNote(tiles.stride()) : QString(),
                          tr("Averages of locality leave out the first decode step and steps that open a block."),
                          loadingNote(feed.loading(), feed.loaded(), feed.total()), healthNote()});
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
        if (!verdictText().isEmpty()) {
            painter->setPen(theme.text);
            const QRect place(area.left(), y, area.width(), area.height());
            QRect used;
            painter->drawText(place, Qt::AlignLeft | Qt::TextWordWrap, verdictText(), &used);
            y += used.height() + 6;
        }
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
        Side(Workspace& workspace, QObject* context, const char* slot) : series(workspace, context, slot) {}
        void clear() {
            series.clear();
            summary.reset();
        }
        StepSeries series;
        std::optional<RunSummary> summary;
        CurvePlottable* curve = nullptr;
    };

    static QString plain(double value) { return std::isnan(value) ? QString() : QString::number(value, 'g', 10); }

    void start(Side& side, const OpenRun& open) {
        StepRequest request;
        request.numbers = StepNumbers::Transfers;
        side.series.start(open.key, request, [this] { present(); });
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
                    if (s == 0) summaryTimer_.answered();
                    sides_[s].summary = std::move(summary);
                    present();
                });
        }
    }

    bool shows(const RunKey& a, const RunKey& b) const {
        const OpenRun *current = workspace().current(), *compare = workspace().compare();
        return current && compare && current->key == a && compare->key == b;
    }

    /// Reads one run, then the other, and judges on the second one's worker. Only of finished runs: a verdict on the
    /// beginning of a run would change with every look.
    void askVerdict() {
        const OpenRun *a = workspace().current(), *b = workspace().compare();
        if (!a || !b || a->live || b->live) return showVerdict();
        workspace().query<std::shared_ptr<const RunSample>>(
            this, "compare sample", a->key,
            [runId = a->key.runId](TraceReader& reader) {
                return std::make_shared<const RunSample>(loadRunSample(reader, runId));
            },
            [this, a = a->key, b = b->key](std::shared_ptr<const RunSample> sample) {
                if (!shows(a, b)) return;
                workspace().query<Judgement>(
                    this, "compare verdict", b,
                    [sample, runId = b.runId](TraceReader& reader) {
                        return judge(*sample, loadRunSample(reader, runId));
                    },
                    [this, a, b](Judgement judgement) {
                        if (!shows(a, b)) return;
                        judgement_ = std::move(judgement);
                        showVerdict();
                        fillTable();
                    });
            });
    }

    QString verdictText() const {
        const OpenRun *a = workspace().current(), *b = workspace().compare();
        if (!a || !b) return {};
        if (a->live || b->live) return tr("The verdict comes when both runs have ended.");
        if (!judgement_) return {};
        QStringList reasons;
        for (const Obstacle& obstacle : judgement_->obstacles) reasons << QString::fromStdString(obstacle.what);
        if (!judgement_->comparison) return tr("Not comparable: %1.").arg(reasons.join(QStringLiteral("; ")));
        const QString sentence = QString::fromStdString(judgement_->comparison->sentence) + QLatin1Char('.');
        return reasons.isEmpty() ? sentence
                                 : sentence + QLatin1Char(' ') +
                                       tr("With a reservation: %1.").arg(reasons.join(QStringLiteral("; ")));
    }

    void showVerdict() {
        const QString text = verdictText();
        verdict_->setText(text);
        verdict_->setVisible(!text.isEmpty());
        QStringList notes;
        if (judgement_ && judgement_->comparison) {
            const Comparison& c = *judgement_->comparison;
            notes << tr("The median, over %1 steps that both runs have, of B's time over A's in the same step. Left "
                        "out: the "
                        "first decode step and %2 that open a block.")
                         .arg(c.steps)
                         .arg(c.opening);
            for (const std::string& note : c.notes) notes << QString::fromStdString(note) + QLatin1Char('.');
        }
        verdict_->setToolTip(notes.isEmpty() ? QString()
                                             : QStringLiteral("<p>") +
                                                   notes.join(QStringLiteral("\n"))
                                                       .toHtmlEscaped()
                                                       .replace(QLatin1Char('\n'), QStringLiteral("</p><p>")) +
                                                   QStringLiteral("</p>"));
    }

    std::vector<KeyNumber> allNumbers() const {
        std::vector<KeyNumber> numbers = numbers_;
        if (judgement_ && judgement_->comparison)
            for (KeyNumber& number : componentNumbers(*judgement_->comparison)) numbers.push_back(std::move(number));
        return numbers;
    }

    void present() {
        const OpenRun *a = workspace().current(), *b = workspace().compare();
        if (!a || !b) return;
        for (const Side& side : sides_) {
            if (!side.series.feed().error().isEmpty() && side.series.columns().empty()) {
                table_->hide();
                verdict_->hide();
                showEmpty(tr("The trace cannot be read here"), side.series.feed().error());
                return;
            }
        }
        if (sides_[0].summary && sides_[1].summary) {
            numbers_ = keyNumbers(*sides_[0].summary, *sides_[1].summary);
            fillTable();
            table_->show();
        }
        double low = 1;
        int last = 1;
        for (const Side& side : sides_) {
            bool found = false;
            const QCPRange values = side.curve->getValueRange(found, QCP::sdBoth, {});
            if (found) low = std::min(low, values.lower);
            last = std::max(last, side.series.columns().steps() - 1);
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
        const std::vector<KeyNumber> numbers = allNumbers();
        table_->setRowCount(int(numbers.size()));
        for (int row = 0; row < table_->rowCount(); ++row) {
            const KeyNumber& number = numbers[std::size_t(row)];
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
    QLabel* verdict_ = nullptr;
    QTableWidget* table_ = nullptr;
    GrowthTimer summaryTimer_{kRefreshMs, [this] {
                                  askSummaries();
                                  askVerdict();
                              }};
    LegendStrip* legend_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    std::vector<KeyNumber> numbers_;
    std::optional<Judgement> judgement_;
};

} // namespace

View* makeCompareSummary(Workspace& workspace, QWidget* parent) { return new CompareView(workspace, parent); }

} // namespace kvscope::ui

#include "compare_view.moc"
