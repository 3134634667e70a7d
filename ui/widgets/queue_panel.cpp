#include "ui/widgets/queue_panel.h"

#include "ui/frame/run_names.h"
#include "ui/frame/shortcuts.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/icons.h"
#include "ui/look/theme.h"
#include "ui/session/run_queue.h"
#include "ui/widgets/queue_model.h"

#include <QAction>
#include <QDir>
#include <QEvent>
#include <QHBoxLayout>
#include <QListView>
#include <QMenu>
#include <QPainter>
#include <QStackedWidget>
#include <QStyledItemDelegate>
#include <QToolButton>
#include <QVBoxLayout>

namespace kvscope::ui {
namespace {

using QueueState = QueuedRun::State;

/// A run in two lines: its name over a dot and what it does. A running one has a bar below.
class QueueDelegate final : public QStyledItemDelegate {
public:
    using QStyledItemDelegate::QStyledItemDelegate;

    QSize sizeHint(const QStyleOptionViewItem& option, const QModelIndex&) const override {
        return {100, 2 * option.fontMetrics.height() + 16};
    }
    void paint(QPainter* painter, const QStyleOptionViewItem& option, const QModelIndex& index) const override {
        const Theme& theme = Theme::current();
        const auto state = QueueState(index.data(QueueModel::StateRole).toInt());
        const QRect row = option.rect;
        painter->save();
        painter->setRenderHint(QPainter::Antialiasing);
        if (option.state.testFlag(QStyle::State_Selected) || option.state.testFlag(QStyle::State_MouseOver))
            painter->fillRect(row, option.state.testFlag(QStyle::State_Selected) ? theme.raised : theme.window);
        if (option.state.testFlag(QStyle::State_HasFocus)) {
            painter->setPen(theme.accent);
            painter->drawRect(QRectF(row).adjusted(0.5, 0.5, -0.5, -0.5));
        }
        const QVariant place = index.data(QueueModel::PlaceRole);
        const int right = place.isValid() ? paintLetter(painter, row, option.font, std::size_t(place.toInt())) : 10;
        const int line = option.fontMetrics.height();
        const QRect text(row.left() + 12, row.top() + 5, row.width() - 12 - right, line);
        QFont title = option.font;
        title.setWeight(state == QueueState::Running ? QFont::DemiBold : QFont::Normal);
        painter->setFont(title);
        const bool isOver = state == QueueState::Cancelled;
        painter->setPen(isOver ? theme.mutedText : theme.text);
        painter->drawText(text, Qt::AlignLeft | Qt::AlignVCenter,
                          QFontMetrics(title).elidedText(index.data().toString(), Qt::ElideRight, text.width()));
        QFont small = option.font;
        small.setPointSizeF(small.pointSizeF() * 0.9);
        painter->setFont(small);
        QRect detail = text.translated(0, line + 2);
        paintDot(painter, QPointF(detail.left() + 4, detail.center().y() + 1), state,
                 index.data(QueueModel::ColourRole), theme);
        detail.setLeft(detail.left() + 14);
        painter->setPen(state == QueueState::Failed ? theme.danger : theme.mutedText);
        painter->drawText(detail, Qt::AlignLeft | Qt::AlignVCenter,
                          QFontMetrics(small).elidedText(index.data(QueueModel::DetailRole).toString(), Qt::ElideRight,
                                                         detail.width()));
        if (state == QueueState::Running) {
            const QRectF bar(text.left(), row.bottom() - 4, row.width() - 24, 3);
            painter->setPen(Qt::NoPen);
            painter->setBrush(theme.border);
            painter->drawRoundedRect(bar, 1.5, 1.5);
            painter->setBrush(theme.accent);
            QRectF done = bar;
            done.setWidth(bar.width() * index.data(QueueModel::ShareRole).toDouble());
            painter->drawRoundedRect(done, 1.5, 1.5);
        }
        painter->restore();
    }

private:
    /// @return how much of the row's right end it takes, in pixels
    static int paintLetter(QPainter* painter, const QRect& row, QFont font, std::size_t place) {
        constexpr int kSide = 20;
        const QRect badge(row.right() - kSide - 8, row.center().y() - kSide / 2 + 1, kSide, kSide);
        const QColor tone = runColour(place);
        painter->setPen(Qt::NoPen);
        painter->setBrush(tone);
        painter->drawRoundedRect(QRectF(badge).adjusted(1, 1, -1, -1), 4, 4);
        font.setWeight(QFont::DemiBold);
        painter->setFont(font);
        painter->setPen(tone.lightnessF() > 0.6 ? QColor(Qt::black) : QColor(Qt::white));
        painter->drawText(badge, Qt::AlignCenter, runLetter(place));
        return kSide + 18;
    }
    /// Recorded runs have the colour that they have in the table of runs; what waits is a ring.
    static void paintDot(QPainter* painter, QPointF centre, QueueState state, const QVariant& colour,
                         const Theme& theme) {
        const bool isRing = state == QueueState::Waiting || state == QueueState::Cancelled;
        const QColor tone = state == QueueState::Failed    ? theme.danger
                            : state == QueueState::Running ? theme.ok
                            : colour.isValid()             ? colour.value<QColor>()
                                                           : theme.mutedText;
        painter->setPen(isRing ? QPen(tone, 1.2) : QPen(Qt::NoPen));
        painter->setBrush(isRing ? QBrush(Qt::NoBrush) : QBrush(tone));
        painter->drawEllipse(centre, 3.5, 3.5);
    }
};

} // namespace

QueuePanel::QueuePanel(RunQueue& queue, Workspace& workspace, QWidget* parent)
    : QWidget(parent), queue_(queue), workspace_(workspace), model_(new QueueModel(queue, workspace, this)),
      view_(new QListView), heading_(new QWidget(this)), state_(new MutedLabel), empty_(new MutedLabel),
      pages_(new QStackedWidget) {
    makeList();
    makeActions();
    makeHeading();
    state_->setObjectName(QStringLiteral("queueState"));
    state_->setContentsMargins(12, 2, 8, 6);
    empty_->setText(tr("Nothing waits. Queue and Sweep in the session form put runs here, which then run one "
                       "after the other."));
    empty_->setWordWrap(true);
    empty_->setAlignment(Qt::AlignCenter);
    empty_->setContentsMargins(14, 8, 14, 8);
    pages_->addWidget(view_);
    pages_->addWidget(empty_);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addWidget(pages_, 1);
    column->addWidget(state_);
    connect(&queue_, &RunQueue::changed, this, &QueuePanel::updateState);
    connect(view_->selectionModel(), &QItemSelectionModel::currentChanged, this, &QueuePanel::updateState);
    updateIcons();
    updateState();
}

void QueuePanel::makeList() {
    view_->setModel(model_);
    view_->setItemDelegate(new QueueDelegate(view_));
    view_->setObjectName(QStringLiteral("queueList"));
    view_->setAccessibleName(tr("Runs of the queue"));
    view_->setMouseTracking(true);
    view_->setFrameShape(QFrame::NoFrame);
    view_->setUniformItemSizes(true);
    view_->setMinimumHeight(40);
    view_->setContextMenuPolicy(Qt::ActionsContextMenu);
    view_->setWhatsThis(tr("Runs one after the other. A double click shows a run that is recorded."));
    connect(view_, &QListView::doubleClicked, this, [this] { show_->trigger(); });
    connect(model_, &QAbstractItemModel::modelReset, this, [this] {
        if (const QueuedRun* run = queue_.running()) view_->scrollTo(model_->indexOf(run->id));
    });
}

QAction* QueuePanel::addListAction(const char* name, const QString& text, const QKeySequence& key,
                                   const QString& help) {
    auto* action = new QAction(text, view_);
    action->setObjectName(QLatin1String(name));
    action->setShortcut(key);
    action->setShortcutContext(Qt::WidgetShortcut);
    const QString keyText =
        key.isEmpty() ? QString() : QStringLiteral(" (%1)").arg(key.toString(QKeySequence::NativeText));
    action->setToolTip(help + keyText);
    setShortcutGroup(action, tr("Queue"));
    view_->addAction(action);
    return action;
}

void QueuePanel::makeActions() {
    show_ = addListAction("queueShow", tr("Show"), Qt::Key_Return, tr("Show the run in all views"));
    up_ = addListAction("queueUp", tr("Earlier"), QKeySequence(Qt::ALT | Qt::Key_Up), tr("Run it earlier"));
    down_ = addListAction("queueDown", tr("Later"), QKeySequence(Qt::ALT | Qt::Key_Down), tr("Run it later"));
    remove_ = addListAction("queueRemove", tr("Remove"), Qt::Key_Delete,
                            tr("Take the run out of the queue; a running one is stopped and the next begins"));
    holdAction_ = addListAction("queueHold", tr("Pause After This Run"), Qt::Key_H,
                                tr("Let the running one end and begin no other, until this is off again"));
    holdAction_->setCheckable(true);
    cancelAll_ = addListAction("queueCancelAll", tr("Cancel All"), {}, tr("Stop the running one and run no other"));
    compare_ = addListAction("queueCompare", tr("Compare the Finished"), Qt::Key_C,
                             tr("Mark all finished runs for Compare, the first as A"));
    clear_ = addListAction("queueClear", tr("Clear What Has Ended"), {}, tr("Take the ended runs out of this list"));
    stops_ = addListAction("queueStopsAtFailure", tr("Pause at a Failure"), {},
                           tr("On: a run that fails pauses the queue. Off: the next one begins"));
    stops_->setCheckable(true);
    connect(show_, &QAction::triggered, this, [this] {
        if (const QueuedRun* run = chosen(); run && run->key)
            workspace_.setCurrent({QDir::cleanPath(run->key->path), run->key->runId});
    });
    connect(up_, &QAction::triggered, this, [this] { moveChosen(-1); });
    connect(down_, &QAction::triggered, this, [this] { moveChosen(1); });
    connect(remove_, &QAction::triggered, this, &QueuePanel::removeChosen);
    connect(holdAction_, &QAction::toggled, this, [this](bool on) { queue_.setHeld(on); });
    connect(cancelAll_, &QAction::triggered, this, [this] { queue_.cancelAll(); });
    connect(compare_, &QAction::triggered, this, [this] { emit compareRequested(finished()); });
    connect(clear_, &QAction::triggered, this, [this] { queue_.removeEnded(); });
    connect(stops_, &QAction::toggled, this, [this](bool on) { queue_.setStopsAtFailure(on); });
}

void QueuePanel::makeHeading() {
    auto* row = new QHBoxLayout(heading_);
    row->setContentsMargins(4, 0, 2, 0);
    row->setSpacing(0);
    row->addStretch();
    const auto add = [&](QToolButton* button) {
        button->setAutoRaise(true);
        button->setIconSize(QSize(16, 16));
        button->setStyleSheet(QStringLiteral("padding: 1px 4px;")); // the buttons must not make the title higher
        row->addWidget(button);
    };
    for (QAction* action : {holdAction_, up_, down_, remove_, cancelAll_}) {
        auto* button = new QToolButton;
        button->setDefaultAction(action);
        button->setToolButtonStyle(Qt::ToolButtonIconOnly);
        add(button);
    }
    auto* more = new QToolButton;
    more->setObjectName(QStringLiteral("queueMore"));
    more->setText(tr("More"));
    more->setAccessibleName(tr("More of the queue"));
    more->setToolTip(tr("Compare the finished, clear the list, pause at a failure"));
    more->setPopupMode(QToolButton::InstantPopup);
    auto* menu = new QMenu(more);
    menu->setToolTipsVisible(true);
    for (QAction* action : {show_, compare_, clear_, stops_}) menu->addAction(action);
    more->setMenu(menu);
    add(more);
}

void QueuePanel::updateIcons() {
    const Theme& theme = Theme::current();
    holdAction_->setIcon(makeIcon(queue_.isHeld() ? Icon::Run : Icon::Pause, theme));
    up_->setIcon(makeIcon(Icon::Up, theme));
    down_->setIcon(makeIcon(Icon::Down, theme));
    remove_->setIcon(makeIcon(Icon::Close, theme));
    cancelAll_->setIcon(makeIcon(Icon::Stop, theme));
    for (QAction* action : {holdAction_, up_, down_, remove_, cancelAll_}) action->setIconVisibleInMenu(false);
}

void QueuePanel::changeEvent(QEvent* event) {
    QWidget::changeEvent(event);
    if (event->type() == QEvent::PaletteChange && stops_ != nullptr) updateIcons();
}

const QueuedRun* QueuePanel::chosen() const { return queue_.find(model_->idOf(view_->currentIndex())); }

void QueuePanel::moveChosen(int by) {
    const QueuedRun* run = chosen();
    if (run == nullptr) return;
    const int id = run->id;
    queue_.move(id, by);
    view_->setCurrentIndex(model_->indexOf(id));
}

void QueuePanel::removeChosen() {
    const QueuedRun* run = chosen();
    if (run == nullptr) return;
    const int at = view_->currentIndex().row();
    if (run->state == QueueState::Running)
        queue_.cancel(run->id);
    else
        queue_.remove(run->id);
    if (model_->rowCount() > 0) view_->setCurrentIndex(model_->index(std::min(at, model_->rowCount() - 1)));
}

std::vector<RunKey> QueuePanel::finished() const {
    std::vector<RunKey> keys;
    for (const QueuedRun& run : queue_.runs())
        if (run.state == QueueState::Finished && run.key) keys.push_back(*run.key);
    return keys;
}

void QueuePanel::updateState() {
    const QueuedRun* run = chosen();
    const bool waits = run != nullptr && run->state == QueueState::Waiting;
    const bool isAny = !queue_.runs().empty(), isRunning = queue_.running() != nullptr;
    pages_->setCurrentWidget(isAny ? static_cast<QWidget*>(view_) : empty_);
    state_->setText(queueText(queue_));
    state_->setVisible(isAny);
    holdAction_->setChecked(queue_.isHeld());
    holdAction_->setText(!queue_.isHeld() ? isRunning ? tr("Pause After This Run") : tr("Pause the Queue")
                                          : tr("Go On"));
    holdAction_->setIcon(makeIcon(queue_.isHeld() ? Icon::Run : Icon::Pause, Theme::current()));
    holdAction_->setToolTip(queue_.isHeld()
                                ? tr("The queue is paused: go on with the next run (H)")
                                : tr("Let the running one end and begin no other until the queue goes on (H)"));
    stops_->setChecked(queue_.stopsAtFailure());
    show_->setEnabled(run != nullptr && run->key.has_value());
    up_->setEnabled(waits && queue_.canMove(run->id, -1));
    down_->setEnabled(waits && queue_.canMove(run->id, 1));
    remove_->setEnabled(run != nullptr);
    remove_->setText(run != nullptr && run->state == QueueState::Running ? tr("Stop") : tr("Remove"));
    cancelAll_->setEnabled(queue_.waiting() > 0 || isRunning);
    compare_->setEnabled(queue_.count(QueueState::Finished) > 1);
    clear_->setEnabled(int(queue_.runs().size()) > queue_.waiting() + (isRunning ? 1 : 0));
}

} // namespace kvscope::ui
