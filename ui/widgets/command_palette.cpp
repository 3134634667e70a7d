#include "ui/widgets/command_palette.h"

#include "ui/look/theme.h"
#include "ui/widgets/fuzzy_match.h"

#include <QKeyEvent>
#include <QLineEdit>
#include <QListWidget>
#include <QPainter>
#include <QStyledItemDelegate>
#include <QVBoxLayout>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kMostRecent = 20, kMostShown = 200;
constexpr int kKeysRole = Qt::UserRole, kGroupRole = Qt::UserRole + 1;
constexpr QSize kPalette(620, 420); // pixels; smaller where the window has less room

/// The name at the left, group and keys at the right in the muted colour.
class PaletteDelegate final : public QStyledItemDelegate {
public:
    using QStyledItemDelegate::QStyledItemDelegate;
    QSize sizeHint(const QStyleOptionViewItem& option, const QModelIndex&) const override {
        return {100, option.fontMetrics.height() + 10};
    }
    void paint(QPainter* painter, const QStyleOptionViewItem& option, const QModelIndex& index) const override {
        const Theme& theme = Theme::current();
        const bool chosen = option.state.testFlag(QStyle::State_Selected);
        const bool enabled = index.flags().testFlag(Qt::ItemIsEnabled);
        painter->save();
        if (chosen) painter->fillRect(option.rect, option.palette.highlight());
        const QColor strong = chosen ? option.palette.highlightedText().color() : theme.text;
        const QColor weak = chosen ? option.palette.highlightedText().color() : theme.mutedText;
        const QRect row = option.rect.adjusted(12, 0, -12, 0);
        const QString keys = index.data(kKeysRole).toString(), group = index.data(kGroupRole).toString();
        const QString aside = keys.isEmpty() ? group : group + QStringLiteral("   ") + keys;
        painter->setPen(weak);
        painter->drawText(row, Qt::AlignRight | Qt::AlignVCenter, aside);
        painter->setPen(enabled ? strong : weak);
        const int room = row.width() - option.fontMetrics.horizontalAdvance(aside) - 16;
        painter->drawText(row, Qt::AlignLeft | Qt::AlignVCenter,
                          option.fontMetrics.elidedText(index.data().toString(), Qt::ElideRight, room));
        painter->restore();
    }
};

} // namespace

CommandPalette::CommandPalette(QWidget* parent, Entries entries, Typed typed)
    : QWidget(parent), entries_(std::move(entries)), typed_(std::move(typed)), field_(new QLineEdit),
      list_(new QListWidget) {
    setObjectName(QStringLiteral("commandPalette"));
    field_->setObjectName(QStringLiteral("paletteField"));
    field_->setAccessibleName(tr("What to do"));
    field_->setPlaceholderText(tr("Actions, views, layers, settings, spans"));
    field_->setClearButtonEnabled(true);
    list_->setObjectName(QStringLiteral("paletteList"));
    list_->setAccessibleName(tr("What fits"));
    list_->setFrameShape(QFrame::NoFrame);
    list_->setUniformItemSizes(true);
    list_->setFocusPolicy(Qt::NoFocus); // the field keeps the keyboard
    list_->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    list_->setItemDelegate(new PaletteDelegate(list_));
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(8, 8, 8, 8);
    layout->setSpacing(6);
    layout->addWidget(field_);
    layout->addWidget(list_, 1);
    field_->installEventFilter(this);
    parent->installEventFilter(this);
    connect(field_, &QLineEdit::textChanged, this, &CommandPalette::fill);
    connect(list_, &QListWidget::itemClicked, this, &CommandPalette::runChosen);
    connect(list_, &QListWidget::currentItemChanged, this, [this](const QListWidgetItem* chosen) {
        // The field keeps the keyboard, so a screen reader is told there what Enter would do.
        field_->setAccessibleDescription(chosen ? chosen->data(Qt::AccessibleTextRole).toString() : QString());
    });
    hide();
}

void CommandPalette::open() {
    if (!isVisible()) before_ = window()->focusWidget();
    all_ = entries_();
    field_->clear();
    fill();
    place();
    show();
    raise();
    field_->setFocus();
}

void CommandPalette::leave() {
    hide();
    if (before_) before_->setFocus(Qt::OtherFocusReason);
}

void CommandPalette::place() {
    const QSize room = parentWidget()->size();
    const QSize size(std::min(kPalette.width(), room.width() - 40), std::min(kPalette.height(), room.height() - 80));
    setGeometry((room.width() - size.width()) / 2, 56, size.width(), size.height());
}

/// What fits, the best first; of equals what was used last, then the shortest, then the order in which they were given.
/// Without letters everything fits, in that order.
void CommandPalette::fill() {
    struct Fit {
        int score = 0;
        qsizetype used = 0; // place among the recent ones; behind all: never
        const PaletteEntry* entry = nullptr;
    };
    std::vector<Fit> fits;
    for (const PaletteEntry& entry : all_) {
        const std::optional<int> score = fuzzyScore(field_->text(), entry.text + QLatin1Char(' ') + entry.group);
        if (!score) continue;
        const qsizetype place = recent_.indexOf(entry.id);
        fits.push_back({*score, place < 0 ? recent_.size() : place, &entry});
    }
    const bool typed = !field_->text().trimmed().isEmpty();
    std::stable_sort(fits.begin(), fits.end(), [typed](const Fit& a, const Fit& b) {
        if (a.score != b.score) return a.score > b.score;
        return a.used != b.used ? a.used < b.used : typed && a.entry->text.size() < b.entry->text.size();
    });
    std::vector<PaletteEntry> shown;
    for (std::size_t i = 0; i < std::min<std::size_t>(fits.size(), kMostShown); ++i) shown.push_back(*fits[i].entry);
    if (typed_ && typed)
        for (PaletteEntry& entry : typed_(field_->text().trimmed())) shown.push_back(std::move(entry));
    shown_ = std::move(shown);
    list_->clear();
    for (const PaletteEntry& entry : shown_) {
        auto* item = new QListWidgetItem(entry.checked ? entry.text + QStringLiteral("  ✓") : entry.text, list_);
        item->setData(kKeysRole, entry.keys);
        item->setData(kGroupRole, entry.group);
        item->setData(Qt::AccessibleTextRole, entry.text + QStringLiteral(", ") + entry.group);
        if (!entry.enabled) item->setFlags(item->flags() & ~Qt::ItemIsEnabled);
    }
    list_->setCurrentRow(shown_.empty() ? -1 : 0);
}

QStringList CommandPalette::listed() const {
    QStringList names;
    for (const PaletteEntry& entry : shown_) names << entry.text;
    return names;
}

void CommandPalette::runChosen() {
    const int row = list_->currentRow();
    if (row < 0 || row >= shown_.count() || !shown_[row].enabled) return;
    const PaletteEntry entry = shown_[row];
    leave(); // before it is done, because it may move the keyboard itself
    recent_.removeAll(entry.id);
    recent_.prepend(entry.id);
    while (recent_.size() > kMostRecent) recent_.removeLast();
    emit used(entry.id);
    entry.run();
}

bool CommandPalette::eventFilter(QObject* watched, QEvent* event) {
    if (watched == parentWidget() && event->type() == QEvent::Resize && isVisible()) place();
    if (watched != field_) return QWidget::eventFilter(watched, event);
    if (event->type() == QEvent::FocusOut && isVisible()) hide();
    if (event->type() != QEvent::KeyPress) return false;
    const auto* key = static_cast<QKeyEvent*>(event);
    const int rows = list_->count(), row = list_->currentRow(), page = std::max(1, list_->height() / 26);
    const auto go = [&](int to) {
        if (rows > 0) list_->setCurrentRow(std::clamp(to, 0, rows - 1));
        return true;
    };
    switch (key->key()) {
    case Qt::Key_Escape:
        leave();
        return true;
    case Qt::Key_Return:
    case Qt::Key_Enter:
        runChosen();
        return true;
    case Qt::Key_Down:
        return go(row + 1 < rows ? row + 1 : 0);
    case Qt::Key_Up:
        return go(row > 0 ? row - 1 : rows - 1);
    case Qt::Key_PageDown:
        return go(row + page);
    case Qt::Key_PageUp:
        return go(row - page);
    case Qt::Key_Tab:
    case Qt::Key_Backtab:
        return true; // nothing else is behind it that the user sees
    default:
        return false;
    }
}

void CommandPalette::paintEvent(QPaintEvent*) {
    const Theme& theme = Theme::current();
    QPainter painter(this);
    painter.setRenderHint(QPainter::Antialiasing);
    painter.setPen(theme.border);
    painter.setBrush(theme.raised);
    painter.drawRoundedRect(QRectF(rect()).adjusted(0.5, 0.5, -0.5, -0.5), 8, 8);
}

} // namespace kvscope::ui
