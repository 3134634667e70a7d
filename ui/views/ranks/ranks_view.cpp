#include "ui/views/ranks/ranks_view.h"

#include "base/error.h"
#include "core/trace/run_meta.h"
#include "profiler/merge/rank_words.h"
#include "ui/frame/run_names.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/colour_bar.h"
#include "ui/plots/margins.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/headline.h"
#include "ui/views/heat_choices.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"

#include <QPainter>
#include <QSignalBlocker>
#include <QVBoxLayout>

#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <string>

namespace kvscope::ui {

namespace {

constexpr int kAtOnce = 4096; // steps that are written in one piece

Unit unitOf(const RankNumberInfo& info) {
    const std::string_view unit = info.unit;
    return unit == "ns" ? Unit::Nanoseconds : unit == "B" ? Unit::Bytes : unit.empty() ? Unit::Fraction : Unit::Count;
}

QFont groupFont() { return headlineFont(1.25); }

/// Text of the profiler as people read it on the screen.
QString onScreen(const std::string& text) {
    return QString::fromStdString(text).replace(QStringLiteral(" us"), QStringLiteral(" µs"));
}

bool isRecorded(const RankSteps& steps, int step, int row) {
    return std::ranges::any_of(
        rankNumbers(), [&](const RankNumberInfo& number) { return !std::isnan(steps.at(number.number, step, row)); });
}

QString withStop(const QString& sentence) { return sentence.isEmpty() ? sentence : sentence + QLatin1Char('.'); }

} // namespace

RanksView::RanksView(Workspace& workspace, QWidget* parent)
    : PlotView(workspace, tr("Ranks"), parent), timer_(GrowthTimer::kJudgeMs, [this] { ask(); }) {
    number_ = addPicker(QStringLiteral("rankNumber"), tr("Show"), tr("What the colour of a cell shows"));
    aggregate_ =
        addPicker(QStringLiteral("aggregate"), tr("Zoomed out"), tr("What a pixel shows that covers several steps"));
    addAggregates(*aggregate_);
    range_ = addPicker(QStringLiteral("colourRange"), tr("Colours"), tr("From which to which value the colours go"));
    addColourRanges(*range_);
    buildHeader();
    buildPlot();
    connect(number_, &QComboBox::currentIndexChanged, this, &RanksView::fillCells);
    connect(aggregate_, &QComboBox::currentIndexChanged, this, [this](int index) {
        heat_->setAggregate(Aggregate(std::max(index, 0)));
        replot();
    });
    connect(range_, &QComboBox::currentIndexChanged, this, [this] {
        chooseColours();
        replot();
    });
}

void RanksView::buildHeader() {
    header_ = new QWidget(this);
    header_->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Maximum);
    auto* column = new QVBoxLayout(header_);
    column->setContentsMargins(0, 0, 0, 2);
    column->setSpacing(3);
    headline_ = new QLabel;
    headline_->setObjectName(QStringLiteral("rankHeadline"));
    problems_ = new InlineMessage(nullptr, false);
    problems_->setObjectName(QStringLiteral("rankProblems"));
    clocks_ = new MutedLabel;
    clocks_->setObjectName(QStringLiteral("rankClocks"));
    layout_ = new MutedLabel;
    layout_->setObjectName(QStringLiteral("rankLayout"));
    for (QLabel* label : {headline_, static_cast<QLabel*>(clocks_), static_cast<QLabel*>(layout_)}) {
        label->setTextFormat(Qt::PlainText);
        label->setWordWrap(true);
        label->setTextInteractionFlags(Qt::TextSelectableByMouse);
    }
    column->addWidget(headline_);
    column->addWidget(problems_);
    column->addWidget(clocks_);
    column->addWidget(layout_);
    addAbovePlot(header_);
    header_->hide();
}

void RanksView::buildPlot() {
    PlotCanvas& plot = canvas();
    panel_ = plot.addPanel(true);
    panel_->axis(QCPAxis::atLeft)->setRangeReversed(true);       // rank 0 on top
    setIntegerAxis(panel_->axis(QCPAxis::atBottom), tr("Step")); // take() says what step 0 is
    heat_ = new HeatPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft), cells_);
    margins_ = new Margins(
        plot, panel_, [this](int) { return heat_->columnMeans(); }, this);
    connect(margins_, &Margins::rowClicked, this, [this](int row) { goTo(row, workspace().cursor().step); });
    bar_ = addColourBar(plot, margins_->layoutRow(), 2, panel_);
    plot.applyTheme(Theme::current());
    panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
    themed(Theme::current());
}

RanksView::Answer RanksView::readFor(TraceReader& reader, const OpenRun& run) {
    const std::vector<RunRow> runs = reader.runs();
    for (const RankGroup& group : rankGroups(runs)) {
        const bool mine = std::any_of(group.ranks.begin(), group.ranks.end(),
                                      [&](const RankedRun& ranked) { return runs[ranked.run].runId == run.key.runId; });
        if (!mine) continue;
        auto read = std::make_shared<Read>();
        read->of = run.key;
        read->created = run.row.createdUtc;
        read->group = QString::fromStdString(group.name);
        try {
            read->steps = readRankSteps(reader, runs, group);
        } catch (const Error& error) {
            if (error.kind != ErrorKind::Unsupported) throw;
            return {nullptr, QString::fromStdString(oneLine(error))};
        }
        read->headline = onScreen(lateSentence(read->steps));
        if (group.ranks.size() == 1)
            read->headline = QObject::tr("Only rank %1 is in this trace: open the folder of all ranks to see them "
                                         "side by side")
                                 .arg(group.ranks.front().rank);
        else if (read->headline.isEmpty())
            read->headline = QObject::tr("How long the steps of the ranks took is not known");
        read->clocks = onScreen(clockSentence(runs, group));
        if (group.ranks.size() > 1) read->layout = onScreen(layoutSentence(group));
        for (const std::string& problem : rankProblems(runs, group)) read->problems << onScreen(problem);
        for (const RankedRun& ranked : group.ranks)
            read->modelled = read->modelled || runs[ranked.run].timing != Timing::Measured;
        return {std::move(read), {}};
    }
    return {};
}

bool RanksView::isOfShownGroup() const {
    return read_ && run() && run()->key.path == read_->of.path && read_->steps.rowOf(run()->key.runId).has_value();
}

void RanksView::runChanged() {
    if (isOfShownGroup() && (run()->key.runId != read_->of.runId || run()->row.createdUtc == read_->created)) {
        showEmpty({}, {});
        placeMark();
        return; // another rank of what is shown
    }
    read_.reset();
    cells_.reset(0);
    header_->hide();
    if (showEmptyWithoutRun(tr("This view shows the ranks of one run side by side, step by step: which rank is late, "
                               "and whether it misses more blocks than the others.")))
        return;
    if (run()->row.metaOr(run_meta::kRank).empty()) {
        showEmpty(tr("This run has no rank"),
                  tr("Ranks are the processes of one run, which record a trace each. Open the folder of their traces "
                     "with File > Open Folder: it offers to show the ranks as one."),
                  {windowAction(*this, "openFolder", tr("Open Folder…")), showView("locality")});
        return;
    }
    showReading();
    ask();
}

void RanksView::runGrew() {
    if (run()) timer_.grew(!isGrowing(*run()));
}

void RanksView::ask() {
    if (!run()) return;
    workspace().query<Answer>(
        this, "ranks", run()->key, [open = *run()](TraceReader& reader) { return readFor(reader, open); },
        [this](Answer answer) {
            timer_.answered();
            take(std::move(answer));
        });
}

void RanksView::take(Answer answer) {
    read_ = std::move(answer.read);
    if (!read_ || read_->steps.steps == 0) {
        read_.reset();
        header_->hide();
        showEmpty(tr("There is nothing to show of the ranks"),
                  answer.problem.isEmpty() ? tr("No step of a rank was recorded.") : withStop(answer.problem));
        return;
    }
    fillNumbers();
    QStringList names;
    for (std::size_t row = 0; row < read_->steps.ranks.size(); ++row)
        names << (read_->steps.runs[row] > 0 ? QString::number(read_->steps.ranks[row])
                                             : tr("%1 (missing)").arg(read_->steps.ranks[row]));
    setNamedAxis(panel_->axis(QCPAxis::atLeft), tr("Rank"), names);
    setIntegerAxis(panel_->axis(QCPAxis::atBottom), stepTitle(run()->row));
    showHeader();
    showEmpty({}, {});
    canvas().setMinimumSpan(2);
    canvas().setFullX({-0.5, read_->steps.steps - 0.5});
    canvas().setFullY(0, {-0.5, double(names.size()) - 0.5});
    fillCells();
}

void RanksView::showHeader() {
    headline_->setText(withStop(read_->headline));
    headline_->setFont(groupFont());
    if (read_->problems.isEmpty())
        problems_->clear();
    else
        problems_->show(InlineMessage::Kind::Warning, withStop(read_->problems.join(QStringLiteral(".\n"))));
    clocks_->setText(withStop(read_->clocks));
    clocks_->setVisible(!read_->clocks.isEmpty());
    QString layout = read_->layout;
    if (!layout.isEmpty()) layout[0] = layout[0].toUpper();
    layout_->setText(withStop(layout));
    layout_->setVisible(!layout.isEmpty());
    header_->show();
}

/// The picker has what some rank knows, and keeps its choice.
void RanksView::fillNumbers() {
    const QSignalBlocker quiet(number_);
    const QString chosen = number_->currentData().toString();
    number_->clear();
    for (const RankNumberInfo& info : rankNumbers()) {
        if (!read_->steps.knows(info.number)) continue;
        number_->addItem(tr(info.title), QString::fromLatin1(info.id));
        number_->setItemData(number_->count() - 1, tr(info.help), Qt::ToolTipRole);
    }
    number_->setCurrentIndex(std::max(number_->findData(chosen), 0));
}

const RankNumberInfo& RanksView::info() const {
    const QString id = number_->currentData().toString();
    for (const RankNumberInfo& info : rankNumbers())
        if (id == QLatin1String(info.id)) return info;
    return rankNumbers().front();
}

void RanksView::fillCells() {
    if (!read_) return;
    const RankSteps& steps = read_->steps;
    cells_.reset(int(steps.ranks.size()));
    const std::vector<float>& values = steps.values[info().number];
    if (values.empty())
        cells_.append(std::vector<float>(steps.extents().size(), std::numeric_limits<float>::quiet_NaN()));
    else
        cells_.append(values);
    chooseColours();
    summariseRanks();
    placeMark();
    replot();
}

void RanksView::chooseColours() {
    if (cells_.empty()) return;
    const RankNumberInfo& shown = info();
    const Unit unit = unitOf(shown);
    MetricInfo metric{Metric::HitRate, shown.id, shown.title, shown.unit, shown.help, 0, 1};
    if (unit != Unit::Fraction) metric.fixedMax = std::numeric_limits<double>::quiet_NaN();
    scale_ = colourScale(cells_, metric, ColourRange(std::max(range_->currentIndex(), 0)));
    const QCPRange colours(scale_.low, scale_.high);
    showColourRange(colours, unit, *bar_, *margins_);
    setUnitAxis(bar_->axis(), unit == Unit::Count ? tr("%1 (blocks)").arg(tr(shown.title)) : tr(shown.title), unit);
    heat_->setColours(colours, Theme::current().undefinedCell);
}

/// The bars: means of the decode steps in view.
void RanksView::summariseRanks() {
    if (cells_.empty()) return;
    const QCPRange visible = canvas().visibleX();
    const int first = std::clamp(int(std::ceil(visible.lower)), std::min(1, cells_.steps() - 1), cells_.steps());
    const int last = std::clamp(int(std::floor(visible.upper)) + 1, first, cells_.steps());
    std::vector<CellStats> stats(Elements(cells_.rows()));
    cells_.aggregate(first, last, stats);
    std::vector<float> means;
    for (const CellStats& row : stats) means.push_back(row.value(Aggregate::Mean));
    margins_->rows().setValues(std::move(means));
}

void RanksView::cursorMoved() { placeMark(); }

void RanksView::placeMark() {
    CursorMark mark;
    if (read_ && run()) {
        mark = stepMark();
        if (const auto row = read_->steps.rowOf(run()->key.runId)) mark.y = *row;
    }
    showMark(mark, {panel_}, {canvas().panels()[margins_->stepPanel()]});
}

void RanksView::themed(const Theme& theme) {
    fillColourBar(*bar_, Theme::sequential);
    margins_->applyTheme(theme);
    themeColourBar(*bar_, *panel_, theme);
    headline_->setFont(groupFont());
    heat_->setColours({scale_.low, scale_.high}, theme.undefinedCell);
}

void RanksView::goTo(int row, int step) {
    if (!read_ || row < 0 || row >= int(read_->steps.runs.size())) return;
    Cursor cursor = workspace().cursor();
    if (const int runId = read_->steps.runs[row]; runId > 0) workspace().setCurrent({read_->of.path, runId});
    cursor.step = step;
    workspace().setCursor(cursor);
}

void RanksView::clickedAt(int panel, QPointF at) {
    const int step = int(std::lround(at.x())), row = int(std::lround(at.y()));
    if (!read_ || step < 0 || step >= read_->steps.steps) return;
    if (panel == 0) return goTo(row, step);
    Cursor cursor = workspace().cursor();
    cursor.step = step;
    workspace().setCursor(cursor);
}

void RanksView::moveCursor(int steps, int layers) {
    if (!read_ || !run()) return;
    const int at = read_->steps.rowOf(run()->key.runId).value_or(0), rows = int(read_->steps.runs.size());
    int row = at;
    for (int next = at + layers; layers != 0 && next >= 0 && next < rows; next += layers)
        if (read_->steps.runs[next] > 0) { // a missing rank is passed over
            row = next;
            break;
        }
    goTo(row, workspace().cursor().step + steps);
}

QString RanksView::value(const RankNumberInfo& info, float value) const {
    const QString text = formatValue(unitOf(info), double(value));
    return unitOf(info) == Unit::Count && !std::isnan(value) ? tr("%1 blocks").arg(text) : text;
}

QString RanksView::rankName(int row) const {
    const int rank = read_->steps.ranks[row];
    return read_->steps.runs[row] > 0 ? tr("Rank %1").arg(rank) : tr("Rank %1, missing").arg(rank);
}

QString RanksView::tooltipAt(int panel, QPointF at) {
    const int step = int(std::lround(at.x())), row = int(std::lround(at.y()));
    if (!read_ || step < 0 || step >= read_->steps.steps) return {};
    const RankSteps& steps = read_->steps;
    const auto extremes = [&](const RankNumberInfo& number) { // "lowest: rank 0, 10.1 ms; highest: rank 2, 12.3 ms"
        int low = -1, high = -1;
        for (int r = 0; r < int(steps.ranks.size()); ++r) {
            const float own = steps.at(number.number, step, r);
            if (std::isnan(own)) continue;
            if (low < 0 || own < steps.at(number.number, step, low)) low = r;
            if (high < 0 || own > steps.at(number.number, step, high)) high = r;
        }
        if (low < 0 || low == high) return QString();
        return tr("of all ranks: %1 (rank %2) to %3 (rank %4)")
            .arg(value(number, steps.at(number.number, step, low)))
            .arg(steps.ranks[low])
            .arg(value(number, steps.at(number.number, step, high)))
            .arg(steps.ranks[high]);
    };
    if (panel != 0)
        return QStringLiteral("<b>%1</b><br>%2 %3")
            .arg(stepName(run()->row, step), tr(info().title).toHtmlEscaped(), extremes(info()).toHtmlEscaped());
    if (row < 0 || row >= int(steps.ranks.size())) return {};
    QString html = QStringLiteral("<b>%1, %2</b>").arg(rankName(row), stepName(run()->row, step));
    if (steps.runs[row] == 0) return html + tr("<br>No trace of this rank was merged.");
    for (const RankNumberInfo& number : rankNumbers()) {
        if (!steps.knows(number.number)) continue;
        const float own = steps.at(number.number, step, row);
        html += QStringLiteral("<br>%1: %2")
                    .arg(tr(number.title).toHtmlEscaped(),
                         std::isnan(own) ? tr("not known in this step") : value(number, own).toHtmlEscaped());
    }
    if (const QString all = extremes(info()); !all.isEmpty())
        html += QStringLiteral("<br>%1 %2").arg(tr(info().title).toHtmlEscaped(), all.toHtmlEscaped());
    return html;
}

QString RanksView::note() const {
    if (!read_) return healthNote();
    QStringList unknown;
    for (const RankNumberInfo& number : rankNumbers())
        if (!read_->steps.knows(number.number)) unknown << tr(number.title).toLower();
    return sentences(
        {tr("A click shows that rank in all views."),
         unknown.isEmpty() ? QString() : tr("Not known: %1.").arg(unknown.join(QStringLiteral(", "))),
         read_->modelled && info().number == RankNumber::Exposed ? tr("Exposed time is modelled.") : QString(),
         aggregationNote(heat_->stepsPerPixel(), aggregate_->currentText().toLower()), healthNote()});
}

int RanksView::drawAbove(QPainter* painter, QRect area) const {
    if (!read_) return 0;
    const Theme& theme = Theme::current();
    Paragraphs paragraphs(painter, area);
    paragraphs.add(headline_->text(), groupFont(), theme.text);
    paragraphs.add(problems_->text(), theme.warning);
    paragraphs.add(clocks_->text(), theme.mutedText);
    paragraphs.add(layout_->text(), theme.mutedText);
    return paragraphs.height();
}

QString RanksView::pictureTitle() const {
    return read_ ? tr("%1, rank by step: %2").arg(number_->currentText(), read_->group) : PlotView::pictureTitle();
}

NumberWriter RanksView::numbers() const {
    if (!read_) return {};
    const QCPRange visible = const_cast<RanksView*>(this)->canvas().visibleX();
    const int first = std::max(0, int(std::ceil(visible.lower)));
    const int last = std::min(read_->steps.steps - 1, int(std::floor(visible.upper)));
    return [read = read_, first, last](NumberSink& sink) {
        const RankSteps& steps = read->steps;
        sink.add("step,rank,run_id,step_ns,hit_rate,misses,h2d_bytes,exposed_ns,wait_ns\n");
        for (int from = first; from <= last; from += kAtOnce) {
            std::string lines;
            for (int step = from; step <= std::min(from + kAtOnce - 1, last); ++step)
                for (int row = 0; row < int(steps.ranks.size()); ++row) {
                    // A missing rank has no numbers, and a number of a step need not be one of the rank's own.
                    if (steps.runs[row] == 0 || !isRecorded(steps, step, row)) continue;
                    fmt::format_to(std::back_inserter(lines), "{},{},{}", step, steps.ranks[row], steps.runs[row]);
                    for (const RankNumberInfo& number : rankNumbers()) {
                        const float value = steps.at(number.number, step, row);
                        lines += ',';
                        if (!std::isnan(value)) fmt::format_to(std::back_inserter(lines), "{:.9g}", value);
                    }
                    lines += '\n';
                }
            if (!lines.empty()) sink.add(lines);
            sink.progress(double(from - first) / double(last - first + 1));
        }
    };
}

QString RanksView::sql() const {
    if (!read_) return {};
    QStringList runs;
    for (const int run : read_->steps.runs)
        if (run > 0) runs << QString::number(run);
    return QStringLiteral(
               "SELECT m.value AS rank, s.step, s.duration_ns, 1.0 * s.hits / nullif(s.hits + s.misses, 0) AS "
               "hit_rate,\n       s.misses, s.h2d_bytes, s.exposed_ns\nFROM v_step s JOIN run_meta m ON "
               "m.run_id = s.run_id AND m.key = 'rank'\nWHERE s.run_id IN (%1) ORDER BY s.step, s.run_id")
        .arg(runs.join(QStringLiteral(", ")));
}

View* makeRanksView(Workspace& workspace, QWidget* parent) { return new RanksView(workspace, parent); }

} // namespace kvscope::ui
