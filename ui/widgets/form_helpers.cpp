#include "ui/widgets/form_helpers.h"

#include "ui/frame/as_written.h"
#include "ui/models/format.h"

#include <QComboBox>
#include <QCoreApplication>
#include <QFileDialog>
#include <QFileInfo>
#include <QFormLayout>
#include <QRegularExpression>
#include <QSignalBlocker>
#include <QVBoxLayout>

#include <utility>

namespace kvscope::ui {
namespace {

QString told(const char* text) { return QCoreApplication::translate("FormHelpers", text); }

} // namespace

QSpinBox* numberField(const char* name, int least, int most, int value, const QString& help, const QString& unit) {
    auto* spin = named(new QSpinBox, name, help);
    spin->setRange(least, most);
    spin->setValue(value);
    setUnit(spin, unit);
    return spin;
}

QSpinBox* countField(const char* name, int least, int most, int value, const QString& help, const QString& unit) {
    QSpinBox* spin = numberField(name, least, most, value, help, unit);
    spin->setGroupSeparatorShown(true);
    return spin;
}

QFormLayout* addForm(QVBoxLayout* body) {
    auto* form = new QFormLayout;
    form->setContentsMargins(0, 0, 0, 0);
    form->setHorizontalSpacing(8);
    form->setVerticalSpacing(4);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    form->setRowWrapPolicy(QFormLayout::WrapLongRows);
    body->addLayout(form);
    return form;
}

MutedLabel* addMuted(QVBoxLayout* body, const char* name) {
    auto* label = new MutedLabel;
    label->setObjectName(QLatin1String(name));
    label->setWordWrap(true);
    body->addWidget(label);
    return label;
}

void chooseData(QComboBox* combo, const QVariant& data) {
    if (const int index = combo->findData(data); index >= 0) combo->setCurrentIndex(index);
}

QString withTitles(QString sentence, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
        if (key.find('_') == std::string::npos) continue;
        const QString word = QRegularExpression::escape(QString::fromStdString(key));
        sentence.replace(QRegularExpression(QStringLiteral("(?<![\\w-])%1(?![\\w-])").arg(word)), titleOf(key));
    }
    return sentence;
}

QString withTitles(QString sentence, const std::vector<Parameter>& declared) {
    std::vector<std::string> keys;
    for (const Parameter& parameter : declared) keys.push_back(parameter.key);
    return withTitles(std::move(sentence), keys);
}

void addModelDialogs(QComboBox* models) {
    models->addItem(told("Folder…"));
    models->addItem(told("GGUF file…"));
}

QString askForModel(QWidget* parent, const QComboBox* models, int index) {
    if (index == models->count() - 1)
        return QFileDialog::getOpenFileName(parent, told("Choose a GGUF model; of a split one the first part"), {},
                                            told("GGUF models (*.gguf);;All files (*)"));
    return QFileDialog::getExistingDirectory(parent, told("Choose a model folder"));
}

void listModel(QComboBox* models, const QString& nameOrPath) {
    const QSignalBlocker quiet(models);
    int index = models->findData(nameOrPath);
    if (index < 0) {
        index = models->count() - 2;
        models->insertItem(index, QFileInfo(nameOrPath).fileName(), nameOrPath);
        models->setItemData(index, asWritten(nameOrPath), Qt::ToolTipRole);
    }
    models->setCurrentIndex(index);
}

} // namespace kvscope::ui
