// Selection: the block x step mask of one (sequence, layer, KV head), coloured by origin, with misses, block text and
// margins.
#include "profiler/read/denoising.h"
#include "profiler/read/next_step.h"
#include "profiler/tiles/filtered_tiles.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/units.h"
#include "ui/frame/waiting.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/mask_plottable.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/tick_fit.h"
#include "ui/views/make_views.h"
#include "ui/views/needle_lanes.h"
#include "ui/views/prompt_finder.h"
#include "ui/views/run_text.h"
#include "ui/views/selection_margins.h"
#include "ui/views/tile_feed.h"
#include "ui/views/tile_text.h"
#include "ui/widgets/loading_strip.h"

#include <QCheckBox>
#include <QComboBox>
#include <QHash>
#include <QSignalBlocker>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <string>

namespace kvscope::ui {

namespace {

constexpr std::array<const char*, kMaskOrigins> kOriginTitles{
    QT_TRANSLATE_NOOP("SelectionView", "sink"), QT_TRANSLATE_NOOP("SelectionView", "window"),
    QT_TRANSLATE_NOOP("SelectionView", "query-aware"), QT_TRANSLATE_NOOP("SelectionView", "query-agnostic"),
    QT_TRANSLATE_NOOP("SelectionView", "token-level")};

constexpr int kExported = 512; // steps read at once for an export

/// Facts about a cell that only the trace has.
struct CellDetail {
    std::string text;
    std::optional<float> score;
};

class SelectionView final : public PlotView {
    Q_OBJECT
public:
    SelectionView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Selection"), parent), feed_(workspace, this, "selection"),
          cache_(TileCache::userPlace()) {
        layer_ = addPicker(QStringLiteral("layer"), tr("Layer"), tr("Layer whose selections are shown"));
        head_ = addPicker(QStringLiteral("kvHead"), tr("KV head"), tr("KV head whose selections are shown"));
        sequence_ = addPicker(QStringLiteral("sequence"), tr("Sequence"), tr("Sequence of the batch"));
        colouring_ =
            addPicker(QStringLiteral("colouring"), tr("Colour"), tr("What the colour of a selected block shows"));
        colouring_->addItem(tr("Origin, misses hatched"));
        colouring_->addItem(tr("Origin only"));
        colouring_->addItem(tr("Hits and misses"));
        zoomed_ = addPicker(QStringLiteral("zoomed"), tr("Zoomed out"),
                            tr("What a pixel shows that covers several steps or blocks"));
        zoomed_->addItem(tr("Any"));
        zoomed_->setItemData(0, tr("Coloured if any of them was selected"), Qt::ToolTipRole);
        zoomed_->addItem(tr("Share"));
        zoomed_->setItemData(1, tr("The stronger the colour, the more of them were selected"), Qt::ToolTipRole);
        auto* margins = new QCheckBox(tr("Margins"));
        margins->setObjectName(QStringLiteral("margins"));
        margins->setToolTip(tr("Selected and missed blocks per step above the mask, how often each block was selected "
                               "beside it"));
        margins->setChecked(true);
        addTool(margins);
        loading_ = new LoadingStrip(this);
        addAbovePlot(loading_);
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        panel_ = canvas().addPanel(true);
        setIntegerAxis(panel_->axis(QCPAxis::atBottom), stepTitle({}));
        setIntegerAxis(panel_->axis(QCPAxis::atLeft), tr("KV block"));
        panel_->axis(QCPAxis::atLeft)->setProperty(kShortTitle, tr("KV block"));
        mask_ = new MaskPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft), data_);
        margins_ = new SelectionMargins(canvas(), panel_, data_, this);
        connect(margins_, &SelectionMargins::blockClicked, this, &SelectionView::markBlock);
        needles_ = new NeedleLanes(workspace, canvas(), panel_, margins_->layoutRow(), this);
        connect(needles_, &NeedleLanes::changed, this, &SelectionView::updateNote);
        finder_ = new PromptFinder(workspace, canvas(), panel_, this);
        addTool(finder_->field());
        addTool(finder_->results());
        connect(finder_, &PromptFinder::changed, this, &SelectionView::showFound);
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
        connect(zoomed_, &QComboBox::currentIndexChanged, this, [this](int index) {
            mask_->setZoomed(index == 1 ? MaskPlottable::Zoomed::Share : MaskPlottable::Zoomed::Any);
            replot();
        });
        connect(margins, &QCheckBox::toggled, this, [this](bool wanted) { margins_->setWanted(wanted); });
        loading_->steer(feed_, [this] {
            loading_->show(feed_);
            updateNote();
        });
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override { return textOf(numbers()); }

    /// Straight from the trace, which has the scores as well.
    NumberWriter numbers() const override {
        if (data_.steps() == 0 || !run()) return {};
        const QCPRange visible = const_cast<SelectionView*>(this)->canvas().visibleX();
        const int first = std::max(0, int(std::ceil(visible.lower)));
        const int last = std::min(data_.steps() - 1, int(std::floor(visible.upper)));
        QStringList origins;
        for (const char* title : kOriginTitles) origins << tr(title);
        return [key = run()->key, at = shown_, filter = appliedFilter(), origins, first, last](NumberSink& sink) {
            TraceReader reader(key.path.toStdString());
            reader.setInterrupt(sink.interrupt());
            std::vector<bool> found; // blocks that hold the filter's text; empty: all count
            if (!filter.text.empty()) found = blocksWithText(reader, key.runId, at.sequence, filter.text);
            sink.add("step,layer,seq,kv_head,block,origin,hit,score\n");
            for (int next = first; next <= last;) {
                // Visits recorded steps only, because a trace may have large gaps between the numbers of its steps.
                const int from = nextRecordedStep(reader, key.runId, next);
                if (from > last) break;
                const int to = std::min(from + kExported - 1, last);
                next = to + 1;
                for (const SelectionRow& row : reader.selections(key.runId, at.layer, at.sequence, at.kvHead, from, to))
                    if (filter.hasStep(row.step)) sink.add(linesOf(row, found, origins));
                sink.progress(double(to + 1 - first) / double(last - first + 1));
            }
        };
    }

    QString sql() const override {
        if (!run() || data_.steps() == 0) return {};
        SqlScope scope = sqlScope();
        scope.layer = shown_.layer;
        scope.sequence = shown_.sequence;
        scope.kvHead = shown_.kvHead;
        const QString text = QString::fromStdString(std::exchange(scope.filter.text, {}));
        // Which blocks there are, and their text, is in blobs: the statement counts all of them.
        return text.isEmpty()
                   ? selectionSql(scope)
                   : QStringLiteral("-- all blocks, not only those with the filter's text\n") + selectionSql(scope);
    }

protected:
    void runChanged() override {
        data_.reset();
        feed_.stop();
        loading_->show(feed_);
        promptTokens_ = -1;
        texts_.clear();
        hoverScore_.reset();
        promptLine_->setVisible(false);
        finder_->restart();
        if (showEmptyWithoutRun(
                tr("This view shows which KV blocks one head selected at every step, why, and which of them "
                   "had to be fetched.")))
            return;
        const RunRow& row = run()->row;
        fillPickers(row);
        panel_->axis(QCPAxis::atBottom)->setLabel(stepTitle(row));
        shown_ = workspace().cursor();
        showPickers();
        needles_->show(run(), shown_.sequence);
        margins_->setBesideLanes(needles_->shown());
        if (row.layers <= 0) {
            const auto [title, why] = waitingText(
                run(), tr("Waiting for the first step"),
                tr("The run has started. Its prompt is being read; the first column appears when that is done."));
            showEmpty(title, why, {stopRun()});
            return;
        }
        if (row.level == RecordLevel::Counters) {
            showEmpty(
                tr("Selections were not recorded"),
                tr("This run was recorded at level counters, which keeps times, hits and bytes but not the blocks. "
                   "Record with level selections or full to see them."),
                {showView("locality"), showView("transfers")});
            return;
        }
        panel_->axis(QCPAxis::atLeft)
            ->setLabel(row.blockSize > 0 ? tr("KV block (%1 tokens each)").arg(row.blockSize) : tr("KV block"));
        showReading();
        const MaskRequest request{run()->key.runId, shown_.layer, shown_.sequence, shown_.kvHead};
        const ReadFilter filter = appliedFilter();
        foundInPart_ = !filter.text.empty() && (run()->live || run()->row.status == RunStatus::Running);
        feed_.start(
            run()->key,
            [request, cache = cache_, filter](TraceReader& reader, int first, int last) {
                return readFilteredTile(reader, request, filter, first, last, cache);
            },
            [request, filter](TraceReader& reader, int steps, int stride) {
                return readFilteredPreview(reader, request, filter, steps, stride);
            },
            [this](TileFeed<MaskTile>::Arrival arrival) { take(std::move(arrival)); });
        workspace().query<int>(
            this, "selection prompt", run()->key,
            [runId = run()->key.runId, sequence = shown_.sequence](TraceReader& reader) {
                return int(reader.prompt(runId, sequence).size());
            },
            [this](int tokens) {
                promptTokens_ = tokens;
                markPrompt();
                if (data_.steps() > 0) fitBlocks();
                replot();
            });
        placeMark();
    }

    int filterParts() const override { return FilterLayers | FilterKvHeads | FilterSteps | FilterText; }

    void runGrew() override {
        if (!run()) return;
        const bool ended = run()->row.status != RunStatus::Running && !run()->live;
        if (!feed_.isFor(run()->key) && feed_.error().isEmpty() && run()->row.level != RecordLevel::Counters)
            runChanged();
        else if (foundInPart_ && ended)
            runChanged(); // blocks were judged by the text they had; now it is whole
        else
            feed_.advance();
        needles_->show(run(), shown_.sequence);
        margins_->setBesideLanes(needles_->shown());
        finder_->advance();
    }

    void cursorMoved() override {
        const Cursor& cursor = workspace().cursor();
        if (run() &&
            (cursor.layer != shown_.layer || cursor.kvHead != shown_.kvHead || cursor.sequence != shown_.sequence)) {
            runChanged();
            return;
        }
        finder_->moved();
        placeMark();
    }

    void visibleStepsChanged() override {
        feed_.prefer(canvas().visibleX().lower, canvas().visibleX().upper);
        margins_->summarise();
    }

    void themed(const Theme& theme) override {
        mask_->applyTheme(theme);
        margins_->applyTheme(theme);
        needles_->applyTheme(theme);
        finder_->applyTheme(theme);
        legend_->applyTheme(theme);
        promptLine_->setPen(QPen(theme.text, 1, Qt::DashLine));
        applyColouring();
    }

    void clickedAt(int panel, QPointF at) override {
        const int step = int(std::lround(at.x())), block = int(std::lround(at.y()));
        if (!run() || step < 0 || step >= data_.steps()) return;
        Cursor cursor = workspace().cursor();
        cursor.step = step;
        if (panel == 0) {
            if (block < 0) return;
            cursor.block = block < shownBlocks() ? block : -1;
        }
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int panel, QPointF at) override {
        const int step = int(std::lround(at.x())), block = int(std::lround(at.y()));
        if (!run() || step < 0 || step >= data_.steps()) return {};
        if (panel == needles_->panel()) return needles_->tooltip(at.x(), at.y());
        if (panel != 0) return stepTooltip(step);
        if (block < 0 || block >= shownBlocks()) return {};
        hoverStep_ = step;
        hoverBlock_ = block;
        hoverX_ = at.x();
        const bool selected = data_.find(step, block).has_value();
        const bool scored = hoverScore_ && hoverScore_->first == std::pair(step, block);
        if (!texts_.contains(block) || (selected && !scored)) askForDetail(step, block, selected);
        return describe(step, block, texts_.value(block));
    }

    QString note() const override {
        if (!feed_.error().isEmpty())
            return tr("Reading stopped after %1 steps: %2.").arg(formatCount(feed_.loaded()), feed_.error());
        QString blocks;
        if (mask_->blocksPerPixel() > 1) blocks = tr("1 pixel = %1 blocks.").arg(mask_->blocksPerPixel(), 0, 'f', 1);
        const bool shares = zoomed_->currentIndex() == 1;
        const QString how = shares ? tr("the stronger the colour, the more of them were selected")
                            : colouring_->currentIndex() == 2
                                ? tr("missed if any was missed")
                                : tr("any selection; the most query-dependent origin wins");
        QString preview;
        if (data_.tiles().hasPreview()) preview = previewNote(data_.tiles().stride());
        const QString hidden = colouring_->currentIndex() == 0 && !mask_->hatchVisible()
                                   ? tr("Zoom in to see misses hatched, or colour by hits and misses.")
                                   : QString();
        return sentences({needles_->note(), aggregationNote(mask_->stepsPerPixel(), how), blocks, preview, hidden,
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
    void markBlock(int block) {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        cursor.block = block;
        workspace().setCursor(cursor);
    }

    QString stepTooltip(int step) const {
        const auto [selected, missed] = data_.perStep(step, step + 1);
        if (!data_.tiles().knows(step) || std::isnan(selected)) return {};
        return tr("<b>%1</b><br>%2 blocks selected, %3 of them missed")
            .arg(stepName(run()->row, step), formatCount(std::llround(selected)), formatCount(std::llround(missed)));
    }

    static std::string linesOf(const SelectionRow& row, const std::vector<bool>& found, const QStringList& origins) {
        std::string lines;
        for (std::size_t i = 0; i < row.blocks.size(); ++i) {
            const auto block = std::size_t(row.blocks[i].id());
            if (!found.empty() && (block >= found.size() || !found[block])) continue;
            fmt::format_to(std::back_inserter(lines), "{},{},{},{},{},{},{},", row.step, row.layer, row.sequence,
                           row.kvHead, row.blocks[i].id(),
                           origins[std::min(qsizetype(row.blocks[i].origin()), origins.size() - 1)].toStdString(),
                           !row.knowsHits        ? ""
                           : row.blocks[i].hit() ? "1"
                                                 : "0");
            const bool scored = i < row.scores.size() && !std::isnan(row.scores[i]);
            if (scored) fmt::format_to(std::back_inserter(lines), "{:.7g}", row.scores[i]);
            lines += '\n';
        }
        return lines;
    }

    void askForDetail(int step, int block, bool selected) {
        workspace().query<CellDetail>(
            this, "selection text", run()->key,
            [runId = run()->key.runId, at = shown_, step, block, selected](TraceReader& reader) {
                CellDetail detail;
                detail.text = reader.blockText(runId, at.sequence, block);
                if (!selected) return detail;
                if (const auto row = reader.selection(runId, step, at.layer, at.sequence, at.kvHead)) {
                    const PackedBlock* found = findBlock(row->blocks, block);
                    const auto i = std::size_t(found - row->blocks.data());
                    if (found != nullptr && i < row->scores.size()) detail.score = row->scores[i];
                }
                return detail;
            },
            [this, step, block](CellDetail detail) {
                if (texts_.size() > 4096) texts_.clear();
                const QString text = blockTextHtml(detail.text);
                // The last block of a growing run is still being filled: not kept.
                if (!run() || run()->row.status != RunStatus::Running || block + 1 < data_.blocks())
                    texts_.insert(block, text);
                hoverScore_ = {{step, block}, detail.score};
                if (block == hoverBlock_ && step == hoverStep_) updateTooltip(describe(step, block, text));
            });
    }

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
        const bool known = !run() || run()->row.knows.has(Known::Hits);
        if (mode == 2 && !known) {
            swatches << Swatch{tr("hits are not known in this run"), theme.mutedText, Swatch::Mark::Fill, {}};
        } else if (mode == 2) {
            swatches << Swatch{tr("hit: was resident"), theme.hit, Swatch::Mark::Fill, {}}
                     << Swatch{tr("miss: had to be fetched"), theme.miss, Swatch::Mark::Fill, {}};
        } else {
            for (int origin = 0; origin < kMaskOrigins; ++origin)
                if (origin < int(Origin::TokenLevel) || tokenLevel_)
                    swatches << Swatch{tr(kOriginTitles[std::size_t(origin)]),
                                       theme.origin[std::size_t(origin)],
                                       Swatch::Mark::Fill,
                                       {}};
            if (mode == 0 && known)
                swatches << Swatch{tr("miss: had to be fetched"), theme.origin[0], Swatch::Mark::Hatch,
                                   MaskPlottable::hatchColour(theme)};
        }
        swatches << needles_->swatches(theme) << finder_->swatches(theme);
        if (promptLine_->visible())
            swatches << Swatch{tr("end of the prompt (%1 tokens)").arg(formatCount(promptTokens_)),
                               theme.text,
                               Swatch::Mark::Dashes,
                               {}};
        legend_->setSwatches(swatches);
    }

    void placeMark() {
        const Cursor& cursor = workspace().cursor();
        CursorMark mark = stepMark();
        if (run() && cursor.block >= 0) mark.y = cursor.block;
        QList<QCPAxisRect*> above{canvas().panels()[margins_->stepPanel()]};
        if (needles_->shown()) above << canvas().panels()[needles_->panel()];
        showMark(mark, {panel_}, above);
    }

    void take(TileFeed<MaskTile>::Arrival arrival) {
        if (arrival.tile) {
            tokenLevel_ = tokenLevel_ || (arrival.tile->anyBits() & (1 << int(Origin::TokenLevel)));
            data_.announce(arrival.total);
            if (arrival.previewStride > 0)
                data_.setPreview(std::move(arrival.tile), arrival.previewStride);
            else
                data_.place(arrival.first, std::move(arrival.tile), arrival.times);
        }
        loading_->show(feed_);
        if (!feed_.error().isEmpty() && data_.steps() == 0) {
            showEmpty(tr("The trace cannot be read here"), feed_.error());
            return;
        }
        if (data_.steps() == 0) {
            const auto [title, why] =
                waitingText(run(), tr("Waiting for the first step"), tr("The run has no recorded step yet."));
            showEmpty(title, why, {stopRun()});
            return;
        }
        showRead();
    }

    /// Shows what is read so far, or says why nothing was selected.
    void showRead() {
        if (data_.blocks() == 0 && data_.steps() > 1 && !feed_.loading() && !showsFoundOnly()) {
            explainNothing();
            return;
        }
        showEmpty({}, {});
        applyColouring();
        canvas().setFullX({-0.5, data_.steps() - 0.5});
        feed_.prefer(canvas().visibleX().lower, canvas().visibleX().upper);
        margins_->rescale();
        margins_->summarise();
        fitBlocks();
        markPrompt();
        replot();
    }

    /// No selected block holds the filter's text, but others do.
    bool showsFoundOnly() const {
        const Filter& filter = workspace().filter();
        return !filter.text.isEmpty() && filter.hasLayer(shown_.layer) && filter.hasKvHead(shown_.kvHead) &&
               !finder_->found().empty();
    }

    int shownBlocks() const { return std::max(data_.blocks(), promptBlocks()); }
    void fitBlocks() { canvas().setFullY(0, {-0.5, std::max(shownBlocks(), 1) - 0.5}); }

    void showFound() {
        if (data_.steps() > 1 && data_.blocks() == 0) return showRead(); // the plot only has what is found
        applyColouring();
        replot();
    }

    /// No block is selected at any step: says why, and where there are some.
    void explainNothing() {
        const Filter& filter = workspace().filter();
        if (!filter.hasLayer(shown_.layer) || !filter.hasKvHead(shown_.kvHead)) {
            Cursor inside = shown_;
            const auto layers = filter.layers.of(run()->row.layers), heads = filter.kvHeads.of(run()->row.kvHeads);
            std::vector<EmptyAction> actions;
            if (!layers.empty() && !heads.empty()) {
                if (!filter.hasLayer(inside.layer)) inside.layer = layers.front();
                if (!filter.hasKvHead(inside.kvHead)) inside.kvHead = heads.front();
                actions.push_back(
                    {tr("Show layer %1, KV head %2").arg(inside.layer).arg(inside.kvHead), [this, inside] {
                         Cursor cursor = workspace().cursor();
                         cursor.layer = inside.layer;
                         cursor.kvHead = inside.kvHead;
                         workspace().setCursor(cursor);
                     }});
            }
            showEmptyByFilter(tr("Layer %1, KV head %2 is left out by the filter").arg(shown_.layer).arg(shown_.kvHead),
                              actions);
            return;
        }
        if (!appliedFilter().empty()) {
            showEmptyByFilter(tr("Nothing passes the filter"));
            return;
        }
        std::vector<EmptyAction> actions;
        const bool known = run()->row.knows.has(Known::Selections);
        if (known && shown_.layer + 1 < run()->row.layers)
            actions.push_back({tr("Show the next layer"), [this] {
                                   Cursor cursor = workspace().cursor();
                                   ++cursor.layer;
                                   workspace().setCursor(cursor);
                               }});
        actions.push_back(showView("breakdown"));
        if (!known) {
            showEmpty(tr("Selected blocks are not known in this run"),
                      whyUnknown(workspace(), run()->key,
                                 tr("The engine that recorded it did not see which blocks were attended.")),
                      actions);
            return;
        }
        if (denoisesCanvas(run()->row)) {
            showEmpty(tr("Nothing was chosen in this run"),
                      tr("In every forward every token attended to all of prompt and canvas. What the forwards wrote, "
                         "and how sure they were, is in the denoising view."),
                      {showView("denoising"), showView("breakdown")});
            return;
        }
        showEmpty(tr("Nothing was chosen here"),
                  tr("Layer %1 attended to every cached block at every step, as full attention and the dense layers "
                     "of other methods do. Choose another layer, or run a sparse method.")
                      .arg(shown_.layer),
                  actions);
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
        QString html =
            tr("<b>%1, block %2</b> (tokens %3 to %4)")
                .arg(stepName(run()->row, step), formatCount(block), formatCount(first), formatCount(first + size - 1));
        if (!data_.tiles().knows(step)) return html + QStringLiteral("<br>") + notReadYet(data_.tiles().stride());
        if (const auto bits = data_.find(step, block)) {
            const int origin = std::max(MaskPlottable::shownOrigin(*bits), 0);
            html += tr("<br>Selected as <b>%1</b>, <b>%2</b>")
                        .arg(tr(kOriginTitles[std::size_t(origin)]), (*bits & kMaskMiss) ? tr("miss: had to be fetched")
                                                                     : (*bits & kMaskHit)
                                                                         ? tr("hit: was resident")
                                                                         : tr("whether it was resident is not known"));
            if (hoverScore_ && hoverScore_->first == std::pair(step, block))
                html += hoverScore_->second ? tr("<br>Score %1").arg(double(*hoverScore_->second), 0, 'g', 5)
                                            : tr("<br>No score: not scored or not recorded");
        } else {
            html +=
                appliedFilter().empty() ? tr("<br>Not selected") : tr("<br>Not selected, or left out by the filter");
        }
        if (mask_->stepsPerPixel() > 1) {
            const double half = mask_->stepsPerPixel() / 2;
            const int from = std::max(0, int(hoverX_ + 0.5 - half));
            const int to = std::min(data_.steps(), from + int(std::ceil(2 * half)));
            const auto count = data_.count(block, from, to);
            html += tr("<br>Steps %1 to %2: selected %3 times, %4")
                        .arg(formatCount(from), formatCount(to - 1), formatCount(count[0]),
                             run() && !run()->row.knows.has(Known::Hits)
                                 ? tr("misses are not known")
                                 : tr("missed %1 times").arg(formatCount(count[1])));
        }
        html += needles_->blockText(block) + finder_->blockText(block);
        if (!text.isEmpty()) html += QStringLiteral("<p>“%1”</p>").arg(text);
        return html;
    }

    MaskPyramid data_;
    bool foundInPart_ = false; // the filter's text was looked for while the run still wrote some
    TileFeed<MaskTile> feed_;
    TileCache::Place cache_;
    QComboBox *layer_ = nullptr, *head_ = nullptr, *sequence_ = nullptr, *colouring_ = nullptr, *zoomed_ = nullptr;
    LoadingStrip* loading_ = nullptr;
    SelectionMargins* margins_ = nullptr;
    NeedleLanes* needles_ = nullptr;
    PromptFinder* finder_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    LegendStrip* legend_ = nullptr;
    MaskPlottable* mask_ = nullptr;
    QCPItemStraightLine* promptLine_ = nullptr;
    Cursor shown_;            // layer, head and sequence on the screen
    bool tokenLevel_ = false; // some block was selected for single tokens: the legend has it then
    int promptTokens_ = -1;
    QHash<int, QString> texts_;
    int hoverStep_ = -1, hoverBlock_ = -1;
    double hoverX_ = 0;
    std::optional<std::pair<std::pair<int, int>, std::optional<float>>> hoverScore_; // of (step, block)
};

} // namespace

View* makeSelectionView(Workspace& workspace, QWidget* parent) { return new SelectionView(workspace, parent); }

} // namespace kvscope::ui

#include "selection_view.moc"
