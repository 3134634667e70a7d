#include "ui/widgets/parameter_panel.h"

#include "ui/frame/small_widgets.h"
#include "ui/look/icons.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QGridLayout>
#include <QLabel>
#include <QSpinBox>
#include <QToolButton>

namespace kvscope::ui {
namespace {

constexpr int kEditorWidth = 128;

} // namespace

ParameterPanel::ParameterPanel(QWidget* parent) : QWidget(parent), grid_(new QGridLayout(this)) {
    grid_->setContentsMargins(0, 0, 0, 0);
    grid_->setHorizontalSpacing(6);
    grid_->setVerticalSpacing(4);
    grid_->setColumnStretch(0, 1);
    grid_->setColumnMinimumWidth(1, 22); // so that the editors do not move when a reset button appears
}

void ParameterPanel::setParameters(const std::vector<Parameter>& parameters, const ParameterValues& defaults) {
    loading_ = true;
    while (QLayoutItem* item = grid_->takeAt(0)) {
        if (QWidget* widget = item->widget()) {
            widget->hide();
            widget->setObjectName({}); // editors are looked up by name, and this one lives until the event loop runs
            widget->deleteLater();
        }
        delete item;
    }
    rows_.clear();
    declared_ = parameters;
    for (const Parameter& parameter : declared_)
        rows_.push_back(
            makeRow(parameter, defaults.has(parameter.key) ? defaults.text(parameter.key) : parameter.defaultValue));
    loading_ = false;
}

ParameterPanel::Row ParameterPanel::makeRow(const Parameter& parameter, const std::string& defaultValue) {
    Row row{&parameter, defaultValue, nullptr, nullptr};
    const QString help = QString::fromStdString(parameter.help);
    const QString suffix =
        parameter.unit.empty() ? QString() : QLatin1Char(' ') + QString::fromStdString(parameter.unit);
    switch (parameter.type) {
    case ParameterType::Integer: {
        auto* spin = new QSpinBox;
        spin->setRange(int(parameter.min), int(parameter.max));
        setUnit(spin, QString::fromStdString(parameter.unit));
        spin->setGroupSeparatorShown(false);
        connect(spin, &QSpinBox::valueChanged, this, &ParameterPanel::edited);
        row.editor = spin;
        break;
    }
    case ParameterType::Number: {
        auto* spin = new QDoubleSpinBox;
        spin->setDecimals(4);
        spin->setRange(parameter.min, parameter.max);
        spin->setSingleStep((parameter.max - parameter.min) / 100);
        spin->setSuffix(suffix);
        connect(spin, &QDoubleSpinBox::valueChanged, this, &ParameterPanel::edited);
        row.editor = spin;
        break;
    }
    case ParameterType::Boolean: {
        auto* check = new QCheckBox;
        connect(check, &QCheckBox::toggled, this, &ParameterPanel::edited);
        row.editor = check;
        break;
    }
    case ParameterType::Choice: {
        auto* combo = new QComboBox;
        for (const std::string& choice : parameter.choices) combo->addItem(QString::fromStdString(choice));
        connect(combo, &QComboBox::currentIndexChanged, this, &ParameterPanel::edited);
        row.editor = combo;
        break;
    }
    }
    const QString title = titleOf(parameter.key);
    row.editor->setObjectName(QStringLiteral("param_") + QString::fromStdString(parameter.key));
    row.editor->setAccessibleName(title);
    ignoreWheelUnlessFocused(row.editor);
    if (parameter.type != ParameterType::Boolean) row.editor->setFixedWidth(kEditorWidth);
    auto* label = new QLabel(title);
    label->setBuddy(row.editor);
    label->setMinimumWidth(20); // a long label is cut; it must not push the editors out of the panel
    row.reset = new QToolButton;
    row.reset->setAutoRaise(true);
    row.reset->setIcon(makeIcon(Icon::Reset, Theme::current()));
    row.reset->setIconSize(QSize(14, 14));
    row.reset->setFixedSize(22, 22);
    row.reset->setStyleSheet(QStringLiteral("padding: 0px;"));
    row.reset->setToolTip(tr("Back to the default: %1%2").arg(QString::fromStdString(defaultValue), suffix));
    row.reset->setAccessibleName(tr("Reset %1").arg(title));
    const QString tip = QStringLiteral("<p>%1</p><p><b>%2</b>%3 · default %4</p>")
                            .arg(help.toHtmlEscaped(), QString::fromStdString(parameter.key),
                                 parameter.type == ParameterType::Integer || parameter.type == ParameterType::Number
                                     ? QStringLiteral(" · %1 to %2%3")
                                           .arg(parameter.min, 0, 'g', 10)
                                           .arg(parameter.max, 0, 'g', 10)
                                           .arg(suffix)
                                     : QString(),
                                 QString::fromStdString(defaultValue));
    label->setToolTip(tip);
    row.editor->setToolTip(tip);
    row.editor->setWhatsThis(help);

    const int line = grid_->rowCount();
    grid_->addWidget(label, line, 0);
    grid_->addWidget(row.reset, line, 1);
    grid_->addWidget(row.editor, line, 2);
    setValueOf(row, defaultValue);
    row.reset->setVisible(false);
    connect(row.reset, &QToolButton::clicked, this, [row] { setValueOf(row, row.defaultValue); });
    return row;
}

std::string ParameterPanel::valueOf(const Row& row) {
    switch (row.parameter->type) {
    case ParameterType::Integer:
        return std::to_string(static_cast<QSpinBox*>(row.editor)->value());
    case ParameterType::Number:
        return QString::number(static_cast<QDoubleSpinBox*>(row.editor)->value(), 'g', 8).toStdString();
    case ParameterType::Boolean:
        return static_cast<QCheckBox*>(row.editor)->isChecked() ? "true" : "false";
    case ParameterType::Choice:
        return static_cast<QComboBox*>(row.editor)->currentText().toStdString();
    }
    return {};
}

void ParameterPanel::setValueOf(const Row& row, const std::string& value) {
    const QString text = QString::fromStdString(value);
    switch (row.parameter->type) {
    case ParameterType::Integer:
        static_cast<QSpinBox*>(row.editor)->setValue(text.toInt());
        break;
    case ParameterType::Number:
        static_cast<QDoubleSpinBox*>(row.editor)->setValue(text.toDouble());
        break;
    case ParameterType::Boolean:
        static_cast<QCheckBox*>(row.editor)->setChecked(value == "true");
        break;
    case ParameterType::Choice:
        static_cast<QComboBox*>(row.editor)->setCurrentText(text);
        break;
    }
}

void ParameterPanel::tabAfter(QWidget* before) {
    for (const Row& row : rows_) {
        setTabOrder(before, row.editor);
        setTabOrder(row.editor, row.reset);
        before = row.reset;
    }
}

void ParameterPanel::edited() {
    if (loading_) return;
    for (const Row& row : rows_) {
        const bool number = row.parameter->type == ParameterType::Number;
        const std::string value = valueOf(row);
        row.reset->setVisible(number ? QString::fromStdString(value).toDouble() !=
                                           QString::fromStdString(row.defaultValue).toDouble()
                                     : value != row.defaultValue);
    }
    emit changed();
}

std::vector<std::pair<std::string, std::string>> ParameterPanel::settings() const {
    std::vector<std::pair<std::string, std::string>> result;
    for (const Row& row : rows_)
        if (!row.reset->isHidden()) result.emplace_back(row.parameter->key, valueOf(row));
    return result;
}

void ParameterPanel::setValue(const std::string& key, const std::string& value) {
    for (const Row& row : rows_) {
        if (row.parameter->key != key) continue;
        // A value that another version of the program saved may be out of range. The default is then kept.
        ParameterValues checked;
        try {
            checked.set(declared_, key, value);
        } catch (const std::exception&) {
            return;
        }
        setValueOf(row, checked.text(key));
    }
}

void ParameterPanel::resetAll() {
    for (const Row& row : rows_) setValueOf(row, row.defaultValue);
}

} // namespace kvscope::ui
