// What forms and dialogs lay out in the same way.
#pragma once

#include "core/select/parameters.h"
#include "ui/frame/small_widgets.h"

#include <QString>

#include <string>
#include <vector>

class QComboBox;
class QFormLayout;
class QSpinBox;
class QVBoxLayout;
class QVariant;

namespace kvscope::ui {

/// Gives an editor its object name and its help. It ignores the wheel unless it has the focus.
template <class Editor> Editor* named(Editor* editor, const char* name, const QString& help) {
    editor->setObjectName(QLatin1String(name));
    editor->setToolTip(help);
    editor->setWhatsThis(help);
    ignoreWheelUnlessFocused(editor);
    return editor;
}
/// The same, with the title that screen readers say.
template <class Editor> Editor* named(Editor* editor, const char* name, const QString& title, const QString& help) {
    editor->setAccessibleName(title);
    return named(editor, name, help);
}

/// A field for a whole number, with its unit, in the plural, behind it.
QSpinBox* numberField(const char* name, int least, int most, int value, const QString& help, const QString& unit = {});
/// The same for a number that can be long: 1,000,000.
QSpinBox* countField(const char* name, int least, int most, int value, const QString& help, const QString& unit = {});

/// Adds a form of narrow rows to a section.
QFormLayout* addForm(QVBoxLayout* body);
/// Adds a paragraph in muted colour.
MutedLabel* addMuted(QVBoxLayout* body, const char* name);
/// Chooses the entry with this data, if there is one.
void chooseData(QComboBox* combo, const QVariant& data);

/// A sentence in which settings have the titles that forms show: "Total blocks 8 is smaller ...", not "total_blocks 8
/// ...". A key of one word stays as it is, because it may be a word of the sentence.
QString withTitles(QString sentence, const std::vector<std::string>& keys);
QString withTitles(QString sentence, const std::vector<Parameter>& declared);

/// Adds the entries behind which askForModel() stands: the last two of the list.
void addModelDialogs(QComboBox* models);
/// Asks for a model: where the entry `index` is the last one for a GGUF file, else for a folder. Empty: cancelled.
QString askForModel(QWidget* parent, const QComboBox* models, int index);
/// Adds the model to the list if it is not there, and shows it as chosen, without a signal.
void listModel(QComboBox* models, const QString& nameOrPath);

} // namespace kvscope::ui
