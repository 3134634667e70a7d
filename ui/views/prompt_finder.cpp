#include "ui/views/prompt_finder.h"

#include "ui/frame/as_written.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/found_plottable.h"
#include "ui/plots/plot_canvas.h"

#include <QHBoxLayout>
#include <QKeyEvent>
#include <QLineEdit>
#include <QMenu>
#include <QShortcut>
#include <QToolButton>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr std::size_t kListed = 25;
// Width of the field in logical pixels. A view of a window of 1280 pixels has room for the narrow one beside the
// pickers; wider views have room for more, and in narrower ones the field begins a second row.
constexpr int kNarrowField = 108, kWideField = 200, kNarrowFrom = 560, kNarrowTo = 760;

int fieldWidth(int view) {
    if (view >= kNarrowFrom && view < kNarrowTo) return kNarrowField;
    return view < kNarrowFrom ? kWideField : std::clamp(view / 5, kNarrowField, kWideField + 60);
}

/// One line: control characters, line ends among them, become spaces.
QString inOneLine(const std::string& text) {
    QString line = QString::fromStdString(text);
    for (QChar& c : line)
        if (c.category() == QChar::Other_Control) c = QLatin1Char(' ');
    return line.simplified();
}

} // namespace

PromptFinder::PromptFinder(Workspace& workspace, PlotCanvas& plot, QCPAxisRect* main, QObject* parent)
    : QObject(parent), workspace_(workspace), plot_(plot),
      marks_(new FoundPlottable(main->axis(QCPAxis::atBottom), main->axis(QCPAxis::atLeft))) {
    makeTools();
}

QWidget* PromptFinder::field() const { return field_; }

void PromptFinder::makeTools() {
    field_ = new QLineEdit;
    field_->setObjectName(QStringLiteral("search"));
    field_->setAccessibleName(tr("Find in the prompt"));
    field_->setToolTip(tr("Finds every block of the prompt that holds this text, also blocks that were not selected. "
                          "Enter goes to the next one, Shift+Enter to the previous one."));
    field_->setClearButtonEnabled(true);
    field_->setFixedWidth(kNarrowField);
    if (parent()->isWidgetType()) parent()->installEventFilter(this);
    field_->installEventFilter(this);
    results_ = new QWidget;
    results_->hide();
    auto* row = new QHBoxLayout(results_);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(4);
    const auto button = [&](const char* name, const QString& text, const QString& help) {
        auto* made = new QToolButton;
        made->setObjectName(QLatin1String(name));
        made->setText(text);
        made->setToolTip(help);
        made->setAccessibleName(help);
        row->addWidget(made);
        return made;
    };
    previous_ = button("previousFound", QStringLiteral("‹"), tr("Previous found block (Shift+F3)"));
    next_ = button("nextFound", QStringLiteral("›"), tr("Next found block (F3)"));
    count_ = button("foundBlocks", {}, tr("List of the found blocks"));
    count_->setPopupMode(QToolButton::InstantPopup);
    list_ = new QMenu(count_);
    list_->setObjectName(QStringLiteral("foundList"));
    list_->setToolTipsVisible(true);
    count_->setMenu(list_);
    connect(list_, &QMenu::aboutToShow, this, &PromptFinder::fillList);
    connect(field_, &QLineEdit::textChanged, this, &PromptFinder::search);
    connect(previous_, &QToolButton::clicked, this, [this] { go(false); });
    connect(next_, &QToolButton::clicked, this, [this] { go(true); });
    if (auto* view = qobject_cast<QWidget*>(parent()))
        for (const bool forward : {true, false}) {
            auto* keys = new QShortcut(forward ? QKeySequence(Qt::Key_F3) : QKeySequence(Qt::SHIFT | Qt::Key_F3), view);
            keys->setContext(Qt::WidgetWithChildrenShortcut);
            keys->setWhatsThis(forward ? tr("Next block that holds the found text") : tr("Previous one"));
            connect(keys, &QShortcut::activated, this, [this, forward] { go(forward); });
        }
}

QString PromptFinder::wanted() const { return field_->text().isEmpty() ? workspace_.filter().text : field_->text(); }

void PromptFinder::restart() {
    const QString filtered = workspace_.filter().text;
    const OpenRun* run = workspace_.current();
    const RunKey key = run != nullptr ? run->key : RunKey();
    if (key != key_ || workspace_.cursor().sequence != at_.sequence) { // nothing here is of that prompt
        key_ = key;
        matches_ = {};
        choices_.clear();
        marks_->setMarks(0, {});
    }
    field_->setPlaceholderText(filtered.isEmpty() ? tr("Find text") : tr("Filter: %1").arg(filtered));
    search();
}

void PromptFinder::search() {
    answered_ = false;
    const OpenRun* run = workspace_.current();
    const QString text = wanted();
    workspace_.setSoughtText(text);
    if (run == nullptr || text.isEmpty()) {
        if (run != nullptr) // a search that is still running must not answer for the text before
            workspace_.query<int>(
                this, "find in prompt", run->key, [](TraceReader&) { return 0; }, [](int) {});
        matches_ = {};
        askHeads();
        return;
    }
    const int sequence = workspace_.cursor().sequence;
    workspace_.query<PromptMatches>(
        this, "find in prompt", run->key,
        [runId = run->key.runId, sequence, text = text.toStdString()](TraceReader& reader) {
            return findInPrompt(reader, runId, sequence, text);
        },
        [this](PromptMatches matches) {
            matches_ = std::move(matches);
            answered_ = true;
            askHeads();
        });
}

void PromptFinder::advance() {
    if (wanted().isEmpty()) return;
    if (!answered_ || matches_.promptTokens == 0) // the prompt was not written yet
        search();
    else
        askHeads();
}

void PromptFinder::moved() {
    const Cursor& cursor = workspace_.cursor();
    if (cursor.step != at_.step || cursor.layer != at_.layer || cursor.kvHead != at_.kvHead)
        askHeads();
    else
        showCount();
}

/// Asks which heads selected the found blocks at the cursor's step. Until the answer is there, the plot keeps the marks
/// of the step before.
void PromptFinder::askHeads() {
    const Cursor& cursor = workspace_.cursor();
    at_ = {cursor.step, cursor.sequence, cursor.layer, cursor.kvHead};
    choices_.clear();
    const OpenRun* run = workspace_.current();
    if (run == nullptr || found().empty()) {
        marks_->setMarks(at_.step, {});
        showCount();
        emit changed();
        return;
    }
    workspace_.query<std::vector<BlockChoice>>(
        this, "heads of found blocks", run->key,
        [row = run->row, at = at_, blocks = found()](TraceReader& reader) {
            return blockChoices(reader, row, at, blocks);
        },
        [this](std::vector<BlockChoice> choices) {
            if (choices.size() != found().size()) return;
            choices_ = std::move(choices);
            std::vector<FoundPlottable::Mark> marks;
            marks.reserve(choices_.size());
            for (std::size_t i = 0; i < choices_.size(); ++i) marks.push_back({found()[i].block, choices_[i].head});
            marks_->setMarks(at_.step, std::move(marks));
            showCount();
            emit changed();
        });
    showCount();
}

std::optional<std::size_t> PromptFinder::current() const {
    const int block = workspace_.cursor().block;
    const auto at = std::lower_bound(found().begin(), found().end(), block,
                                     [](const FoundBlock& one, int wantedBlock) { return one.block < wantedBlock; });
    if (at == found().end() || at->block != block) return std::nullopt;
    return std::size_t(at - found().begin());
}

void PromptFinder::showCount() {
    const int blocks = int(found().size());
    QString text;
    if (answered_ && blocks == 0 && matches_.promptTokens > 0) text = tr("not in the prompt");
    if (answered_ && blocks == 0 && matches_.promptTokens == 0) text = tr("no prompt is recorded");
    if (blocks > 0) {
        const auto at = current();
        text = blocks == 1 ? tr("1 block") : tr("%1 blocks").arg(formatCount(blocks));
        if (at && blocks > 1) text = tr("%1 of %2").arg(formatCount(std::int64_t(*at) + 1), text);
        const auto selected = std::count_if(choices_.begin(), choices_.end(), [](const BlockChoice& choice) {
            return choice.head == BlockChoice::Head::Selected;
        });
        if (!choices_.empty() && choices_.front().head == BlockChoice::Head::ChoseNone)
            text += tr(", no choice here");
        else if (!choices_.empty())
            text += tr(", %1 selected").arg(formatCount(selected));
    }
    results_->setVisible(!wanted().isEmpty());
    count_->setText(text);
    count_->setVisible(!text.isEmpty());
    for (QToolButton* each : {previous_, next_, count_}) each->setEnabled(blocks > 0);
    QString help = tr("List of the found blocks. Counted is what KV head %1 of layer %2 selected at step %3.")
                       .arg(at_.kvHead)
                       .arg(at_.layer)
                       .arg(formatCount(at_.step));
    count_->setToolTip(help);
    count_->setAccessibleName(text.isEmpty() ? help : text + QStringLiteral(". ") + help);
}

QString PromptFinder::sentenceOf(const BlockChoice& choice) const {
    const QString step = formatCount(at_.step);
    if (choice.choosing == 0) return tr("No KV head of layer %1 chose blocks at step %2").arg(at_.layer).arg(step);
    if (choice.heads == 0) return tr("Not selected by any KV head of layer %1 at step %2").arg(at_.layer).arg(step);
    return tr("Selected by %1 of %2 KV heads of layer %3 at step %4")
        .arg(choice.heads)
        .arg(choice.choosing)
        .arg(at_.layer)
        .arg(step);
}

QString PromptFinder::blockText(int block) const {
    for (std::size_t i = 0; i < choices_.size(); ++i)
        if (found()[i].block == block)
            return tr("<br>Holds “%1”. %2.").arg(wanted().toHtmlEscaped(), sentenceOf(choices_[i]));
    return {};
}

QVector<Swatch> PromptFinder::swatches(const Theme& theme) const {
    if (found().empty()) return {};
    if (!choices_.empty() && choices_.front().head == BlockChoice::Head::ChoseNone)
        return {Swatch{tr("found; no choice at the cursor's step"), theme.found, Swatch::Mark::Line, {}}};
    return {Swatch{tr("found, selected at the cursor's step"), theme.found, Swatch::Mark::Fill, {}},
            Swatch{tr("found, not selected there"), theme.found, Swatch::Mark::Frame, {}}};
}

void PromptFinder::applyTheme(const Theme& theme) { marks_->setColours(theme.found, theme.plotBackground); }

void PromptFinder::goTo(int block) {
    Cursor cursor = workspace_.cursor();
    cursor.block = block;
    workspace_.setCursor(cursor);
    showCount();
}

void PromptFinder::go(bool forward) {
    if (found().empty()) return;
    const int from = workspace_.cursor().block;
    const FoundBlock* to = nullptr;
    for (const FoundBlock& one : found()) {
        if (forward && one.block > from) {
            to = &one;
            break;
        }
        if (!forward && one.block < from) to = &one;
    }
    if (to == nullptr) to = forward ? &found().front() : &found().back(); // around the end
    goTo(to->block);
}

/// The blocks around the one on which the cursor stands.
void PromptFinder::fillList() {
    list_->clear();
    const std::size_t count = found().size(), middle = current().value_or(0);
    const std::size_t first = count <= kListed ? 0 : std::min(middle - std::min(middle, kListed / 2), count - kListed);
    const std::size_t end = std::min(first + kListed, count);
    const auto left = [this](std::size_t blocks, const QString& text) {
        if (blocks > 0) list_->addAction(text.arg(formatCount(std::int64_t(blocks))))->setEnabled(false);
    };
    left(first, tr("%1 more before"));
    for (std::size_t i = first; i < end; ++i) {
        QString text = tr("Block %1: “%2”").arg(formatCount(found()[i].block), inOneLine(found()[i].text));
        QAction* entry = list_->addAction(QString(), this, [this, block = found()[i].block] { goTo(block); });
        if (i < choices_.size()) {
            text += QStringLiteral("\t") + sentenceOf(choices_[i]);
            entry->setToolTip(asWritten(sentenceOf(choices_[i])));
        }
        entry->setText(buttonText(text));
        entry->setCheckable(true);
        entry->setChecked(current() == i);
    }
    left(count - end, tr("%1 more after"));
}

bool PromptFinder::eventFilter(QObject* watched, QEvent* event) {
    if (watched == parent() && event->type() == QEvent::Resize)
        field_->setFixedWidth(fieldWidth(static_cast<QWidget*>(watched)->width()));
    if (watched != field_ || event->type() != QEvent::KeyPress) return false;
    const auto* key = static_cast<QKeyEvent*>(event);
    if (key->key() == Qt::Key_Return || key->key() == Qt::Key_Enter) {
        go(!key->modifiers().testFlag(Qt::ShiftModifier));
        return true;
    }
    if (key->key() != Qt::Key_Escape) return false;
    field_->clear();
    plot_.setFocus(Qt::ShortcutFocusReason);
    return true;
}

} // namespace kvscope::ui
