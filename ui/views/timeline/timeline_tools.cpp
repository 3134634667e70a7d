#include "ui/views/timeline/timeline_tools.h"

#include "ui/frame/small_widgets.h"

#include <QHBoxLayout>
#include <QKeyEvent>
#include <QLabel>
#include <QLineEdit>
#include <QToolButton>

namespace kvscope::ui {

template <class Pressed>
QToolButton* TimelineTools::addButton(const char* name, const QString& text, const QString& help,
                                      const Pressed& pressed) {
    auto* made = new QToolButton;
    made->setObjectName(QLatin1String(name));
    made->setText(text);
    made->setToolTip(help);
    made->setAccessibleName(help);
    row_->addWidget(made);
    connect(made, &QToolButton::clicked, this, pressed);
    return made;
}

TimelineTools::TimelineTools(QWidget* parent)
    : QWidget(parent), row_(new QHBoxLayout(this)), search_(new QLineEdit), hits_(new MutedLabel) {
    setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Fixed); // never what keeps a window wide
    row_->setContentsMargins(0, 0, 0, 0);
    search_->setObjectName(QStringLiteral("search"));
    search_->setAccessibleName(tr("Search spans"));
    search_->setPlaceholderText(tr("Search spans ( / )"));
    search_->setToolTip(tr("Words of a span's name or of what it does: attention finds stage2"));
    search_->setClearButtonEnabled(true);
    search_->setMaximumWidth(320);
    search_->installEventFilter(this);
    hits_->setObjectName(QStringLiteral("hits"));
    row_->addWidget(search_);
    auto* back = addButton("previousHit", QStringLiteral("‹"), tr("Previous hit (Shift+N)"),
                           [this] { emit matchRequested(false); });
    auto* next = addButton("nextHit", QStringLiteral("›"), tr("Next hit (N)"), [this] { emit matchRequested(true); });
    row_->addWidget(hits_);
    row_->addStretch();
    addButton("previousStep", tr("‹ Step"), tr("Previous step (Left)"), [this] { emit cursorMoveRequested(-1, 0); });
    addButton("nextStep", tr("Step ›"), tr("Next step (Right)"), [this] { emit cursorMoveRequested(1, 0); });
    addButton("firstDecode", tr("Decode"), tr("Show the first decode step (1); all of them: 2"),
              [this] { emit decodeRequested(false); });
    row_->addSpacing(8);
    auto* fit = addButton("fit", tr("Fit"), tr("Fit the chosen span, the range, or all steps (F)"),
                          [this] { emit fitRequested(); });
    auto* all = addButton("showAll", tr("All"), tr("Show everything, also what lies before and after the steps (0)"),
                          [this] { emit allRequested(); });
    auto* note = addButton("leaveNote", tr("Note…"), tr("Leave a note at the range, the span or the pointer (M)"),
                           [this] { emit noteRequested(); });
    panel_ = addButton("panelToggle", tr("Details"), tr("Show or hide the panel below"), [] {});
    panel_->setCheckable(true);
    panel_->setChecked(true);
    connect(panel_, &QToolButton::toggled, this, &TimelineTools::panelToggled);
    connect(search_, &QLineEdit::textChanged, this, &TimelineTools::searchChanged);
    search_->setMinimumWidth(90);
    optional_ = {note, all, fit, back, next, hits_};
}

QString TimelineTools::searched() const { return search_->text(); }

void TimelineTools::setSearched(const QString& text) { search_->setText(text); }

void TimelineTools::editSearch() {
    search_->setFocus();
    search_->selectAll();
}

void TimelineTools::showHits(const QString& text) { hits_->setText(text); }

bool TimelineTools::wantsPanel() const { return panel_->isChecked(); }

void TimelineTools::setWantsPanel(bool wanted) { panel_->setChecked(wanted); }

void TimelineTools::fit() {
    for (QWidget* each : optional_) each->show();
    for (QWidget* each : optional_) {
        layout()->invalidate();
        if (layout()->minimumSize().width() <= width()) return;
        each->hide();
    }
    layout()->invalidate();
}

bool TimelineTools::eventFilter(QObject* watched, QEvent* event) {
    if (watched == search_ && event->type() == QEvent::KeyPress) {
        auto* key = static_cast<QKeyEvent*>(event);
        if (key->key() == Qt::Key_Return || key->key() == Qt::Key_Enter) {
            emit matchRequested(!key->modifiers().testFlag(Qt::ShiftModifier));
            return true;
        }
        if (key->key() == Qt::Key_Escape) {
            search_->clear();
            emit searchLeft();
            return true;
        }
    }
    return QWidget::eventFilter(watched, event);
}

} // namespace kvscope::ui
