// Selection: the block x step mask of one (sequence, layer, KV head), coloured by origin, with misses and block text.
#include "ui/plots/legend_strip.h"
#include "ui/plots/mask_plottable.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/units.h"
#include "ui/theme.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/step_feed.h"

#include <QComboBox>
#include <QHash>
#include <QSignalBlocker>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope::ui {

namespace {

constexpr std::array<const char*, kMaskOrigins> kOriginTitles{
    QT_TRANSLATE_NOOP("SelectionView", "sink"), QT_TRANSLATE_NOOP("SelectionView", "window"),
    QT_TRANSLATE_NOOP("SelectionView", "query-aware"), QT_TRANSLATE_NOOP("SelectionView", "query-agnostic"),
    QT_TRANSLATE_NOOP("SelectionView", "token-level")};

MaskChunk chunkOf(const std::vector<SelectionRow>& rows, int first, int last) {
    MaskChunk chunk;
    std::size_t at = 0;
    std::vector<std::size_t> order;
    for (int step = first; step <= last; ++step) {
        while (at < rows.size() && rows[at].step < step) ++at;
        if (at < rows.size() && rows[at].step == step) {
            const SelectionRow& row = rows[at];
            order.resize(row.blocks.size());
            std::iota(order.begin(), order.end(), std::size_t(0));
            if (!std::is_sorted(row.blocks.begin(), row.blocks.end()))
                std::sort(order.begin(), order.end(), [&](auto a, auto b) { return row.blocks[a] < row.blocks[b]; });
            for (const std::size_t i : order) {
                if (row.blocks[i] < 0) continue;
                const int origin = i < row.origins.size() ? std::min(int(row.origins[i]), kMaskOrigins - 1) : 0;
                const bool hit = i < row.hit.size() && row.hit[i] != 0;
                chunk.cells.push_back({row.blocks[i], MaskBits((1 << origin) | (hit ? kMaskHit : kMaskMiss))});
                chunk.scores.push_back(i < row.scores.size() ? row.scores[i] : std::numeric_limits<float>::quiet_NaN());
            }
        }
        chunk.endStep();
    }
    return chunk;
}

class SelectionView final : public PlotView {
    Q_OBJECT
public:
    SelectionView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Selection"), parent), feed_(workspace, this, "selection", 2048) {
        layer_ = addPicker(QStringLiteral("layer"), tr("Layer"), tr("Layer whose selections are shown"));
        head_ = addPicker(QStringLiteral("kvHead"), tr("KV head"), tr("KV head whose selections are shown"));
        sequence_ = addPicker(QStringLiteral("sequence"), tr("Sequence"), tr("Sequence of the batch"));
        colouring_ =
            addPicker(QStringLiteral("colouring"), tr("Colour"), tr("What the colour of a selected block shows"));
        colouring_->addItem(tr("Origin, misses hatched"));
        colouring_->addItem(tr("Origin only"));
        colouring_->addItem(tr("Hits and misses"));
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        panel_ = canvas().addPanel(true);
        setIntegerAxis(panel_->axis(QCPAxis::atBottom), tr("Step (0 is the prefill)"));
        setIntegerAxis(panel_->axis(QCPAxis::atLeft), tr("KV block"));
        mask_ = new MaskPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft), data_);
        promptLine_ = new QCPItemStraightLine(&canvas());
        promptLine_->setClipAxisRect(panel_);
        for (QCPItemPosition* position : promptLine_->positions()) {
            position->setAxisRect(panel_);
            position->setAxes(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft));
        }
        promptLine_->setVisible(false);
        for (QComboBox* picker : {layer_, head_, sequence_})
            connect(picker, &QComboBox::currentIndexChanged, this, &SelectionView::setCursorFromPickers);
        connect(colouring_, &QComboBox::currentIndexChanged, this, [this] {
            applyColouring();
            replot();
        });
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (data_.steps() == 0) return {};
        const QCPRange visible = const_cast<SelectionView*>(this)->canvas().visibleX();
        QString csv = QStringLiteral("step,layer,seq,kv_head,block,origin,hit,score\n");
        const int last = std::min(data_.steps() - 1, int(std::floor(visible.upper)));
        for (int step = std::max(0, int(std::ceil(visible.lower))); step <= last; ++step) {
            for (const MaskCell& cell : data_.cells(step)) {
                const auto hit = data_.find(step, cell.block);
                const int origin = std::max(MaskPlottable::shownOrigin(cell.bits), 0);
                csv +=
                    QStringLiteral("%1,%2,%3,%4,%5,%6,%7,%8\n")
                        .arg(step)
                        .arg(shown_.layer)
                        .arg(shown_.sequence)
                        .arg(shown_.kvHead)
                        .arg(cell.block)
                        .arg(QString::fromLatin1(kOriginTitles[std::size_t(origin)]))
                        .arg((cell.bits & kMaskMiss) ? 0 : 1)
                        .arg(hit && !std::isnan(hit->score) ? QString::number(double(hit->score), 'g', 7) : QString());
            }
        }
        return csv;
    }

protected:
    void runChanged() override {
        data_.reset();
        feed_.stop();
        promptTokens_ = -1;
        texts_.clear();
        promptLine_->setVisible(false);
        if (showEmptyWithoutRun(
                tr("This view shows which KV blocks one head selected at every step, why, and which of them "
                   "had to be fetched.")))
            return;
        const RunRow& row = run()->row;
        fillPickers(row);
        shown_ = workspace().cursor();
        showPickers();
        if (row.layers <= 0) {
            showEmpty(tr("Waiting for the first step"), tr("The run has started; its first step is not recorded yet."));
            return;
        }
        if (row.level == "counters") {
            showEmpty(
                tr("Selections were not recorded"),
                tr("This run was recorded at level counters, which keeps times, hits and bytes but not the blocks. "
                   "Record with level selections or full to see them."));
            return;
        }
        panel_->axis(QCPAxis::atLeft)
            ->setLabel(row.blockSize > 0 ? tr("KV block (%1 tokens each)").arg(row.blockSize) : tr("KV block"));
        showEmpty({}, {});
        feed_.start(
            run()->key,
            [layer = shown_.layer, sequence = shown_.sequence, head = shown_.kvHead,
             steps = workspace().filter().steps](TraceReader& reader, int runId, int first, int last) {
                auto rows = reader.selections(runId, layer, sequence, head, first, last);
                if (!steps.all())
                    std::erase_if(rows, [&](const SelectionRow& each) { return !steps.contains(each.step); });
                return chunkOf(rows, first, last);
            },
            [this](MaskChunk chunk, int, int steps) { take(std::move(chunk), steps); });
        workspace().query<int>(
            this, "selection prompt", run()->key,
            [runId = run()->key.runId, sequence = shown_.sequence](TraceReader& reader) {
                return int(reader.prompt(runId, sequence).size());
            },
            [this](int tokens) {
                promptTokens_ = tokens;
                markPrompt();
                replot();
            });
        placeMark();
    }

    int filterParts() const override { return FilterSteps; }

    void runGrew() override {
        if (!run()) return;
        if (!feed_.isFor(run()->key) && feed_.error().isEmpty() && run()->row.level != "counters")
            runChanged();
        else
            feed_.advance();
    }

    void cursorMoved() override {
        const Cursor& cursor = workspace().cursor();
        if (run() &&
            (cursor.layer != shown_.layer || cursor.kvHead != shown_.kvHead || cursor.sequence != shown_.sequence)) {
            runChanged();
            return;
        }
        placeMark();
    }

    void themed(const Theme& theme) override {
        mask_->applyTheme(theme);
        legend_->applyTheme(theme);
        promptLine_->setPen(QPen(theme.text, 1, Qt::DashLine));
        applyColouring();
    }

    void clickedAt(int, QPointF at) override {
        const int step = int(std::lround(at.x())), block = int(std::lround(at.y()));
        if (!run() || step < 0 || step >= data_.steps() || block < 0) return;
        Cursor cursor = workspace().cursor();
        cursor.step = step;
        cursor.block = block < data_.blocks() ? block : -1;
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int, QPointF at) override {
        const int step = int(std::lround(at.x())), block = int(std::lround(at.y()));
        if (!run() || step < 0 || step >= data_.steps() || block < 0 || block >= data_.blocks()) return {};
        hoverStep_ = step;
        hoverBlock_ = block;
        hoverX_ = at.x();
        if (!texts_.contains(block)) {
            workspace().query<std::string>(
                this, "selection text", run()->key,
                [runId = run()->key.runId, sequence = shown_.sequence, block](TraceReader& reader) {
                    return reader.blockText(runId, sequence, block);
                },
                [this, block](std::string text) {
                    if (texts_.size() > 4096) texts_.clear();
                    // The last block of a growing run is still being filled: not kept.
                    if (!run() || run()->row.status != "running" || block + 1 < data_.blocks())
                        texts_.insert(block, blockTextHtml(text));
                    if (block == hoverBlock_) updateTooltip(describe(hoverStep_, block, blockTextHtml(text)));
                });
        }
        return describe(step, block, texts_.value(block));
    }

    QString note() const override {
        if (!feed_.error().isEmpty())
            return tr("Reading stopped after %1 steps: %2.").arg(data_.steps()).arg(feed_.error());
        QString blocks;
        if (mask_->blocksPerPixel() > 1) blocks = tr("1 pixel = %1 blocks.").arg(mask_->blocksPerPixel(), 0, 'f', 1);
        const QString how = colouring_->currentIndex() == 2 ? tr("missed if any was missed")
                                                            : tr("any selection; the most query-dependent origin wins");
        const QString hidden = colouring_->currentIndex() == 0 && !mask_->hatchVisible()
                                   ? tr("Zoom in to see misses hatched, or colour by hits and misses.")
                                   : QString();
        return sentences({aggregationNote(mask_->stepsPerPixel(), how), blocks, hidden,
                          tr("A miss is a selected block that was not resident and had to be fetched."),
                          loadingNote(feed_.loading(), feed_.loaded(), feed_.total()), healthNote()});
    }

    QString pictureTitle() const override {
        if (!run()) return PlotView::pictureTitle();
        return tr("Selection, layer %1, KV head %2, sequence %3: %4")
            .arg(shown_.layer)
            .arg(shown_.kvHead)
            .arg(shown_.sequence)
            .arg(QString::fromStdString(run()->row.name));
    }

private:
    void fillPickers(const RunRow& row) {
        const std::pair<QComboBox*, int> pickers[] = {
            {layer_, row.layers}, {head_, row.kvHeads}, {sequence_, row.sequences}};
        for (const auto& [picker, count] : pickers) {
            if (picker->count() == std::max(count, 1)) continue;
            const QSignalBlocker quiet(picker);
            picker->clear();
            for (int i = 0; i < std::max(count, 1); ++i) picker->addItem(QString::number(i));
            picker->setEnabled(count > 1);
        }
    }
    void showPickers() {
        const std::pair<QComboBox*, int> pickers[] = {
            {layer_, shown_.layer}, {head_, shown_.kvHead}, {sequence_, shown_.sequence}};
        for (const auto& [picker, index] : pickers) {
            const QSignalBlocker quiet(picker);
            picker->setCurrentIndex(index);
        }
    }
    void setCursorFromPickers() {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        cursor.layer = std::max(layer_->currentIndex(), 0);
        cursor.kvHead = std::max(head_->currentIndex(), 0);
        cursor.sequence = std::max(sequence_->currentIndex(), 0);
        workspace().setCursor(cursor);
    }

    void applyColouring() {
        const int mode = std::max(colouring_->currentIndex(), 0);
        mask_->setColouring(mode == 2 ? MaskPlottable::Colouring::Residency : MaskPlottable::Colouring::Origin,
                            mode == 0);
        const Theme& theme = Theme::current();
        QVector<Swatch> swatches;
        if (mode == 2) {
            swatches << Swatch{tr("hit: was resident"), theme.hit, Swatch::Mark::Fill, {}}
                     << Swatch{tr("miss: had to be fetched"), theme.miss, Swatch::Mark::Fill, {}};
        } else {
            for (int origin = 0; origin < kMaskOrigins; ++origin)
                if (origin < 4 || (seen_ & (1 << origin)))
                    swatches << Swatch{tr(kOriginTitles[std::size_t(origin)]),
                                       theme.origin[std::size_t(origin)],
                                       Swatch::Mark::Fill,
                                       {}};
            if (mode == 0)
                swatches << Swatch{tr("miss: had to be fetched"), theme.origin[0], Swatch::Mark::Hatch,
                                   MaskPlottable::hatchColour(theme)};
        }
        if (promptLine_->visible())
            swatches << Swatch{tr("end of the prompt (%1 tokens)").arg(formatCount(promptTokens_)),
                               theme.text,
                               Swatch::Mark::Dashes,
                               {}};
        legend_->setSwatches(swatches);
    }

    void placeMark() {
        const Cursor& cursor = workspace().cursor();
        CursorMark mark;
        if (run()) {
            mark.x = cursor.step;
            if (cursor.block >= 0) mark.y = cursor.block;
            if (cursor.firstStep >= 0) mark.selectedSteps = QCPRange(cursor.firstStep, cursor.lastStep);
        }
        canvas().overlay().setMark(panel_, mark);
        canvas().replotOverlay();
    }

    void take(MaskChunk chunk, int steps) {
        if (steps > 0) {
            for (const MaskCell& cell : chunk.cells) seen_ = MaskBits(seen_ | cell.bits);
            data_.append(chunk);
        }
        if (!feed_.error().isEmpty() && data_.steps() == 0) {
            showEmpty(tr("The trace cannot be read here"), feed_.error());
            return;
        }
        if (data_.steps() == 0) {
            showEmpty(tr("Waiting for the first step"), tr("The run has no recorded step yet."));
            return;
        }
        showEmpty({}, {});
        applyColouring();
        canvas().setFullX({-0.5, data_.steps() - 0.5});
        canvas().setFullY(0, {-0.5, std::max(data_.blocks(), promptBlocks()) - 0.5 + (data_.blocks() == 0 ? 1 : 0)});
        markPrompt();
        replot();
    }

    int promptBlocks() const {
        const int size = run() ? run()->row.blockSize : 0;
        return size > 0 && promptTokens_ > 0 ? (promptTokens_ + size - 1) / size : 0;
    }

    void markPrompt() {
        const int size = run() ? run()->row.blockSize : 0;
        const bool known = size > 0 && promptTokens_ > 0;
        promptLine_->setVisible(known);
        applyColouring(); // the legend names the line
        if (!known) return;
        const double at = double(promptTokens_) / size - 0.5; // between tokens, so inside a block
        promptLine_->point1->setCoords(0, at);
        promptLine_->point2->setCoords(1, at);
    }

    QString describe(int step, int block, const QString& text) const {
        const int size = std::max(run()->row.blockSize, 1);
        const qint64 first = qint64(block) * size;
        QString html = tr("<b>%1, block %2</b> (tokens %3 to %4)")
                           .arg(stepName(step), formatCount(block), formatCount(first), formatCount(first + size - 1));
        if (const auto cell = data_.find(step, block)) {
            const int origin = std::max(MaskPlottable::shownOrigin(cell->bits), 0);
            html += tr("<br>Selected as <b>%1</b>, <b>%2</b>")
                        .arg(tr(kOriginTitles[std::size_t(origin)]),
                             (cell->bits & kMaskMiss) ? tr("miss: had to be fetched") : tr("hit: was resident"));
            html += std::isnan(cell->score) ? tr("<br>No score: not scored or not recorded")
                                            : tr("<br>Score %1").arg(double(cell->score), 0, 'g', 5);
        } else {
            html += tr("<br>Not selected");
        }
        if (mask_->stepsPerPixel() > 1) {
            const double half = mask_->stepsPerPixel() / 2;
            const int from = std::max(0, int(hoverX_ + 0.5 - half));
            const int to = std::min(data_.steps(), from + int(std::ceil(2 * half)));
            const auto count = data_.count(block, from, to);
            html += tr("<br>Steps %1 to %2: selected %3 times, missed %4 times")
                        .arg(formatCount(from), formatCount(to - 1), formatCount(count[0]), formatCount(count[1]));
        }
        if (!text.isEmpty()) html += QStringLiteral("<p>“%1”</p>").arg(text);
        return html;
    }

    MaskPyramid data_;
    StepFeed<MaskChunk> feed_;
    QComboBox *layer_ = nullptr, *head_ = nullptr, *sequence_ = nullptr, *colouring_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    LegendStrip* legend_ = nullptr;
    MaskPlottable* mask_ = nullptr;
    QCPItemStraightLine* promptLine_ = nullptr;
    Cursor shown_; // layer, head and sequence on the screen
    MaskBits seen_ = 0;
    int promptTokens_ = -1;
    QHash<int, QString> texts_;
    int hoverStep_ = -1, hoverBlock_ = -1;
    double hoverX_ = 0;
};

} // namespace

View* makeSelectionView(Workspace& workspace, QWidget* parent) { return new SelectionView(workspace, parent); }

} // namespace kvscope::ui

#include "selection_view.moc"
