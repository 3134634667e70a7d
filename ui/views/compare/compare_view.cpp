// The summary page of Compare: the verdict on every run against A, their key numbers with differences, and the locality
// curves of all of them over the steps. Of runs that grow it is the verdict so far.
#include "base/indexed.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/height_in_sight.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/curve_plottable.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/compare/compare_pages.h"
#include "ui/views/compare/compare_ways.h"
#include "ui/views/key_numbers.h"
#include "ui/views/run_text.h"
#include "ui/views/sample_feed.h"
#include "ui/views/step_series.h"
#include "ui/views/tile_text.h"
#include "ui/widgets/comparison_table.h"
#include "ui/widgets/loading_strip.h"

#include <QLabel>
#include <QPainter>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>

namespace kvscope::ui {

namespace {

constexpr int kRoomForIntervals = 760; // px of width, from which the table of two runs has room for intervals
constexpr int kJudgeMs = 1000;         // runs that grow are judged again this often at most

/// The verdict on A and one other run.
struct Judgement {
    std::vector<Obstacle> obstacles;
    std::optional<Comparison> comparison; // none: an obstacle cannot be ignored
    std::vector<KeyNumber> numbers;
    QString facts; // bytes and answer
};

Judgement judge(const RunSample& a, const RunSample& b, const QString& letter) {
    const std::span<const RunSample> left(&a, 1), right(&b, 1);
    Judgement judgement{findObstacles(left, right), {}, keyNumbers(a, b), factsText(a, b, letter)};
    if (!std::all_of(judgement.obstacles.begin(), judgement.obstacles.end(),
                     [](const Obstacle& o) { return o.mayBeIgnored; }))
        return judgement;
    CompareOptions options;
    options.other = letter.toStdString();
    judgement.comparison = compareRuns(left, right, options);
    for (KeyNumber& number : componentNumbers(*judgement.comparison)) judgement.numbers.push_back(std::move(number));
    return judgement;
}

class CompareView final : public PlotView {
    Q_OBJECT
public:
    CompareView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Compare"), parent), samples_(workspace, this, "compare samples") {
        strip_ = new LoadingStrip(this);
        addAbovePlot(strip_);
        strip_->steer(samples_, [this] { strip_->show(samples_); });
        verdict_ = new QLabel(this);
        verdict_->setTextFormat(Qt::PlainText);
        verdict_->setObjectName(QStringLiteral("verdict"));
        verdict_->setWordWrap(true);
        verdict_->setTextInteractionFlags(Qt::TextSelectableByMouse);
        verdict_->setContentsMargins(4, 4, 4, 4);
        addAbovePlot(verdict_);
        table_ = new ComparisonTable(this);
        table_->setObjectName(QStringLiteral("keyNumbers"));
        table_->setAccessibleName(tr("Key numbers of the compared runs"));
        addAbovePlot(table_);
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        panel_ = canvas().addPanel(true);
        setIntegerAxis(panel_->axis(QCPAxis::atBottom), tr("Decode step"));
        panel_->axis(QCPAxis::atLeft)->setLabel(tr("Locality, all heads"));
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
        connect(&workspace, &Workspace::runsChanged, this, [this] { // a live run gets its name when it is described
            if (run() && !this->workspace().compare() && namesOfRuns() != namesShown_) runChanged();
        });
    }

    QString exportCsv() const override {
        if (onlyGlanced()) return {};
        QString csv = QStringLiteral("quantity,unit,a,b,difference,low,high,run\n");
        bool any = false;
        for (std::size_t i = 0; i < judgements_.size(); ++i)
            for (const KeyNumber& number : judgements_[i].numbers) {
                csv += QStringLiteral("\"%1\",%2,%3,%4,%5,%6,%7,\"%8\"\n")
                           .arg(number.title, number.unitName, plain(number.a), plain(number.b),
                                plain(number.b - number.a), plain(number.low), plain(number.high),
                                letteredName(i + 1, workspace()).replace(QLatin1Char('"'), QLatin1String("\"\"")));
                any = true;
            }
        return any ? csv : QString();
    }

    NumberWriter numbers() const override { return onlyGlanced() ? refusedFirstLook() : numbersOf(exportCsv()); }

    QString sql() const override { return run() && workspace().compare() ? stepLocalitySql(sqlScope()) : QString(); }

protected:
    void runChanged() override {
        canvas().clearPlottables();
        sides_.clear();
        judgements_.clear();
        samples_.forget();
        table_->hide();
        verdict_->hide();
        strip_->show(samples_);
        if (showEmptyWithoutRun(tr("This view puts the key numbers and locality curves of two or more runs side by "
                                   "side.")))
            return;
        if (!workspace().compare()) {
            namesShown_ = namesOfRuns();
            showEmpty(
                tr("Choose a second run to compare with"),
                tr("The current run is “%1”. Open another trace or record another run, then mark it for comparison in "
                   "the list of runs; all views then overlay both.")
                    .arg(runName(*run(), workspace().runs())),
                waysToCompare(*this, workspace()));
            return;
        }
        if (const QString missing = waitsFor(workspace()); !missing.isEmpty()) {
            showEmpty(tr("Waiting for the first decode step"),
                      tr("%1. The comparison appears as it is recorded.").arg(missing), {stopRun()});
            return;
        }
        showEmpty({}, {});
        const auto runs = workspace().sides();
        for (std::size_t place = 0; place < runs.size(); ++place) sides_.push_back(std::make_unique<Side>(workspace()));
        for (std::size_t place = runs.size(); place-- > 0;) start(*sides_[place], *runs[place]); // A is drawn last
        ask();
        themed(Theme::current());
        cursorMoved();
    }

    void resizeEvent(QResizeEvent* event) override {
        PlotView::resizeEvent(event);
        if (intervals_ != hasRoomForIntervals())
            fillTable();
        else
            fitTable();
    }

    void visibleStepsChanged() override {
        const QCPRange visible = canvas().visibleX();
        for (const auto& side : sides_) side->series.prefer(visible.lower, visible.upper);
    }

    void runGrew() override {
        if (!run() || !workspace().compare()) return;
        if (sides_.empty()) return runChanged(); // the view waited for a run's description
        for (const auto& side : sides_) side->series.advance();
        again_.grew(!someGrow(workspace()));
    }

    void cursorMoved() override { showMark(stepMark(), {panel_}); }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        for (std::size_t place = 0; place < sides_.size(); ++place)
            sides_[place]->curve->setPen(QPen(runColour(place), 1));
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
        for (std::size_t place = 0; place < sides_.size(); ++place) {
            const double locality = sides_[place]->curve->value(step);
            if (std::isnan(locality)) continue;
            html += tr("<br>%1: locality <b>%2</b>")
                        .arg(letteredName(place, workspace()).toHtmlEscaped(), formatValue(Unit::Fraction, locality));
        }
        if (html.isEmpty()) return {};
        return QStringLiteral("<b>%1</b>").arg(stepName(run()->row, step)) + html +
               tr("<p>Locality: the share of the blocks selected now that the step before had selected too.</p>");
    }

    QString note() const override {
        if (sides_.empty()) return healthNote();
        for (const auto& side : sides_)
            if (const QString& error = side->series.feed().error(); !error.isEmpty())
                return tr("Reading stopped: %1.").arg(error);
        const double perPixel =
            panel_->width() > 0 ? const_cast<CompareView*>(this)->canvas().visibleX().size() / panel_->width() : 0;
        const auto& feed = sides_[0]->series.feed();
        const auto& tiles = sides_[0]->series.columns().tiles();
        return sentences({soFarNote(workspace()), aggregationNote(perPixel, tr("the line keeps the extremes")),
                          tiles.hasPreview() ? previewNote(tiles.stride()) : QString(),
                          tr("Averages of locality leave out the first decode step and steps that open a block."),
                          coldSteps() == ColdSteps::Counted ? tr("Rates and means count cold steps.")
                                                            : tr("Rates and means leave cold steps out."),
                          loadingNote(feed.loading(), feed.loaded(), feed.total()), healthNote()});
    }

    QString pictureTitle() const override {
        QStringList names;
        for (std::size_t place = 0; place < sides_.size(); ++place) names << letteredName(place, workspace());
        return names.isEmpty() ? PlotView::pictureTitle() : tr("Compare %1").arg(names.join(QStringLiteral(", ")));
    }

    int drawAbove(QPainter* painter, QRect area) const override {
        const auto rows = tableRows(kRowsInPicture);
        if (rows.empty()) return 0;
        const QFontMetrics metrics(painter->font());
        const QStringList headers = headerTexts();
        const int line = metrics.height() + 6, first = area.width() / 4;
        const int column = (area.width() - first) / int(headers.size() - 1);
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
            const QRect place = index == 0 ? QRect(area.left(), y, first - 8, line)
                                           : QRect(area.left() + first + (index - 1) * column, y, column - 8, line);
            painter->drawText(place, int((index == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter),
                              metrics.elidedText(text, Qt::ElideRight, place.width()));
        };
        for (int i = 0; i < int(headers.size()); ++i) cell(i, headers[i], theme.mutedText);
        y += line;
        painter->setPen(QPen(theme.border, 1));
        painter->drawLine(area.left(), y, area.right(), y);
        for (const TableRow& row : rows) {
            for (int i = 0; i < int(row.cells.size()); ++i)
                cell(i, row.cells[std::size_t(i)].text, row.cells[std::size_t(i)].colour);
            y += line;
        }
        return y - area.top() + 12;
    }

private:
    static constexpr int kRowsInPicture = 13; // without the stages, which the breakdown page has

    struct Side {
        explicit Side(Workspace& workspace) : series(workspace, &context, "compare curve") {}
        QObject context; // answers for a side that is gone are dropped with it
        StepSeries series;
        CurvePlottable* curve = nullptr;
    };
    struct TableCell {
        QString text;
        QColor colour;
        QString whole{}; // where the text leaves something out
    };
    struct TableRow {
        QString title, help;
        std::vector<TableCell> cells; // title, A, then value and difference of every other run
    };

    QStringList namesOfRuns() const {
        QStringList names;
        for (const OpenRun& open : workspace().runs()) names << runName(open, workspace().runs());
        return names;
    }

    static QString plain(double value) { return std::isnan(value) ? QString() : QString::number(value, 'g', 10); }

    void start(Side& side, const OpenRun& open) {
        StepRequest request;
        request.numbers = StepNumbers::Transfers;
        side.curve = new CurvePlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft),
                                        side.series.columns(), int(TransferNumber::Locality));
        side.series.start(open.key, request, [this] { presentCurves(); });
    }

    void ask() {
        if (samples_.paused()) return again_.answered();
        std::vector<RunKey> keys;
        for (const OpenRun* open : workspace().sides()) keys.push_back(open->key);
        if (keys.size() < 2) return again_.answered();
        samples_.ask(
            keys,
            [this](const std::vector<SampleFeed::Sample>& samples, SampleFeed::Part part) {
                askVerdicts(samples, part);
            },
            [this](std::size_t, const QString& sentence) {
                again_.answered();
                table_->hide();
                verdict_->hide();
                showEmpty(tr("The trace cannot be read here"), sentence);
                strip_->show(samples_);
            },
            [this] { strip_->show(samples_); });
        strip_->show(samples_);
    }

    void askVerdicts(const std::vector<SampleFeed::Sample>& samples, SampleFeed::Part part) {
        strip_->show(samples_);
        std::vector<RunKey> keys;
        for (const OpenRun* open : workspace().sides()) keys.push_back(open->key);
        workspace().query<std::vector<Judgement>>(
            this, "compare verdict", keys.front(),
            [samples](TraceReader&) {
                std::vector<Judgement> judgements;
                for (std::size_t place = 1; place < samples.size(); ++place)
                    judgements.push_back(judge(*samples[0], *samples[place], runLetter(place)));
                return judgements;
            },
            [this, keys, part](std::vector<Judgement> judgements) {
                if (part == SampleFeed::Part::All) again_.answered();
                std::vector<RunKey> now;
                for (const OpenRun* open : workspace().sides()) now.push_back(open->key);
                if (now != keys) return; // others are compared by now
                judgements_ = std::move(judgements);
                judged_ = part;
                showEmpty({}, {});
                showVerdict();
                table_->show(); // its height depends on what is beside it
                fillTable();
                updateNote();
            });
    }

    bool onlyGlanced() const { return judged_ == SampleFeed::Part::Glance && !judgements_.empty(); }

    QString verdictText() const {
        QStringList lines;
        if (const QString soFar = soFarNote(workspace()); !soFar.isEmpty() && !judgements_.empty()) lines << soFar;
        if (onlyGlanced() && judgements_.front().comparison) lines << glanceNote(judgements_.front().comparison->steps);
        for (std::size_t i = 0; i < judgements_.size(); ++i) lines << verdictOf(judgements_[i], runLetter(i + 1));
        return lines.join(QLatin1Char('\n'));
    }

    QString verdictOf(const Judgement& judgement, const QString& letter) const {
        QStringList reasons;
        bool onlyForNow = true;
        for (const Obstacle& obstacle : judgement.obstacles) {
            if (obstacle.mayBeIgnored && obstacle.untilItEnds) continue; // said before
            reasons << QString::fromStdString(obstacle.what);
            if (!obstacle.mayBeIgnored) onlyForNow = onlyForNow && obstacle.untilItEnds;
        }
        const QString why = reasons.join(QStringLiteral("; "));
        if (!judgement.comparison && onlyForNow) return tr("No verdict on %1 yet: %2.").arg(letter, why);
        if (!judgement.comparison)
            return judgements_.size() == 1 ? tr("Not comparable: %1.").arg(why)
                                           : tr("%1 is not comparable: %2.").arg(letter, why);
        QString sentence = QString::fromStdString(judgement.comparison->sentence) + QLatin1Char('.');
        if (!judgement.facts.isEmpty()) sentence += QLatin1Char(' ') + judgement.facts;
        return reasons.isEmpty() ? sentence : sentence + QLatin1Char(' ') + tr("With a reservation: %1.").arg(why);
    }

    void showVerdict() {
        const QString text = verdictText();
        verdict_->setText(text);
        verdict_->setVisible(!text.isEmpty());
        QStringList notes;
        for (std::size_t i = 0; i < judgements_.size(); ++i) {
            if (!judgements_[i].comparison) continue;
            const Comparison& c = *judgements_[i].comparison;
            notes << tr("The median, over %1 steps that both runs have, of %2's time over A's in the same step. Left "
                        "out: %3 cold, %4 opening a block.")
                         .arg(formatCount(c.steps), runLetter(i + 1), formatCount(c.first),
                              formatCount(c.openingKept ? 0 : c.opening));
            for (const std::string& note : c.notes) notes << QString::fromStdString(note) + QLatin1Char('.');
        }
        verdict_->setToolTip(notes.isEmpty() ? QString()
                                             : QStringLiteral("<p>") +
                                                   notes.join(QStringLiteral("\n"))
                                                       .toHtmlEscaped()
                                                       .replace(QLatin1Char('\n'), QStringLiteral("</p><p>")) +
                                                   QStringLiteral("</p>"));
    }

    void presentCurves() {
        if (sides_.empty()) return;
        for (const auto& side : sides_) {
            if (!side->series.feed().error().isEmpty() && side->series.columns().empty()) {
                table_->hide();
                verdict_->hide();
                showEmpty(tr("The trace cannot be read here"), side->series.feed().error());
                return;
            }
        }
        double low = 1;
        int last = 1;
        for (const auto& side : sides_) {
            bool found = false;
            const QCPRange values = side->curve->getValueRange(found, QCP::sdBoth, {});
            if (found) low = std::min(low, values.lower);
            last = std::max(last, side->series.columns().steps() - 1);
        }
        canvas().setFullX({0.5, last + 0.5});
        canvas().setFullY(0, {std::max(-0.02, std::floor(low * 10 - 0.5) / 10), 1.02});
        replot();
    }

    QStringList headerTexts() const {
        QStringList headers{tr("Decode"), letteredName(0, workspace())};
        for (std::size_t place = 1; place <= judgements_.size(); ++place)
            headers << letteredName(place, workspace()) << tr("%1 against A").arg(runLetter(place));
        return headers;
    }

    static QColor colourOf(const KeyNumber& number) {
        const Theme& theme = Theme::current();
        const int verdict = number.verdict();
        return verdict > 0 ? theme.ok : verdict < 0 ? theme.danger : theme.mutedText;
    }

    /// One row per quantity that is known of some pair.
    Numbered<TableRow> tableRows(int most = -1) const {
        const QColor text = Theme::current().text, muted = Theme::current().mutedText;
        Numbered<TableRow> rows;
        for (std::size_t i = 0; i < judgements_.size(); ++i)
            for (const KeyNumber& number : judgements_[i].numbers) {
                auto row = std::find_if(rows.begin(), rows.end(),
                                        [&](const TableRow& each) { return each.title == number.title; });
                if (row == rows.end()) {
                    row = rows.insert(rows.end(), TableRow{number.title, number.help, {}});
                    row->cells.assign(2 + 2 * judgements_.size(), {QStringLiteral("–"), muted});
                    row->cells[0] = {number.title, text};
                    row->cells[1] = {number.text(number.a), text};
                }
                row->cells[2 + 2 * i] = {number.text(number.b), text};
                // Where intervals would push a column out of sight, they are in the tooltips.
                row->cells[3 + 2 * i] = {number.difference(hasRoomForIntervals()), colourOf(number),
                                         number.difference()};
            }
        if (most >= 0 && rows.count() > most) rows.resize(most);
        return rows;
    }

    bool hasRoomForIntervals() const { return judgements_.size() == 1 && width() >= kRoomForIntervals; }

    void fillTable() {
        intervals_ = hasRoomForIntervals();
        const auto rows = tableRows();
        if (rows.empty()) return;
        table_->begin(rows.count(), headerTexts());
        for (int row = 0; row < rows.count(); ++row) {
            const TableRow& each = rows[row];
            for (int column = 0; column < int(each.cells.size()); ++column) {
                const TableCell& cell = each.cells[std::size_t(column)];
                table_->put(row, column, cell.text, cell.colour,
                            cell.whole.isEmpty() || cell.whole == cell.text
                                ? each.help
                                : cell.whole + QStringLiteral("\n") + each.help);
            }
        }
        table_->fitColumns();
        fitTable();
    }

    /// Gives the table the height that the verdict and the plot leave of what is in sight.
    void fitTable() {
        table_->fitRows(heightInSight(*this) - layout()->heightForWidth(width()) + table_->sizeHint().height());
    }

    void fillLegend() {
        QVector<Swatch> swatches;
        for (std::size_t place = 0; place < sides_.size(); ++place)
            swatches << Swatch{letteredName(place, workspace()), runColour(place), Swatch::Mark::Line, {}};
        legend_->setSwatches(swatches);
    }

    SampleFeed samples_;
    std::vector<std::unique_ptr<Side>> sides_; // A, B, C, ...
    std::vector<Judgement> judgements_;        // of B, C, ...
    SampleFeed::Part judged_ = SampleFeed::Part::All;
    bool intervals_ = false; // whether the table shows them
    QStringList namesShown_; // while a second run is asked for
    LoadingStrip* strip_ = nullptr;
    QLabel* verdict_ = nullptr;
    ComparisonTable* table_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    GrowthTimer again_{kJudgeMs, [this] { ask(); }};
};

} // namespace

View* makeCompareSummary(Workspace& workspace, QWidget* parent) { return new CompareView(workspace, parent); }

} // namespace kvscope::ui

#include "compare_view.moc"
