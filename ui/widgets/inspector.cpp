#include "ui/widgets/inspector.h"

#include "core/select/method.h"
#include "profiler/import/import.h"
#include "profiler/read/denoising.h"
#include "profiler/read/own_tier.h"
#include "profiler/read/recording_cost.h"
#include "ui/frame/home_window.h"
#include "ui/frame/run_names.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/step_words.h"
#include "ui/frame/workspace.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"
#include "ui/models/run_list_model.h"
#include "ui/timeline/span_facts.h"

#include <QJsonDocument>
#include <QJsonObject>
#include <QLabel>
#include <QPlainTextEdit>
#include <QScrollBar>
#include <QVBoxLayout>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

namespace kvscope::ui {

namespace {

/// Which of the chosen steps rates leave out, told as cold ones.
std::vector<StepKind> kindsIn(const TraceReader& reader, int runId, const std::vector<StepRow>& steps) {
    const std::vector<int> cold = coldStepsOf(reader, runId);
    std::vector<StepKind> kinds;
    kinds.reserve(steps.size());
    for (const StepRow& step : steps)
        kinds.push_back(std::binary_search(cold.begin(), cold.end(), step.step) ? StepKind::Cold : StepKind::Steady);
    return kinds;
}

/// The hit rate of the chosen steps, and which of them it counts: of several, the cold ones only where rates do.
QString hitRateText(const RunRow& run, const std::vector<StepRow>& steps, const std::vector<StepKind>& kinds) {
    std::int64_t hits = 0, misses = 0, warmHits = 0, warmMisses = 0;
    int cold = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        hits += steps[i].hits, misses += steps[i].misses;
        if (i < kinds.size() && kinds[i] == StepKind::Cold)
            ++cold;
        else
            warmHits += steps[i].hits, warmMisses += steps[i].misses;
    }
    if (cold == 0 || warmHits + warmMisses == 0) return formatShare(hits, hits + misses);
    if (coldSteps() == ColdSteps::Counted)
        return Inspector::tr("%1, %2 among them").arg(formatShare(hits, hits + misses), leftOutSteps(run, cold));
    return Inspector::tr("%1, %2 left out").arg(formatShare(warmHits, warmHits + warmMisses), leftOutSteps(run, cold));
}

/// Why an iteration of a server is no step.
QString iterationText(int iteration, const std::vector<MemberRow>& members, bool grows) {
    std::int64_t tokens = 0;
    std::set<std::int64_t> prompts;
    for (const MemberRow& member : members)
        if (member.prefill) tokens += member.tokens, prompts.insert(member.request);
    if (prompts.size() == 1)
        return Inspector::tr(
                   "Iteration %1 read %2 tokens of request %3's prompt and decoded nothing: it is not a step. "
                   "The view Serving shows it.")
            .arg(formatCount(iteration), formatCount(tokens), formatCount(*prompts.begin()));
    if (!prompts.empty())
        return Inspector::tr(
                   "Iteration %1 read %2 tokens of %3 prompts and decoded nothing: it is not a step. The view "
                   "Serving shows it.")
            .arg(formatCount(iteration), formatCount(tokens), formatCount(std::int64_t(prompts.size())));
    return grows ? Inspector::tr("Nothing of iteration %1 is in the trace yet. The view Serving shows what the server "
                                 "does.")
                       .arg(formatCount(iteration))
                 : Inspector::tr("Iteration %1 served nobody, or was not recorded.").arg(formatCount(iteration));
}

} // namespace

Inspector::Inspector(Workspace& workspace, QWidget* parent)
    : QScrollArea(parent), workspace_(workspace), spanSection_(new Section(tr("Span"))),
      runSection_(new Section(tr("Run"))), stepSection_(new Section(tr("Step"))),
      headSection_(new Section(tr("Selection of one KV head"))), blockSection_(new Section(tr("Block"))),
      parameterSection_(new Section(tr("Parameters"), false)), spanFacts_(new FactTable), runFacts_(new FactTable),
      stepFacts_(new FactTable), headFacts_(new FactTable), blockFacts_(new FactTable), parameterFacts_(new FactTable),
      empty_(new MutedLabel), stepNote_(new MutedLabel), blockHint_(new MutedLabel), blockText_(new QPlainTextEdit) {
    setAccessibleName(tr("Inspector")); // a stop of Tab, so that the arrows scroll
    setWidgetResizable(true);
    setFrameShape(QFrame::NoFrame);
    setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    setMinimumWidth(230);
    auto* page = new QWidget;
    auto* layout = new QVBoxLayout(page);
    layout->setContentsMargins(8, 6, 10, 10);
    layout->setSpacing(4);
    empty_->setText(tr("Facts about the shown run, the step under the cursor and the chosen block appear here."));
    empty_->setWordWrap(true);
    stepNote_->setWordWrap(true);
    blockHint_->setWordWrap(true);
    blockText_->setReadOnly(true);
    blockText_->setObjectName(QStringLiteral("blockText"));
    blockText_->setAccessibleName(tr("Text of the block"));
    blockText_->setMinimumHeight(120);
    layout->addWidget(empty_);
    layout->addWidget(spanSection_);
    layout->addWidget(stepSection_);
    layout->addWidget(headSection_);
    layout->addWidget(blockSection_);
    layout->addWidget(runSection_);
    layout->addWidget(parameterSection_);
    layout->addStretch();
    spanSection_->body()->addWidget(spanFacts_);
    spanSection_->hide();
    stepSection_->body()->addWidget(stepNote_);
    stepSection_->body()->addWidget(stepFacts_);
    headSection_->body()->addWidget(headFacts_);
    blockSection_->body()->addWidget(blockHint_);
    blockSection_->body()->addWidget(blockFacts_);
    blockSection_->body()->addWidget(blockText_);
    runSection_->body()->addWidget(runFacts_);
    parameterSection_->body()->addWidget(parameterFacts_);
    setWidget(page);

    for (FactTable* table : {runFacts_, stepFacts_, headFacts_, blockFacts_})
        connect(table, &FactTable::definitionRequested, this, &Inspector::definitionRequested);
    const auto update = [this] {
        if (!isVisible()) return; // showEvent reads what was missed
        showRun();
        fetch();
    };
    connect(&workspace_, &Workspace::currentChanged, this, update);
    connect(&workspace_, &Workspace::currentChanged, this, [this] { showSpan({}); });
    connect(&workspace_, &Workspace::runsChanged, this, &Inspector::showRun);
    connect(&workspace_, &Workspace::advanced, this, update);
    connect(&workspace_, &Workspace::cursorChanged, this, [this] {
        if (isVisible()) fetch();
    });
    connect(&workspace_, &Workspace::failed, this, [this] { fetching_ = false; });
    showRun();
    fetch();
}

void Inspector::showEvent(QShowEvent* event) {
    QScrollArea::showEvent(event);
    showRun();
    fetch();
}

QString Inspector::blockText() const { return blockText_->toPlainText(); }

void Inspector::showSpan(const std::vector<std::pair<QString, QString>>& facts) {
    {
        const FactTable::Update update(spanFacts_);
        // The rows get their order here, so that it does not depend on the facts of the first span.
        if (!facts.empty())
            for (const QString& name : spanFactNames()) spanFacts_->set(name, {});
        for (const auto& [name, value] : facts) spanFacts_->set(name, value);
    }
    spanSection_->setVisible(!facts.empty());
    if (facts.empty() || !isVisible()) return;
    widget()->layout()->activate();
    // The user has just chosen the span and wants to read its facts.
    if (verticalScrollBar()->value() > spanSection_->y()) verticalScrollBar()->setValue(spanSection_->y());
}

void explainSpan(const QWidget& from, const std::vector<std::pair<QString, QString>>& facts) {
    for (Inspector* inspector : homeOf(from)->findChildren<Inspector*>()) inspector->showSpan(facts);
}

namespace {
/// Whether the run's method is one of ours that chooses nothing. What another engine's method attends to its budget
/// alone says.
bool attendsToAll(const RunRow& run) {
    const MethodEntry* method = knownMethod(run.method);
    return method && !method->makeSelector;
}
} // namespace

bool isSpanExplained(const QWidget& from) {
    for (const Inspector* inspector : homeOf(from)->findChildren<Inspector*>())
        if (inspector->isVisible()) return true;
    return false;
}

QString Inspector::shapeText(const RunRow& row) {
    QString text = tr("%1 layers, %2 KV heads").arg(row.layers).arg(row.kvHeads);
    // Another engine's trace need not have these two.
    if (row.headDim > 0) text += tr(" × %1").arg(row.headDim);
    if (row.queryHeads > 0) text += tr(", %1 query heads").arg(row.queryHeads);
    return text;
}

void Inspector::showRun() {
    const OpenRun* run = workspace_.current();
    empty_->setVisible(!run);
    for (Section* section : {runSection_, stepSection_, blockSection_, parameterSection_})
        section->setVisible(run != nullptr);
    headSection_->setVisible(run && run->row.steps > 0);
    // An imported run has no blocks.
    blockSection_->setVisible(run && run->row.backend != RunBackend::Imported);
    if (!run) return;
    const RunRow& row = run->row;
    const auto text = [](const std::string& value) { return QString::fromStdString(value); };
    runFacts_->set(tr("Name"), text(row.name));
    runFacts_->set(tr("Status"), statusText(row, run->live));
    runFacts_->set(tr("Message"), text(row.statusMessage));
    runFacts_->set(tr("Model"), text(row.model));
    runFacts_->set(tr("Shape"), row.layers == 0 ? QString() : shapeText(row));
    runFacts_->set(tr("Sequences"), row.sequences > 0 ? QString::number(row.sequences) : QString());
    runFacts_->set(tr("Method"), text(row.method));
    const FactTable::Update update(parameterFacts_);
    const QJsonObject json = QJsonDocument::fromJson(QByteArray::fromStdString(row.paramsJson)).object();
    for (auto item = json.begin(); item != json.end(); ++item)
        parameterFacts_->set(titleOf(item.key().toStdString()), item.value().toVariant().toString());
    parameterSection_->setVisible(!json.isEmpty());
    runFacts_->set(tr("Block size"),
                   row.blockSize > 0
                       ? (row.blockSize == 1 ? tr("%1 token, %2 per KV head") : tr("%1 tokens, %2 per KV head"))
                             .arg(row.blockSize)
                             .arg(formatBytes(row.blockBytes))
                       : QString(),
                   "block");
    runFacts_->set(tr("Budget"),
                   row.layers == 0            ? QString()
                   : choosesWithoutBound(row) ? tr("no bound: what queries choose together")
                   : row.budgetBlocks == 0    ? (attendsToAll(row) ? tr("all blocks") : tr("not known"))
                                              : tr("%1 blocks").arg(formatCount(row.budgetBlocks)),
                   "budget");
    runFacts_->set(tr("Device slots"),
                   row.layers == 0                                       ? QString()
                   : !row.knows.has(Known::Hits) && row.deviceSlots == 0 ? tr("not known")
                   : row.sharesPool()                                    ? tr("one pool for all rows")
                   : hasOwnTier(row)                                     ? tr("by the method's own rule")
                   : row.deviceSlots == 0                                ? tr("everything resident")
                                          : tr("%1 blocks per layer and KV head").arg(formatCount(row.deviceSlots)),
                   "slots");
    runFacts_->set(tr("Device"), text(row.device));
    runFacts_->set(tr("Link"), text(row.link).replace(QStringLiteral(" us "), QStringLiteral(" µs ")), "modelled");
    runFacts_->set(tr("Recorded"), text(row.level.text()));
    runFacts_->set(tr("Dropped steps"), row.layers == 0 ? QString() : formatCount(row.droppedSteps), "dropped");
    showRecordingCost();
    runFacts_->set(tr("Writer time"), row.layers == 0 ? QString() : formatDuration(row.writerBusyNs), "writer");
    // "2026-11-21T09:53:15Z" cannot be wrapped and would be cut, so a blank replaces the T.
    runFacts_->set(
        tr("Created"),
        text(row.createdUtc).replace(QLatin1Char('T'), QLatin1Char(' ')).replace(QLatin1Char('Z'), tr(" UTC")));
    runFacts_->set(tr("File"), run->key.path);
}

/// What recording added to the steps. A run that somebody measured says so itself; else the trace is asked.
void Inspector::showRecordingCost() {
    const OpenRun* run = workspace_.current();
    if (!run) return;
    const RunRow& row = run->row;
    const RecordingCost compared = comparedRecordingCost(run->row);
    const QString known = compared.known()       ? QString::fromStdString(compared.text())
                          : costKey_ == run->key ? cost_
                                                 : QString();
    runFacts_->set(tr("Recording adds"), row.layers == 0 ? QString() : known, "recording");
    if (row.layers == 0 || compared.known() || (costKey_ == run->key && !isGrowing(*run)) || askingCost_) return;
    askingCost_ = true;
    workspace_.query<std::string>(
        this, "recording cost", run->key, [row](TraceReader& reader) { return recordingCost(reader, row).text(); },
        [this, key = run->key](std::string text) {
            askingCost_ = false;
            const OpenRun* now = workspace_.current();
            if (!now || !(now->key == key)) return showRecordingCost();
            costKey_ = key;
            cost_ = QString::fromStdString(text);
            runFacts_->set(tr("Recording adds"), cost_, "recording");
        });
}

void Inspector::fetch() {
    const OpenRun* run = workspace_.current();
    if (!run || run->row.steps < 1) {
        showStep({});
        showHead({});
        showBlock({});
        return;
    }
    if (fetching_) {
        again_ = true;
        return;
    }
    fetching_ = true;
    const RunKey key = run->key;
    const int runId = key.runId;
    const Cursor cursor = workspace_.cursor();
    workspace_.query<Selected>(
        this, "inspector", run->key,
        [runId, cursor, serves = run->row.serves()](TraceReader& reader) {
            Selected selected;
            const bool range = cursor.firstStep >= 0;
            selected.steps =
                reader.steps(runId, range ? cursor.firstStep : cursor.step, range ? cursor.lastStep : cursor.step);
            if (serves && selected.steps.empty()) selected.members = readMembers(reader, runId, cursor.step);
            if (selected.steps.size() > 1) selected.kinds = kindsIn(reader, runId, selected.steps);
            selected.selection = reader.selection(runId, cursor.step, cursor.layer, cursor.sequence, cursor.kvHead);
            if (cursor.block >= 0) selected.blockText = reader.blockText(runId, cursor.sequence, cursor.block);
            return selected;
        },
        [this, key](Selected selected) {
            fetching_ = false;
            if (const OpenRun* now = workspace_.current(); !now || !(now->key == key)) { // another run is shown by now
                again_ = false;
                return fetch();
            }
            showStep(selected);
            showHead(selected);
            showBlock(selected);
            if (std::exchange(again_, false)) fetch();
        });
}

void Inspector::showStep(const Selected& selected) {
    const OpenRun* run = workspace_.current();
    const FactTable::Update update(stepFacts_);
    if (!run || selected.steps.empty()) {
        const int step = workspace_.cursor().step;
        const bool imported = run && run->row.backend == RunBackend::Imported;
        stepNote_->setText(
            imported ? tr("A timeline that another tool recorded: it has spans and counters, and no decode "
                          "steps. Click a span in the timeline to see what it is.")
            : run && run->row.serves() && run->row.steps > 0 ? iterationText(step, selected.members, isGrowing(*run))
            : run && run->row.serves()
                ? tr("This run served requests. Its iterations are recorded in place of steps: the view "
                     "Serving shows them.")
            : !run || run->row.steps == 0
                ? (run && !isGrowing(*run) ? tr("This run ended before its first step was recorded.")
                                           : tr("No step was recorded yet."))
            : step == 0 ? tr("This trace begins after the prefill: step 0 was not recorded. Choose a "
                             "later step.")
                        : tr("Step %1 is not in this trace: it was dropped or not recorded.").arg(step));
        stepNote_->setVisible(run != nullptr);
        return;
    }
    const QString timing = run->row.timing.text().empty() ? QString::fromLatin1("modelled")
                                                          : QString::fromStdString(run->row.timing.text());
    StepRow sum;
    sum.kept = 0;
    std::int64_t selectedWhereKept = 0;
    for (const StepRow& step : selected.steps) {
        sum.tokens += step.tokens;
        sum.durationNs += step.durationNs;
        sum.selected += step.selected;
        sum.hits += step.hits;
        sum.misses += step.misses;
        sum.h2dBytes += step.h2dBytes;
        sum.d2hBytes += step.d2hBytes;
        sum.transferNs += step.transferNs;
        sum.exposedNs += step.exposedNs;
        if (step.kept >= 0) {
            sum.kept += step.kept;
            selectedWhereKept += step.selected;
        }
    }
    const StepRow& first = selected.steps.front();
    const bool one = selected.steps.size() == 1;
    QStringList notes;
    const bool denoises = denoisingBlock(run->row) > 0;
    if (one && first.phase == Phase::Prefill)
        notes << (denoisesCanvas(run->row) ? tr("Every forward over the canvas reads the prompts: there is no prefill.")
                  : denoises               ? tr("Prefill: reads the blocks that the prompts fill.")
                  : run->row.prompts.inPieces()
                      ? tr("Prefill: reads pieces of prompts. The last piece of one gives its first token.")
                      : tr("Prefill: reads the prompts and gives the first token."));
    if (one && first.mixed())
        notes << tr("Reads %1 tokens of prompts beside the sequences that decode: rates and means leave it out.")
                     .arg(formatCount(first.promptTokens));
    if (one && first.phase == Phase::Decode && first.selected > 0 && first.kept < 0 && !first.opensBlock)
        notes << (run->row.deviceSlots > 0 && run->row.knows.has(Known::Hits)
                      ? tr("A sequence selects for the first time: the device slots were cold, and locality is "
                           "undefined.")
                      : tr("A sequence selects for the first time: locality is undefined."));
    if (one && first.opensBlock && first.phase == Phase::Decode)
        notes << (denoises ? tr("A block's first forward, or its first one that chooses pages.")
                           : tr("A sequence opened a new block in this step."));
    stepNote_->setText(notes.join(QLatin1Char('\n')));
    stepNote_->setVisible(!notes.isEmpty());
    // A table keeps the order in which its facts were first set: all of them are set, each time, whatever there is.
    stepFacts_->set(tr("Step"), one ? QString::number(first.step) : QString(), "step");
    stepFacts_->set(tr("Steps"),
                    one ? QString() : tr("%1 to %2, summed").arg(first.step).arg(selected.steps.back().step), "step");
    const Knowledge knows = run->row.knows;
    const auto known = [&](Known what, const QString& value) { return knows.has(what) ? value : tr("not known"); };
    stepFacts_->set(tr("Wall time"), known(Known::StepTimes, tr("%1 (measured)").arg(formatDuration(sum.durationNs))),
                    "wall-time");
    const bool writes = denoises && selected.steps.back().phase == Phase::Decode;
    stepFacts_->set(tr("Tokens fed"), writes ? QString() : formatCount(sum.tokens));
    stepFacts_->set(tr("Tokens written"), writes ? formatCount(sum.tokens) : QString());
    const bool sparse = sum.selected > 0;
    stepFacts_->set(tr("Selected"), sparse ? tr("%1 blocks").arg(formatCount(sum.selected)) : QString(), "selected");
    stepFacts_->set(tr("Hits"), sparse ? known(Known::Hits, formatCount(sum.hits)) : QString(), "hit");
    stepFacts_->set(tr("Misses"), sparse ? known(Known::Hits, formatCount(sum.misses)) : QString(), "hit");
    stepFacts_->set(tr("Hit rate"),
                    sparse ? known(Known::Hits, hitRateText(run->row, selected.steps, selected.kinds)) : QString(),
                    "hit-rate");
    stepFacts_->set(
        tr("Locality"),
        sparse ? formatRatio(selectedWhereKept > 0 ? double(sum.kept) / double(selectedWhereKept) : std::nan(""))
               : QString(),
        "locality");
    stepFacts_->set(tr("To device"), known(Known::Bytes, formatBytes(sum.h2dBytes)), "transfer");
    stepFacts_->set(tr("To host"), known(Known::Bytes, formatBytes(sum.d2hBytes)), "transfer");
    const auto linkTime = [&](std::int64_t ns) { return QStringLiteral("%1 (%2)").arg(formatDuration(ns), timing); };
    stepFacts_->set(tr("Transfer"), known(Known::TransferTimes, linkTime(sum.transferNs)), "transfer");
    stepFacts_->set(tr("Exposed"), known(Known::ExposedTimes, linkTime(sum.exposedNs)), "exposed");
}

void Inspector::showHead(const Selected& selected) {
    const Cursor& cursor = workspace_.cursor();
    const FactTable::Update update(headFacts_);
    headFacts_->set(tr("Place"),
                    tr("layer %1, KV head %2, sequence %3").arg(cursor.layer).arg(cursor.kvHead).arg(cursor.sequence));
    if (!selected.selection) {
        const OpenRun* run = workspace_.current();
        headFacts_->set(tr("Selection"), run && !run->row.knows.has(Known::Selections) ? tr("not known")
                                         : run && run->row.serves()
                                             ? tr("not recorded: dense attention, or nothing decoded")
                                             : tr("not recorded: dense attention or prefill"));
        return;
    }
    const SelectionRow& row = *selected.selection;
    headFacts_->set(tr("Selection"), QString());
    headFacts_->set(tr("Blocks"), formatCount(row.selected), "selected");
    const OpenRun* run = workspace_.current();
    headFacts_->set(tr("Hits, misses"),
                    run && !run->row.knows.has(Known::Hits)
                        ? tr("not known")
                        : tr("%1 of %2 hit").arg(row.hits).arg(row.hits + row.misses),
                    "hit");
    headFacts_->set(tr("Locality γ"), formatRatio(row.locality()), "locality");
    headFacts_->set(tr("Mass captured"), std::isfinite(row.mass) ? formatRatio(double(row.mass)) : QString(), "mass");
    std::array<int, 5> counts{};
    for (const PackedBlock block : row.blocks) ++counts[std::size_t(block.origin())];
    QStringList origins;
    for (std::size_t code = 0; code < counts.size(); ++code)
        if (counts[code] > 0)
            origins << QStringLiteral("%1 %2").arg(counts[code]).arg(QLatin1String(nameOf(Origin(code))));
    headFacts_->set(tr("Origins"), origins.join(QStringLiteral(", ")), "origin");
}

void Inspector::showBlock(const Selected& selected) {
    const OpenRun* run = workspace_.current();
    const Cursor& cursor = workspace_.cursor();
    const FactTable::Update update(blockFacts_);
    const bool chosen = run && cursor.block >= 0;
    blockText_->setVisible(chosen);
    blockHint_->setVisible(!chosen);
    if (!chosen) {
        blockHint_->setText(
            tr("Click a cell in the Selection view or a prompt token to see a block's text and score."));
        return;
    }
    const int size = run->row.blockSize;
    blockFacts_->set(tr("Block"), QString::number(cursor.block), "block");
    blockFacts_->set(tr("Token range"), tr("%1 to %2")
                                            .arg(formatCount(std::int64_t(cursor.block) * size),
                                                 formatCount(std::int64_t(cursor.block + 1) * size - 1)));
    const QString text = QString::fromStdString(selected.blockText);
    if (blockText_->toPlainText() != text) blockText_->setPlainText(text);
    if (!selected.selection) return;
    const SelectionRow& row = *selected.selection;
    const PackedBlock* found = findBlock(row.blocks, cursor.block);
    if (found == nullptr) {
        blockFacts_->set(tr("In this step"),
                         row.blocks.empty() ? tr("selected blocks were not recorded") : tr("not selected"), "selected");
        return;
    }
    const auto at = std::size_t(found - row.blocks.data());
    blockFacts_->set(tr("In this step"), tr("selected"), "selected");
    blockFacts_->set(tr("Origin"), QString::fromLatin1(nameOf(found->origin())), "origin");
    blockFacts_->set(tr("Residency"),
                     !row.knowsHits ? tr("not known")
                     : found->hit() ? tr("hit")
                                    : tr("miss, loaded"),
                     "hit");
    if (at < row.scores.size()) blockFacts_->set(tr("Score"), formatRatio(double(row.scores[at]), 5), "score");
}

} // namespace kvscope::ui
