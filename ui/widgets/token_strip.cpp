#include "ui/widgets/token_strip.h"

#include "profiler/read/token_text.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"

#include <QAccessible>
#include <QFontMetricsF>
#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QScrollBar>
#include <QToolTip>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

// Pixels at the left, where each line shows the step of its first token.
constexpr int kGutter = 52;
constexpr int kMargin = 6;
constexpr double kChipPadding = 2; // pixels of a chip's box beside its text, at the beginning and the end of a word
constexpr double kSlit = 0.5;      // pixels of a chip's box that are left out where its word goes on
constexpr int kBarHeight = 7;
constexpr int kLineGap = 4;
// Pixels before a token that begins with a blank; others follow at once: the tokens of a word read as one word.
constexpr double kWordGap = 9;

bool beginsWord(const std::string& bytes) {
    return bytes.empty() || bytes.front() == ' ' || bytes.front() == '\n' || bytes.front() == '\t';
}

} // namespace

TokenStrip::TokenStrip(QWidget* parent) : QAbstractScrollArea(parent) {
    setFocusPolicy(Qt::StrongFocus);
    setFrameShape(QFrame::NoFrame);
    setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    setObjectName(QStringLiteral("tokenStrip"));
    setAccessibleName(tr("Tokens"));
    setWhatsThis(
        tr("Every generated token. A click chooses its step in all views; dragging chooses a range of steps."));
    setMinimumHeight(lineHeight() + kMargin);
    viewport()->setMouseTracking(true);
    relayout();
}

void TokenStrip::setEmptyText(const QString& text) {
    if (std::exchange(emptyText_, text) != text) viewport()->update();
}

QSize TokenStrip::sizeHint() const { return {600, 3 * lineHeight() + 2 * kMargin}; }

int TokenStrip::lineHeight() const { return fontMetrics().height() + 6 + kBarHeight + kLineGap; }

void TokenStrip::clear() {
    chips_.clear();
    misses_.clear();
    largestMisses_ = 0;
    promptCount_ = 0;
    anchor_ = -1;
    find();
    relayout();
}

void TokenStrip::setPrompt(std::vector<TokenChip> tail) {
    clear();
    chips_ = std::move(tail);
    promptCount_ = int(chips_.size());
    find();
    relayout();
    verticalScrollBar()->setValue(verticalScrollBar()->maximum()); // show the end, where new tokens appear
}

void TokenStrip::append(std::vector<TokenChip> chips) {
    chips_.reserve(chips_.size() + chips.size());
    for (TokenChip& chip : chips) {
        chips_.push_back(std::move(chip));
        addToFlow(chips_.size() - 1);
    }
    find();
    updateScrollBar();
    viewport()->update();
}

void TokenStrip::setMisses(int step, std::int64_t misses) {
    if (step < 0) return;
    if (step >= misses_.count()) misses_.resize(step + 1, -1);
    misses_[step] = misses;
    // The first decode step misses because its slots are empty.
    if (step > firstDecode_) largestMisses_ = std::max(largestMisses_, misses);
    viewport()->update();
}

void TokenStrip::setCursor(int step, int firstStep, int lastStep) {
    if (step == step_ && firstStep == firstStep_ && lastStep == lastStep_) return;
    const bool moved = step != step_;
    step_ = step;
    firstStep_ = firstStep;
    lastStep_ = lastStep;
    if (moved && !dragging_) reveal(chipOfStep(step));
    if (const int chip = chipOfStep(step); chip >= 0 && QAccessible::isActive())
        setAccessibleDescription(tokenText(chips_[chip].bytes) + QStringLiteral(", ") + tipOf(chip));
    viewport()->update();
}

void TokenStrip::setBlock(int firstPosition, int endPosition) {
    if (firstPosition == firstOfBlock_ && endPosition == endOfBlock_) return;
    firstOfBlock_ = firstPosition;
    endOfBlock_ = endPosition;
    viewport()->update();
}

void TokenStrip::setFound(const QString& text) {
    foundText_ = text.toStdString();
    find();
    viewport()->update();
}

void TokenStrip::find() {
    found_.clear();
    if (foundText_.empty()) return;
    TokenText all(1); // each chip is a block of its own
    for (std::size_t chip = 0; chip < chips_.size(); ++chip) {
        TokenRow row;
        row.position = int(chip);
        row.bytes = chips_[chip].bytes;
        all.add(row);
    }
    for (const std::size_t match : all.firstMatches(foundText_)) found_.push_back(match != TokenText::kNowhere);
}

int TokenStrip::lastStep() const { return int(chips_.size()) > promptCount_ ? chips_.back().step : -1; }

void TokenStrip::addToFlow(std::size_t index) {
    const TokenChip& chip = chips_[index];
    const QString shown = tokenText(chip.bytes);
    auto width = widths_.constFind(shown);
    if (width == widths_.constEnd())
        width = widths_.insert(shown, float(QFontMetricsF(font()).horizontalAdvance(shown)));
    flow_.append(double(*width), beginsWord(chip.bytes) ? kWordGap : 0);
}

void TokenStrip::relayout() {
    flow_.reset(std::max(80, viewport()->width() - kGutter - kMargin));
    for (std::size_t index = 0; index < chips_.size(); ++index) addToFlow(index);
    updateScrollBar();
    viewport()->update();
}

void TokenStrip::updateScrollBar() {
    const int content = flow_.lines() * lineHeight() + 2 * kMargin;
    verticalScrollBar()->setPageStep(viewport()->height());
    verticalScrollBar()->setSingleStep(lineHeight());
    // The range is a multiple of the line height, so that the first visible line is never cut.
    const int hidden = std::max(0, content - viewport()->height());
    const bool atEnd = verticalScrollBar()->value() == verticalScrollBar()->maximum();
    verticalScrollBar()->setRange(0, (hidden + lineHeight() - 1) / lineHeight() * lineHeight());
    if (atEnd) verticalScrollBar()->setValue(verticalScrollBar()->maximum());
}

int TokenStrip::chipOfStep(int step) const {
    const auto begin = chips_.begin() + promptCount_;
    const auto found =
        std::lower_bound(begin, chips_.end(), step, [](const TokenChip& chip, int s) { return chip.step < s; });
    if (found == chips_.end()) return chips_.end() == begin ? -1 : int(chips_.size()) - 1;
    return int(found - chips_.begin());
}

int TokenStrip::chipAt(QPoint point) const {
    const int y = point.y() + verticalScrollBar()->value() - kMargin;
    return y < 0 ? -1 : flow_.at(y / lineHeight(), point.x() - kGutter);
}

void TokenStrip::reveal(int chip) {
    if (chip < 0) return;
    const int line = flow_.lineOf(chip), top = verticalScrollBar()->value() / lineHeight();
    const int inSight = std::max(1, (viewport()->height() - kMargin) / lineHeight());
    if (line < top)
        verticalScrollBar()->setValue(line * lineHeight());
    else if (line >= top + inSight)
        verticalScrollBar()->setValue((line - inSight + 1) * lineHeight());
}

QPoint TokenStrip::revealStep(int step) {
    const int chip = chipOfStep(step);
    if (chip < 0) return {};
    reveal(chip);
    return {int(kGutter + flow_.left(chip) + flow_.width(chip) / 2),
            flow_.lineOf(chip) * lineHeight() + kMargin + lineHeight() / 3 - verticalScrollBar()->value()};
}

double TokenStrip::barShare(int step) const {
    if (step < 0 || step >= misses_.count() || misses_[step] < 0 || largestMisses_ == 0) return 0;
    return std::min(1.0, double(misses_[step]) / double(largestMisses_));
}

void TokenStrip::paintEvent(QPaintEvent*) {
    const Theme& theme = Theme::current();
    QPainter painter(viewport());
    painter.fillRect(viewport()->rect(), theme.base);
    if (chips_.empty()) {
        painter.setPen(theme.mutedText);
        painter.drawText(viewport()->rect().adjusted(8, 0, -8, 0), Qt::AlignCenter | Qt::TextWordWrap,
                         emptyText_.isEmpty() ? tr("Generated tokens appear here. Each one is a step of all views.")
                                              : emptyText_);
        return;
    }
    painter.setRenderHint(QPainter::Antialiasing);
    const int height = lineHeight(), chipHeight = fontMetrics().height() + 4;
    const int scroll = verticalScrollBar()->value();
    const int first = std::max(0, (scroll - kMargin) / height);
    const int last = std::min(flow_.lines() - 1, (scroll + viewport()->height()) / height);
    const int current = chipOfStep(step_);
    const QColor onAccent = palette().color(QPalette::HighlightedText);
    QColor range = theme.accent, chipFill = theme.text;
    range.setAlphaF(0.28F);
    chipFill.setAlphaF(0.07F);
    QFont small = font();
    small.setPointSizeF(small.pointSizeF() * 0.85);

    for (int line = first; line <= last; ++line) {
        const double top = line * height + kMargin - scroll;
        const TokenChip& head = chips_[flow_.firstOfLine(line)];
        painter.setFont(small);
        painter.setPen(theme.mutedText);
        painter.drawText(QRectF(0, top, kGutter - 10, chipHeight), Qt::AlignRight | Qt::AlignVCenter,
                         head.step < 0 ? (line == first ? tr("prompt") : QString()) : QString::number(head.step));
        painter.setFont(font());
        for (int index = flow_.firstOfLine(line); index < flow_.endOfLine(line); ++index) {
            const TokenChip& chip = chips_[index];
            const bool begins = index == flow_.firstOfLine(line) || beginsWord(chip.bytes);
            const bool ends = index + 1 == flow_.endOfLine(line) || beginsWord(chips_[index + 1].bytes);
            const QRectF text(kGutter + flow_.left(index), top, flow_.width(index), chipHeight);
            const QRectF box = text.adjusted(begins ? -kChipPadding : kSlit, 0, ends ? kChipPadding : -kSlit, 0);
            const bool generated = chip.step >= 0, isCurrent = index == current;
            const bool inRange = generated && firstStep_ >= 0 && chip.step >= firstStep_ && chip.step <= lastStep_;
            if (generated) {
                painter.setPen(Qt::NoPen);
                painter.setBrush(isCurrent ? theme.accent : inRange ? range : chipFill);
                painter.drawRoundedRect(box, 3, 3);
            }
            if (chip.ofFact) painter.fillRect(box, range);
            if (isFound(index)) {
                painter.setPen(QPen(theme.found, 1.4));
                painter.setBrush(Qt::NoBrush);
                painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), 3, 3);
            }
            painter.setPen(chip.ofFact ? theme.text : !generated ? theme.mutedText : isCurrent ? onAccent : theme.text);
            painter.drawText(text, Qt::AlignCenter | Qt::TextDontClip, tokenText(chip.bytes));
            if (chip.position >= firstOfBlock_ && chip.position < endOfBlock_)
                painter.fillRect(QRectF(box.left(), box.bottom() - 1, box.width(), 2), theme.accent);
            const double share = barShare(chip.step);
            if (share > 0) {
                const double bar = std::max(1.5, share * kBarHeight);
                painter.setPen(Qt::NoPen);
                painter.setBrush(theme.miss);
                painter.drawRect(QRectF(box.left() + 1, box.bottom() + 1, box.width() - 2, bar));
            }
        }
    }
    if (hasFocus()) {
        painter.setRenderHint(QPainter::Antialiasing, false);
        painter.setPen(theme.accent);
        painter.setBrush(Qt::NoBrush);
        painter.drawRect(viewport()->rect().adjusted(0, 0, -1, -1));
    }
}

void TokenStrip::choose(int index, bool extend) {
    if (index < 0 || index >= chipCount()) return;
    const TokenChip& chip = chips_[index];
    if (chip.step < 0) {
        if (chip.position >= 0) emit promptTokenChosen(chip.position);
        return;
    }
    if (extend && anchor_ >= 0) {
        emit rangeChosen(std::min(anchor_, chip.step), std::max(anchor_, chip.step));
    } else {
        anchor_ = chip.step;
        if (firstStep_ >= 0) emit rangeCleared();
    }
    emit stepChosen(chip.step);
}

void TokenStrip::mousePressEvent(QMouseEvent* event) {
    if (event->button() != Qt::LeftButton) return;
    if (anchor_ < 0) anchor_ = step_;
    dragging_ = true;
    choose(chipAt(event->pos()), event->modifiers().testFlag(Qt::ShiftModifier));
}

void TokenStrip::mouseMoveEvent(QMouseEvent* event) {
    if (!dragging_ || !(event->buttons() & Qt::LeftButton)) return;
    const int index = chipAt(event->pos());
    if (index < promptCount_ || anchor_ < 0) return;
    const int step = chips_[index].step;
    if (step == step_) return;
    choose(index, true);
    reveal(index);
}

void TokenStrip::mouseReleaseEvent(QMouseEvent*) { dragging_ = false; }

std::vector<ShortcutText> TokenStrip::gestures() {
    const QString strip = tr("Token strip");
    return {
        {strip, tr("Step back, forward, a line up, a line down"), tr("← → ↑ ↓")},
        {strip, tr("A page up, a page down"), tr("PgUp, PgDown")},
        {strip, tr("First and last step"), tr("Home, End")},
        {strip, tr("Choose a range of steps"), tr("Shift+arrows, drag")},
        {strip, tr("Clear the range"), tr("Esc")},
    };
}

void TokenStrip::keyPressEvent(QKeyEvent* event) {
    const int current = chipOfStep(step_);
    if (current < 0) return QAbstractScrollArea::keyPressEvent(event);
    const int page = std::max(1, viewport()->height() / lineHeight() - 1);
    int target = current;
    switch (event->key()) {
    case Qt::Key_Left:
        target = current - 1;
        break;
    case Qt::Key_Right:
        target = current + 1;
        break;
    case Qt::Key_Up:
        target = flow_.moved(current, -1);
        break;
    case Qt::Key_Down:
        target = flow_.moved(current, 1);
        break;
    case Qt::Key_PageUp:
        target = flow_.moved(current, -page);
        break;
    case Qt::Key_PageDown:
        target = flow_.moved(current, page);
        break;
    case Qt::Key_Home:
        target = promptCount_;
        break;
    case Qt::Key_End:
        target = chipCount() - 1;
        break;
    case Qt::Key_Escape:
        anchor_ = -1;
        emit rangeCleared();
        return;
    default:
        return QAbstractScrollArea::keyPressEvent(event);
    }
    const bool extend = event->modifiers().testFlag(Qt::ShiftModifier);
    if (extend && anchor_ < 0) anchor_ = step_;
    choose(std::clamp(target, std::min(promptCount_, chipCount() - 1), chipCount() - 1), extend);
}

QString TokenStrip::generatedText(int firstStep, int lastStep) const {
    std::string bytes;
    for (const TokenChip& chip : chips_)
        if (chip.step >= firstStep && chip.step >= 0 && (lastStep < 0 || chip.step <= lastStep)) bytes += chip.bytes;
    return QString::fromStdString(bytes);
}

void TokenStrip::contextMenuEvent(QContextMenuEvent* event) {
    event->accept();
    if (event->reason() == QContextMenuEvent::Keyboard) {
        const QPoint at = revealStep(step_);
        emit menuRequested(viewport()->mapToGlobal(at), chipOfStep(step_) >= 0 ? step_ : -1);
        return;
    }
    const int index = chipAt(viewport()->mapFromGlobal(event->globalPos()));
    emit menuRequested(event->globalPos(), index >= promptCount_ ? chips_[index].step : -1);
}

void TokenStrip::resizeEvent(QResizeEvent* event) {
    QAbstractScrollArea::resizeEvent(event);
    relayout();
    reveal(chipOfStep(step_));
}

void TokenStrip::changeEvent(QEvent* event) {
    QAbstractScrollArea::changeEvent(event);
    if (event->type() == QEvent::FontChange || event->type() == QEvent::StyleChange) {
        widths_.clear();
        relayout();
    }
}

bool TokenStrip::viewportEvent(QEvent* event) {
    if (event->type() == QEvent::ToolTip) {
        const auto* help = static_cast<QHelpEvent*>(event);
        const int index = chipAt(help->pos());
        if (index >= 0) QToolTip::showText(help->globalPos(), tipOf(index), viewport());
        return true;
    }
    return QAbstractScrollArea::viewportEvent(event);
}

QString TokenStrip::tipOf(int index) const {
    const TokenChip& chip = chips_[index];
    if (chip.position < 0) return tr("tokens of the prompt that are not shown");
    QString tip = chip.ofFact     ? tr("prompt, the fact that is asked for")
                  : chip.step < 0 ? tr("prompt")
                                  : tr("step %1").arg(chip.step);
    tip += tr(" · position %1 · token %2").arg(formatCount(chip.position)).arg(chip.id);
    const std::int64_t misses = chip.step >= 0 && chip.step < misses_.count() ? misses_[chip.step] : -1;
    if (misses >= 0) tip += tr(" · %1 misses").arg(formatCount(misses));
    if (chip.step == firstDecode_ && misses > 0) tip += tr(" (first decode step: they fill empty slots)");
    return tip;
}

} // namespace kvscope::ui
