// Fills the token strip from the trace and connects it to the shared cursor.
#include "profiler/read/denoising.h"
#include "profiler/read/needle_evidence.h"
#include "ui/frame/as_written.h"
#include "ui/frame/proposals.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/view_request.h"
#include "ui/frame/workspace.h"
#include "ui/models/format.h"
#include "ui/widgets/token_strip.h"

#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QHBoxLayout>
#include <QLabel>
#include <QMenu>
#include <QPainter>
#include <QSignalBlocker>
#include <QStyle>
#include <QToolButton>
#include <QVBoxLayout>

#include <algorithm>
#include <optional>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr int kPromptTail = 160; // last tokens of the prompt, shown before the generated ones

struct StripRows {
    std::vector<TokenRow> prompt, tokens;
    std::vector<StepRow> steps;
    std::vector<TokenRow> fact; // of the prompt, where it lies before the tail
    std::optional<NeedlePlace> asked;
    std::string answer;
    int promptTokens = 0;
    bool promptKnown = true; // otherwise they are what lies before the first recorded token, however it came there
};

std::vector<TokenChip> toChips(const std::vector<TokenRow>& rows, bool generated) {
    std::vector<TokenChip> chips;
    chips.reserve(rows.size());
    for (const TokenRow& row : rows) chips.push_back({generated ? row.step : -1, row.position, row.id, row.bytes});
    return chips;
}

/// The fact that the prompt asks for, and what was answered.
void readFact(TraceReader& reader, int runId, int sequence, bool withPrompt, StripRows& rows) {
    const std::optional<RunRow> run = reader.run(runId);
    if (!run) return;
    for (const NeedleAnswer& answer : needleAnswers(reader, *run)) {
        if (answer.needle.sequence != sequence) continue;
        rows.asked = answer.needle;
        rows.answer = answer.text();
    }
    if (!rows.asked || !withPrompt || rows.prompt.empty()) return;
    const int missing = rows.prompt.front().position - rows.asked->first;
    if (missing > 0)
        rows.fact = reader.prompt(runId, sequence, rows.asked->first, std::min(rows.asked->tokens, missing));
}

/// The fact, where it lies before the tail, and the tail.
std::vector<TokenChip> promptChips(const StripRows& rows) {
    std::vector<TokenChip> chips = toChips(rows.fact, false);
    if (!rows.fact.empty() && rows.fact.back().position + 1 < rows.prompt.front().position)
        chips.push_back({-1, -1, -1, " … "});
    for (TokenChip& chip : toChips(rows.prompt, false)) chips.push_back(std::move(chip));
    for (TokenChip& chip : chips)
        chip.ofFact =
            rows.asked && chip.position >= rows.asked->first && chip.position < rows.asked->first + rows.asked->tokens;
    return chips;
}

/// Muted text in one line, of which a narrow place shows the beginning.
class CutLabel final : public MeasuredLabel {
public:
    CutLabel() {
        setProperty("role", QStringLiteral("muted"));
        setTextFormat(Qt::PlainText);
    }

protected:
    void paintEvent(QPaintEvent* event) override {
        const QRect place = contentsRect();
        if (fontMetrics().horizontalAdvance(text()) <= place.width()) return MeasuredLabel::paintEvent(event);
        QPainter painter(this);
        style()->drawItemText(&painter, place, Qt::AlignLeft | Qt::AlignVCenter, palette(), isEnabled(),
                              fontMetrics().elidedText(text(), Qt::ElideRight, place.width()), foregroundRole());
    }
};

} // namespace

TokenPanel::TokenPanel(Workspace& workspace, QWidget* parent)
    : QWidget(parent), workspace_(workspace), strip_(new TokenStrip), heading_(new QWidget(this)), place_(new CutLabel),
      sequenceLabel_(new MutedLabel(tr("Sequence"))), sequence_(new QComboBox), follow_(new QToolButton) {
    sequence_->setAccessibleName(tr("Sequence"));
    sequence_->setToolTip(tr("Sequence of the batch that all views show"));
    follow_->setText(tr("Follow"));
    follow_->setCheckable(true);
    follow_->setToolTip(tr("Keep the cursor on the newest step of a live run"));
    auto* heading = new QHBoxLayout(heading_);
    heading->setContentsMargins(10, 0, 6, 0);
    heading->setSpacing(8);
    // The text is cut rather than the controls beside it.
    place_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
    heading->addWidget(place_, 1);
    heading->addWidget(sequenceLabel_);
    heading->addWidget(sequence_);
    heading->addWidget(follow_);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(0);
    layout->addWidget(strip_);

    connect(&workspace_, &Workspace::currentChanged, this, [this] {
        const OpenRun* run = workspace_.current();
        follow_->setChecked(run && run->live);
        restart();
    });
    connect(&workspace_, &Workspace::runsChanged, this, &TokenPanel::showHeading);
    connect(&workspace_, &Workspace::advanced, this, &TokenPanel::fetch);
    // The read that failed may have been that of this panel.
    connect(&workspace_, &Workspace::failed, this, [this] { fetching_ = false; });
    connect(&workspace_, &Workspace::cursorChanged, this, &TokenPanel::showCursor);
    connect(&workspace_, &Workspace::soughtTextChanged, this, [this] { strip_->setFound(workspace_.soughtText()); });
    connect(sequence_, &QComboBox::currentIndexChanged, this, [this](int index) {
        Cursor cursor = workspace_.cursor();
        cursor.sequence = std::max(0, index);
        workspace_.setCursor(cursor);
    });
    connect(follow_, &QToolButton::clicked, this, [this](bool on) {
        if (!on) return;
        Cursor cursor = workspace_.cursor();
        cursor.step = std::max(0, strip_->lastStep());
        workspace_.setCursor(cursor);
    });
    connect(strip_, &TokenStrip::stepChosen, this, [this](int step) {
        Cursor cursor = workspace_.cursor();
        cursor.step = step;
        follow_->setChecked(step == strip_->lastStep());
        workspace_.setCursor(cursor);
    });
    connect(strip_, &TokenStrip::rangeChosen, this, [this](int firstStep, int lastStep) {
        Cursor cursor = workspace_.cursor();
        cursor.firstStep = firstStep;
        cursor.lastStep = lastStep;
        workspace_.setCursor(cursor);
    });
    connect(strip_, &TokenStrip::rangeCleared, this, [this] {
        Cursor cursor = workspace_.cursor();
        cursor.firstStep = cursor.lastStep = -1;
        workspace_.setCursor(cursor);
    });
    connect(strip_, &TokenStrip::menuRequested, this, &TokenPanel::showMenu);
    connect(strip_, &TokenStrip::promptTokenChosen, this, [this](int position) {
        const OpenRun* run = workspace_.current();
        if (!run || run->row.blockSize < 1) return;
        Cursor cursor = workspace_.cursor();
        cursor.block = position / run->row.blockSize;
        workspace_.setCursor(cursor);
    });
    restart();
}

/// `step`: the step under the pointer, or the cursor's step if the menu was opened by key; -1: no generated token.
void TokenPanel::showMenu(QPoint global, int step) {
    auto* menu = new QMenu(this);
    menu->setObjectName(QStringLiteral("tokenMenu"));
    menu->setAttribute(Qt::WA_DeleteOnClose);
    const Cursor& cursor = workspace_.cursor();
    const bool range = cursor.firstStep >= 0 && step >= cursor.firstStep && step <= cursor.lastStep;
    const int first = range ? cursor.firstStep : step, last = range ? cursor.lastStep : step;
    const auto copy = [this](int from, int to) { QApplication::clipboard()->setText(strip_->generatedText(from, to)); };
    menu->addAction(range ? tr("Copy the text of steps %1 to %2").arg(first).arg(last) : tr("Copy this token"), this,
                    [copy, first, last] { copy(first, last); })
        ->setEnabled(step >= 0);
    menu->addAction(tr("Copy the generated text"), this, [copy] { copy(0, -1); })->setEnabled(strip_->lastStep() >= 0);
    menu->addSeparator();
    menu->addAction(range ? tr("Count only steps %1 to %2").arg(first).arg(last) : tr("Count only this step"), this,
                    [this, first, last] {
                        Filter filter = workspace_.filter();
                        filter.steps = IndexSet({{first, last}});
                        workspace_.setFilter(filter);
                    })
        ->setEnabled(step >= 0);
    menu->addAction(tr("Count all steps"), this,
                    [this] {
                        Filter filter = workspace_.filter();
                        filter.steps = {};
                        workspace_.setFilter(filter);
                    })
        ->setEnabled(!workspace_.filter().steps.all());
    if (step >= 0) {
        const auto moveThere = [this, step] {
            Cursor moved = workspace_.cursor();
            moved.step = step;
            workspace_.setCursor(moved);
        };
        addFork(*menu, *this, moveThere);
        addShowIn(*menu, *this, {}, moveThere);
    }
    menu->popup(global);
}

void TokenPanel::restart() {
    started_ = fetching_ = again_ = false;
    knownSteps_ = promptTokens_ = 0;
    followedStep_ = -1;
    shownSequence_ = workspace_.cursor().sequence;
    strip_->clear();
    strip_->setEmptyText({});
    answer_.clear();
    showHeading();
    fetch();
}

void TokenPanel::fetch() {
    const OpenRun* run = workspace_.current();
    if (!run) return;
    if (fetching_) { // a second query would drop the answer to the first
        again_ = true;
        return;
    }
    fetching_ = true;
    const int runId = run->key.runId, sequence = shownSequence_, from = knownSteps_;
    const bool withPrompt = !started_;
    // Reading a prompt gives the first token in step 0, and in a later one only where requests come and go. A recording
    // of decode steps alone begins with a later token.
    const bool anyStepBegins = run->row.serves();
    workspace_.query<StripRows>(
        this, "tokens", run->key,
        [=](TraceReader& reader) {
            StripRows rows;
            rows.steps = reader.steps(runId, from);
            if (!rows.steps.empty()) {
                rows.tokens = reader.tokens(runId, sequence, from);
                // Tokens written after the steps were read come with the next fetch.
                const int known = rows.steps.back().step;
                std::erase_if(rows.tokens, [known](const TokenRow& row) { return row.step > known; });
            }
            if (withPrompt) {
                if (!rows.tokens.empty()) {
                    rows.promptTokens = rows.tokens.front().position;
                    const int first = std::max(0, rows.promptTokens - kPromptTail);
                    rows.prompt = reader.prompt(runId, sequence, first, rows.promptTokens - first);
                    if (!rows.prompt.empty()) rows.promptTokens = rows.prompt.back().position + 1;
                    rows.promptKnown = !rows.prompt.empty() || anyStepBegins || rows.tokens.front().step == 0;
                } else {
                    rows.prompt = reader.prompt(runId, sequence);
                    rows.promptTokens = int(rows.prompt.size());
                    if (rows.promptTokens > kPromptTail)
                        rows.prompt.erase(rows.prompt.begin(), rows.prompt.end() - kPromptTail);
                }
            }
            readFact(reader, runId, sequence, withPrompt, rows);
            return rows;
        },
        [this, withPrompt](StripRows rows) {
            fetching_ = false;
            if (withPrompt && rows.promptTokens > 0) {
                strip_->setPrompt(promptChips(rows));
                promptTokens_ = rows.promptTokens;
                promptKnown_ = rows.promptKnown;
                started_ = true;
            }
            answer_ = QString::fromStdString(rows.answer);
            const OpenRun* shown = workspace_.current();
            const bool known = shown == nullptr || shown->row.knows.has(Known::Hits);
            strip_->setFirstDecode(shown ? shown->row.prompts.firstDecode() : 1);
            for (const StepRow& step : rows.steps) strip_->setMisses(step.step, known ? step.misses : -1);
            strip_->append(toChips(rows.tokens, true));
            if (!rows.steps.empty()) knownSteps_ = rows.steps.back().step + 1;
            if (shown && !shown->live && shown->row.status != RunStatus::Running)
                strip_->setEmptyText(shown->row.sequences > 1
                                         ? tr("No tokens of sequence %1 were recorded.").arg(shownSequence_)
                                         : tr("No tokens of this run were recorded."));
            if (follow_->isChecked() && knownSteps_ > 0) {
                moving_ = true;
                Cursor cursor = workspace_.cursor();
                cursor.step = knownSteps_ - 1;
                workspace_.setCursor(cursor, CursorMove::Follow);
                // `setCursor` clamps: the known row of the run may be a step behind.
                followedStep_ = workspace_.cursor().step;
                moving_ = false;
            }
            showHeading();
            showCursor();
            if (std::exchange(again_, false)) fetch();
        });
}

void TokenPanel::showCursor() {
    const Cursor& cursor = workspace_.cursor();
    if (cursor.sequence != shownSequence_) {
        restart();
        return;
    }
    // The user moved the cursor away from the newest step, so the panel stops following the live run.
    if (!moving_ && cursor.step != followedStep_ && cursor.step < knownSteps_ - 1) follow_->setChecked(false);
    strip_->setCursor(cursor.step, cursor.firstStep, cursor.lastStep);
    const OpenRun* run = workspace_.current();
    const int size = run && cursor.block >= 0 ? run->row.blockSize : 0;
    strip_->setBlock(cursor.block * size, (cursor.block + 1) * size);
    showHeading();
}

void TokenPanel::showHeading() {
    const OpenRun* run = workspace_.current();
    const int sequences = run ? run->row.sequences : 0;
    if (sequence_->count() != sequences) {
        const QSignalBlocker quiet(sequence_);
        sequence_->clear();
        for (int sequence = 0; sequence < sequences; ++sequence) sequence_->addItem(QString::number(sequence));
    }
    {
        const QSignalBlocker quiet(sequence_);
        sequence_->setCurrentIndex(std::min(shownSequence_, sequences - 1));
    }
    sequence_->setVisible(sequences > 1);
    sequenceLabel_->setVisible(sequences > 1);
    follow_->setVisible(run && run->live);
    if (!run) {
        place_->clear();
        place_->setToolTip({});
        return;
    }
    const Cursor& cursor = workspace_.cursor();
    const int generated = strip_->chipCount() - strip_->promptCount();
    QStringList parts;
    if (promptTokens_ > 0)
        parts << (promptKnown_ ? tr("%1 prompt tokens") : tr("%1 tokens before")).arg(formatCount(promptTokens_));
    if (generated > 0 || knownSteps_ == 0 || run->live) // a recording without tokens does not say how many there were
        parts << tr("%1 generated").arg(formatCount(generated));
    // An iteration that decoded nothing, or a canvas whose forwards all read the prompt, is no prefill.
    const bool prefills = !run->row.serves() && !denoisesCanvas(run->row);
    if (knownSteps_ > 0)
        parts << (prefills && run->row.prompts.readsPrompt(cursor.step)
                      ? tr("step %1 of %2 (prefill)").arg(cursor.step).arg(knownSteps_ - 1)
                      : tr("step %1 of %2").arg(cursor.step).arg(knownSteps_ - 1));
    if (!answer_.isEmpty()) parts << tr("answer: %1").arg(answer_);
    if (cursor.firstStep >= 0) parts << tr("steps %1 to %2 chosen").arg(cursor.firstStep).arg(cursor.lastStep);
    place_->setText(parts.join(QStringLiteral("  ·  ")));
    place_->setToolTip(asWritten(place_->text()));
}

} // namespace kvscope::ui
