// The row above the timeline: search, and buttons for what keys do too.
#include "profiler/read/span_search.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"
#include "ui/views/timeline/timeline_view.h"

#include <QHBoxLayout>
#include <QKeyEvent>
#include <QLineEdit>
#include <QToolButton>

namespace kvscope::ui {

namespace {
constexpr std::size_t kNumbered = 4'000'000; // spans up to which a hit is told its number: some 20 ms

/// A stage is found by what it does as well: "attention" finds stage2.
std::string wordsOf(std::string_view component) { return meaningOf(component).toStdString(); }
} // namespace

QWidget* TimelineView::makeTools() {
    tools_ = new QWidget;
    tools_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Fixed); // never what keeps a window wide
    auto* row = new QHBoxLayout(tools_);
    row->setContentsMargins(0, 0, 0, 0);
    search_ = new QLineEdit;
    search_->setObjectName(QStringLiteral("search"));
    search_->setAccessibleName(tr("Search spans"));
    search_->setPlaceholderText(tr("Search spans ( / )"));
    search_->setToolTip(tr("Words of a span's name or of what it does: attention finds stage2"));
    search_->setClearButtonEnabled(true);
    search_->setMaximumWidth(320);
    search_->installEventFilter(this);
    hits_ = new MutedLabel;
    hits_->setObjectName(QStringLiteral("hits"));
    row->addWidget(search_);
    const auto button = [&](const char* name, const QString& text, const QString& help, const auto& pressed) {
        auto* made = new QToolButton;
        made->setObjectName(QLatin1String(name));
        made->setText(text);
        made->setToolTip(help);
        made->setAccessibleName(help);
        row->addWidget(made);
        connect(made, &QToolButton::clicked, this, pressed);
        return made;
    };
    auto* back = button("previousHit", QStringLiteral("‹"), tr("Previous hit (Shift+N)"), [this] { goToMatch(false); });
    auto* next = button("nextHit", QStringLiteral("›"), tr("Next hit (N)"), [this] { goToMatch(true); });
    row->addWidget(hits_);
    row->addStretch();
    button("previousStep", tr("‹ Step"), tr("Previous step (Left)"), [this] { moveCursor(-1, 0); });
    button("nextStep", tr("Step ›"), tr("Next step (Right)"), [this] { moveCursor(1, 0); });
    button("firstDecode", tr("Decode"), tr("Show the first decode step (1); all of them: 2"),
           [this] { showDecode(false); });
    row->addSpacing(8);
    auto* fit =
        button("fit", tr("Fit"), tr("Fit the chosen span, the range, or all steps (F)"), [this] { canvas_->fit(); });
    auto* all = button("showAll", tr("All"), tr("Show everything, also what lies before and after the steps (0)"),
                       [this] { canvas_->showAll(); });
    auto* note = button("leaveNote", tr("Note..."), tr("Leave a note at the range, the span or the pointer (M)"),
                        [this] { askNote(); });
    panelToggle_ = button("panelToggle", tr("Details"), tr("Show or hide the panel below"), [] {});
    panelToggle_->setCheckable(true);
    panelToggle_->setChecked(true);
    connect(search_, &QLineEdit::textChanged, this, &TimelineView::search);
    search_->setMinimumWidth(90);
    optionalTools_ = {note, all, fit, back, next, hits_}; // keys and menus do the same
    return tools_;
}

void TimelineView::fitTools() {
    for (QWidget* each : optionalTools_) each->show();
    for (QWidget* each : optionalTools_) {
        tools_->layout()->invalidate();
        if (tools_->layout()->minimumSize().width() <= tools_->width()) return;
        each->hide();
    }
    tools_->layout()->invalidate();
}

void TimelineView::search() {
    findMatches(false);
    updateHits();
    canvas_->dataChanged();
}

void TimelineView::findMatches(bool newOnly) {
    TimelineData& held = canvas_->data();
    if (!newOnly) held.matches.clear();
    matchNewNames(held.index, search_->text().toStdString(), wordsOf, held.matches);
}

void TimelineView::updateHits() {
    const TimelineData& held = canvas_->data();
    const std::size_t count = matchCount(held.index, held.matches);
    const auto& selected = canvas_->scene().selected;
    const std::size_t number =
        selected && held.index.size() <= kNumbered ? matchNumber(held.index, held.matches, *selected) : 0;
    hits_->setText(search_->text().trimmed().isEmpty() ? QString()
                   : count == 0                        ? tr("no span is called so")
                   : number > 0
                       ? tr("%1 of %2").arg(formatCount(std::int64_t(number)), formatCount(std::int64_t(count)))
                   : count == 1 ? tr("1 hit")
                                : tr("%1 hits").arg(formatCount(std::int64_t(count))));
}

void TimelineView::goToMatch(bool forward) {
    const TimelineData& held = canvas_->data();
    const TimelineScene& scene = canvas_->scene();
    if (matchCount(held.index, held.matches) == 0) return;
    std::optional<SpanRef> from;
    if (scene.selected && held.isMatch(held.index.at(*scene.selected).name)) from = scene.selected;
    const auto ns = std::int64_t(forward ? scene.window.from : scene.window.to);
    auto found =
        forward ? nextMatch(held.index, held.matches, from, ns) : previousMatch(held.index, held.matches, from, ns);
    if (!found) // round to the other end
        found = forward ? nextMatch(held.index, held.matches, std::nullopt, held.index.firstNs())
                        : previousMatch(held.index, held.matches, std::nullopt, held.index.endNs() + 1);
    if (found) choose(*found, true);
}

bool TimelineView::eventFilter(QObject* watched, QEvent* event) {
    if (watched == search_ && event->type() == QEvent::KeyPress) {
        auto* key = static_cast<QKeyEvent*>(event);
        if (key->key() == Qt::Key_Return || key->key() == Qt::Key_Enter) {
            goToMatch(!key->modifiers().testFlag(Qt::ShiftModifier));
            return true;
        }
        if (key->key() == Qt::Key_Escape) {
            search_->clear();
            canvas_->setFocus();
            return true;
        }
    }
    return View::eventFilter(watched, event);
}

} // namespace kvscope::ui
