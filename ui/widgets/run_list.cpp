#include "ui/widgets/run_list.h"

#include "ui/frame/as_written.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/run_checks.h"
#include "ui/frame/run_names.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/workspace.h"
#include "ui/look/theme.h"
#include "ui/models/run_list_model.h"
#include "ui/session/run_again.h"

#include <QApplication>
#include <QClipboard>
#include <QKeyEvent>
#include <QListView>
#include <QMenu>
#include <QPainter>
#include <QPushButton>
#include <QStyledItemDelegate>
#include <QVBoxLayout>

namespace kvscope::ui {
namespace {

constexpr int kBadge = 20; // pixels, side of the marks A, B, C, ...

/// The place of the mark in a row. A click there adds the run to the comparison or removes it.
QRect badgeRect(const QRect& row) {
    return {row.right() - kBadge - 8, row.center().y() - kBadge / 2 + 1, kBadge, kBadge};
}

class RunDelegate final : public QStyledItemDelegate {
public:
    using QStyledItemDelegate::QStyledItemDelegate;

    QSize sizeHint(const QStyleOptionViewItem& option, const QModelIndex&) const override {
        return {100, 2 * option.fontMetrics.height() + 14};
    }
    void paint(QPainter* painter, const QStyleOptionViewItem& option, const QModelIndex& index) const override {
        const Theme& theme = Theme::current();
        const QVariant place = index.data(RunListModel::PlaceRole);
        const bool current = place.isValid() && place.toInt() == 0;
        const QRect row = option.rect;
        painter->save();
        painter->setRenderHint(QPainter::Antialiasing);
        if (current || option.state.testFlag(QStyle::State_MouseOver))
            painter->fillRect(row, current ? theme.raised : theme.window);
        if (option.state.testFlag(QStyle::State_HasFocus)) {
            painter->setPen(theme.accent);
            painter->drawRect(QRectF(row).adjusted(0.5, 0.5, -0.5, -0.5));
        }
        if (place.isValid())
            painter->fillRect(QRect(row.left(), row.top(), 3, row.height()), runColour(std::size_t(place.toInt())));

        const QRect badge = badgeRect(row);
        const QRect text(row.left() + 12, row.top() + 6, badge.left() - row.left() - 18, option.fontMetrics.height());
        QFont title = option.font;
        title.setWeight(current ? QFont::DemiBold : QFont::Normal);
        painter->setFont(title);
        painter->setPen(theme.text);
        const QString name = index.data().toString();
        painter->drawText(text, Qt::AlignLeft | Qt::AlignVCenter,
                          QFontMetrics(title).elidedText(name, Qt::ElideRight, text.width()));

        QRect line = text.translated(0, option.fontMetrics.height() + 2);
        QFont small = option.font;
        small.setPointSizeF(small.pointSizeF() * 0.9);
        painter->setFont(small);
        const bool live = index.data(RunListModel::LiveRole).toBool();
        const QString status = index.data(RunListModel::StatusRole).toString();
        painter->setPen(Qt::NoPen);
        painter->setBrush(live ? theme.ok : status == QLatin1String("failed") ? theme.danger : theme.border);
        painter->drawEllipse(QPointF(line.left() + 4, line.center().y() + 1), 3.5, 3.5);
        line.setLeft(line.left() + 14);
        const QString warning = index.data(RunListModel::WarningRole).toString();
        painter->setPen(warning.isEmpty() ? theme.mutedText : theme.danger);
        painter->drawText(line, Qt::AlignLeft | Qt::AlignVCenter,
                          QFontMetrics(small).elidedText(
                              warning.isEmpty() ? index.data(RunListModel::SubtitleRole).toString() : warning,
                              Qt::ElideRight, line.width()));

        if (place.isValid() || option.state.testFlag(QStyle::State_MouseOver)) {
            const auto letter =
                std::size_t((place.isValid() ? place : index.data(RunListModel::FreePlaceRole)).toInt());
            const QColor tone = runColour(letter);
            painter->setPen(QPen(tone, 1.4));
            painter->setBrush(place.isValid() ? QBrush(tone) : QBrush(Qt::NoBrush));
            painter->drawRoundedRect(QRectF(badge).adjusted(1, 1, -1, -1), 4, 4);
            title.setWeight(QFont::DemiBold);
            painter->setFont(title);
            painter->setPen(!place.isValid() ? tone : tone.lightnessF() > 0.6 ? QColor(Qt::black) : QColor(Qt::white));
            painter->drawText(badge, Qt::AlignCenter, runLetter(letter));
        }
        painter->restore();
    }
};

} // namespace

RunList::RunList(Workspace& workspace, QWidget* parent)
    : QWidget(parent), workspace_(workspace), model_(new RunListModel(workspace, this)), view_(new QListView),
      empty_(new QWidget), message_(new InlineMessage) {
    view_->setModel(model_);
    view_->setItemDelegate(new RunDelegate(view_));
    view_->setObjectName(QStringLiteral("runList"));
    view_->setAccessibleName(tr("Open runs"));
    view_->setMouseTracking(true);
    view_->setFrameShape(QFrame::NoFrame);
    view_->setUniformItemSizes(true);
    view_->setMinimumHeight(40); // the message above the list is read in full
    view_->setContextMenuPolicy(Qt::CustomContextMenu);
    view_->setWhatsThis(
        tr("A click shows a run in all views. The mark at its right lays another run over it: B, then C and so "
           "on; once more takes it out of the comparison."));
    view_->installEventFilter(this);
    view_->viewport()->installEventFilter(this);
    message_->setObjectName(QStringLiteral("runListMessage"));
    message_->installEventFilter(this);

    auto* hint = new MutedLabel(tr("No run is open. Run a session above, open a trace, or drop .kvtrace files here."));
    hint->setObjectName(QStringLiteral("runListHint"));
    hint->setWordWrap(true);
    hint->setAlignment(Qt::AlignCenter);
    auto* open = new QPushButton(tr("Open trace…"));
    auto* emptyLayout = new QVBoxLayout(empty_);
    emptyLayout->setContentsMargins(14, 2, 14, 2); // two lines and the button fit into the least height
    emptyLayout->setSpacing(4);
    emptyLayout->addStretch();
    emptyLayout->addWidget(hint);
    emptyLayout->addWidget(open, 0, Qt::AlignHCenter);
    emptyLayout->addStretch();
    connect(open, &QPushButton::clicked, this, &RunList::openRequested);

    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(0);
    layout->addWidget(message_);
    layout->addWidget(view_, 1);
    layout->addWidget(empty_, 1);
    const auto showEmpty = [this] {
        const bool none = workspace_.runs().empty();
        empty_->setVisible(none);
        view_->setVisible(!none);
    };
    connect(&workspace_, &Workspace::runsChanged, this, showEmpty);
    connect(&workspace_, &Workspace::currentChanged, this, [this] { // scroll to the shown run
        for (int row = 0; row < model_->rowCount(); ++row)
            if (const auto key = model_->keyOf(model_->index(row)); key && placeOf(workspace_, *key) == 0u) {
                view_->setCurrentIndex(model_->index(row));
                view_->scrollTo(model_->index(row));
            }
    });
    showEmpty();
    connect(view_, &QListView::activated, this, [this](const QModelIndex& index) {
        if (const auto key = model_->keyOf(index)) workspace_.setCurrent(*key);
    });
    connect(view_, &QWidget::customContextMenuRequested, this, &RunList::showMenu);
}

std::vector<ShortcutText> RunList::gestures() {
    const QString runs = tr("Runs");
    return {
        {runs, tr("Show the run"), tr("Enter")},
        {runs, tr("Into the comparison, or out of it"), tr("B")},
        {runs, tr("Run it again"), tr("R")},
        {runs, tr("Close the run"), tr("Del")},
    };
}

void RunList::showProblem(const QString& sentence) {
    message_->show(InlineMessage::Kind::Error, sentence);
    message_->setToolTip(asWritten(sentence)); // the message may be cut where the list is low
}

bool RunList::eventFilter(QObject* watched, QEvent* event) {
    const auto toggleCompare = [this](const RunKey& key) {
        workspace_.setCompared(key, !placeOf(workspace_, key).has_value());
    };
    if (watched == message_ && (event->type() == QEvent::ShowToParent || event->type() == QEvent::HideToParent)) {
        // In a low panel the message needs the room of the hint.
        if (auto* hint = findChild<QLabel*>(QStringLiteral("runListHint")))
            hint->setVisible(event->type() == QEvent::HideToParent);
        return false;
    }
    if (watched == view_->viewport() && event->type() == QEvent::MouseButtonRelease) {
        const auto* mouse = static_cast<QMouseEvent*>(event);
        const QModelIndex index = view_->indexAt(mouse->pos());
        const auto key = model_->keyOf(index);
        if (!key || mouse->button() != Qt::LeftButton) return false;
        const bool current = workspace_.current() && workspace_.current()->key == *key;
        if (!current && badgeRect(view_->visualRect(index)).adjusted(-4, -4, 4, 4).contains(mouse->pos()))
            toggleCompare(*key);
        else
            workspace_.setCurrent(*key);
        return false;
    }
    if (watched == view_ && event->type() == QEvent::ContextMenu &&
        static_cast<QContextMenuEvent*>(event)->reason() == QContextMenuEvent::Keyboard) {
        showMenu(view_->visualRect(view_->currentIndex()).center());
        return true;
    }
    if (watched == view_ && event->type() == QEvent::KeyPress) {
        const auto* key = static_cast<QKeyEvent*>(event);
        const auto run = model_->keyOf(view_->currentIndex());
        if (!run) return false;
        switch (key->key()) {
        case Qt::Key_Return:
        case Qt::Key_Enter:
        case Qt::Key_Space:
            workspace_.setCurrent(*run);
            return true;
        case Qt::Key_B:
            toggleCompare(*run);
            return true;
        case Qt::Key_R:
            if (const OpenRun* open = workspace_.find(*run); open && whyNotAgain(*open).isEmpty())
                emit againRequested(*run);
            else if (open)
                showProblem(whyNotAgain(*open));
            return true;
        case Qt::Key_Delete:
            if (const OpenRun* open = workspace_.find(*run); open && !open->live) workspace_.close(*run);
            return true;
        default:
            return false;
        }
    }
    return QWidget::eventFilter(watched, event);
}

void RunList::showMenu(const QPoint& place) {
    const auto key = model_->keyOf(view_->indexAt(place));
    if (!key) return;
    const OpenRun* run = workspace_.find(*key);
    if (!run) return;
    auto* menu = new QMenu(this);
    menu->setObjectName(QStringLiteral("runMenu"));
    menu->setAttribute(Qt::WA_DeleteOnClose);
    const auto side = placeOf(workspace_, *key);
    const bool current = side == 0u;
    const auto others = workspace_.sides().size();
    menu->addAction(tr("Show"), this, [this, key] { workspace_.setCurrent(*key); })->setEnabled(!current);
    menu->addAction(side && !current ? tr("Take out of the comparison")
                    : others < 2     ? tr("Compare with the shown run")
                                     : tr("Compare too, as %1").arg(runLetter(others)),
                    this, [this, key, side] { workspace_.setCompared(*key, !side.has_value()); })
        ->setEnabled(!current);
    if (others > 1) menu->addAction(tr("End the comparison"), this, [this] { workspace_.setCompare(std::nullopt); });
    menu->addSeparator();
    const QString refusal = whyNotAgain(*run);
    QAction* again = menu->addAction(tr("Run again…"), this, [this, key] { emit againRequested(*key); });
    again->setEnabled(refusal.isEmpty());
    again->setToolTip(
        asWritten(refusal.isEmpty() ? tr("Fill the session form with what this run was recorded with") : refusal));
    menu->setToolTipsVisible(true); // tooltips also say why an entry cannot be chosen
    QAction* broken = menu->addAction(tr("Broken rules…"), this, [this, key] { emit violationsRequested(*key); });
    const RunCheck* check = RunChecks::of(workspace_).find(*key);
    broken->setEnabled(check && check->violations() > 0);
    broken->setToolTip(check == nullptr           ? tr("Not tested: the run grows, or the test is under way")
                       : check->violations() == 0 ? tr("No row breaks a rule of the trace format")
                                                  : brokenText(workspace_, *key));
    menu->addSeparator();
    menu->addAction(tr("Copy file path"), this, [key] { QApplication::clipboard()->setText(key->path); });
    menu->addSeparator();
    menu->addAction(tr("Close"), this, [this, key] { workspace_.close(*key); })->setEnabled(!run->live);
    menu->popup(view_->viewport()->mapToGlobal(place));
}

} // namespace kvscope::ui
