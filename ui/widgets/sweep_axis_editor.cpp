#include "ui/widgets/sweep_axis_editor.h"

#include "ui/frame/as_written.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/icons.h"
#include "ui/look/theme.h"
#include "ui/widgets/form_helpers.h"

#include <QComboBox>
#include <QGridLayout>
#include <QLineEdit>
#include <QMenu>
#include <QRegularExpression>
#include <QSignalBlocker>
#include <QToolButton>

#include <algorithm>

namespace kvscope::ui {
namespace {

/// Values around that of the form, as an example of what can be typed.
QString exampleOf(const SweepField& field) {
    if (!field.choices.isEmpty()) return field.choices.mid(0, 2).join(QStringLiteral(", "));
    bool isNumber = false;
    const qlonglong now = field.now.toLongLong(&isNumber);
    return isNumber && now > 1 ? QStringLiteral("%1, %2, %3").arg(now / 2).arg(now).arg(2 * now) : QString();
}

} // namespace

SweepAxisEditor::SweepAxisEditor(QWidget* parent)
    : QWidget(parent), field_(named(new QComboBox, "sweepField", tr("The setting that varies"))),
      values_(named(new QLineEdit, "sweepValues", tr("Its values, with commas between them"))),
      choose_(new QToolButton), remove_(new QToolButton), choices_(new QMenu(this)), hint_(new MutedLabel) {
    field_->setAccessibleName(tr("Setting"));
    field_->setMaxVisibleItems(16);
    field_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    field_->setMinimumContentsLength(18);
    values_->setAccessibleName(tr("Values"));
    values_->setClearButtonEnabled(true);
    choose_->setObjectName(QStringLiteral("sweepChoose"));
    choose_->setText(tr("Choose"));
    choose_->setToolTip(tr("Tick the values"));
    choose_->setPopupMode(QToolButton::InstantPopup);
    choose_->setProperty("framed", true);
    choose_->setMenu(choices_);
    remove_->setObjectName(QStringLiteral("sweepRemove"));
    remove_->setAutoRaise(true);
    remove_->setIcon(makeIcon(Icon::Close, Theme::current()));
    remove_->setToolTip(tr("Do not vary this setting"));
    remove_->setAccessibleName(tr("Remove the setting"));
    hint_->setObjectName(QStringLiteral("sweepHint"));
    hint_->setWordWrap(true);
    auto* grid = new QGridLayout(this);
    grid->setContentsMargins(0, 0, 0, 0);
    grid->setHorizontalSpacing(6);
    grid->setVerticalSpacing(2);
    grid->addWidget(field_, 0, 0);
    grid->addWidget(values_, 0, 1);
    grid->addWidget(choose_, 0, 2);
    grid->addWidget(remove_, 0, 3);
    grid->addWidget(hint_, 1, 1, 1, 3);
    grid->setColumnStretch(0, 2);
    grid->setColumnStretch(1, 3);
    connect(field_, &QComboBox::currentIndexChanged, this, [this] {
        values_->clear();
        showField();
        emit changed();
    });
    connect(values_, &QLineEdit::textChanged, this, &SweepAxisEditor::changed);
    connect(choices_, &QMenu::aboutToShow, this, &SweepAxisEditor::fillChoices);
    connect(remove_, &QToolButton::clicked, this, &SweepAxisEditor::removeRequested);
}

void SweepAxisEditor::setFields(const std::vector<SweepField>& fields) {
    const SweepField* before = field();
    const std::string key = before != nullptr ? before->key : std::string();
    const QSignalBlocker quiet(field_);
    fields_ = fields;
    field_->clear();
    for (const SweepField& each : fields_) {
        field_->addItem(each.title, QString::fromStdString(each.key));
        field_->setItemData(field_->count() - 1, asWritten(each.help), Qt::ToolTipRole);
    }
    choose(key);
    showField();
}

void SweepAxisEditor::choose(const std::string& key) {
    const auto at =
        std::find_if(fields_.begin(), fields_.end(), [&](const SweepField& each) { return each.key == key; });
    if (at != fields_.end()) field_->setCurrentIndex(int(at - fields_.begin()));
}

const SweepField* SweepAxisEditor::field() const {
    const int index = field_->currentIndex();
    return index >= 0 && index < fields_.count() ? &fields_[index] : nullptr;
}

QString SweepAxisEditor::values() const {
    static const QRegularExpression spaces(QStringLiteral("\\s+")), ends(QStringLiteral(",$"));
    return values_->text().remove(spaces).remove(ends); // a comma at the end: the next value is being typed
}

bool SweepAxisEditor::isEmpty() const { return values().isEmpty(); }

SweepAxis SweepAxisEditor::axis() const { return sweepAxis(field()->key, values().toStdString()); }

void SweepAxisEditor::showRemove(bool shown) { remove_->setVisible(shown); }

void SweepAxisEditor::focusValues() { values_->setFocus(Qt::OtherFocusReason); }

void SweepAxisEditor::showField() {
    const SweepField* chosen = field();
    if (chosen == nullptr) return;
    field_->setToolTip(asWritten(chosen->help));
    values_->setPlaceholderText(exampleOf(*chosen));
    const QString tip = chosen->range.isEmpty() ? chosen->help : chosen->help + QLatin1Char('\n') + chosen->range;
    values_->setToolTip(asWritten(tip));
    choose_->setVisible(!chosen->choices.isEmpty());
    QStringList parts;
    if (!chosen->range.isEmpty()) parts << chosen->range;
    if (!chosen->now.isEmpty()) parts << tr("the form has %1").arg(chosen->now);
    hint_->setText(parts.join(QStringLiteral(" · ")));
    hint_->setVisible(!parts.isEmpty());
}

/// The values that the setting can have, ticked where they are in the list.
void SweepAxisEditor::fillChoices() {
    choices_->clear();
    const SweepField* chosen = field();
    if (chosen == nullptr) return;
    const QStringList given = values().split(QLatin1Char(','), Qt::SkipEmptyParts);
    for (const QString& choice : chosen->choices) {
        QAction* action = choices_->addAction(choice);
        action->setCheckable(true);
        action->setChecked(given.contains(choice));
        connect(action, &QAction::toggled, this, [this, choice](bool on) {
            QStringList now = values().split(QLatin1Char(','), Qt::SkipEmptyParts);
            now.removeAll(choice);
            if (on) now << choice;
            values_->setText(now.join(QStringLiteral(", ")));
        });
    }
}

} // namespace kvscope::ui
