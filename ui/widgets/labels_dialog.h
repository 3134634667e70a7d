// Asks how runs are called and what is said of them: name, tags and note. Several runs are labelled together.
#pragma once

#include "ui/frame/label_changes.h"

#include <QDialog>

#include <string>
#include <vector>

class QLineEdit;
class QPlainTextEdit;

namespace kvscope::ui {

/// What a run is called now, and its labels.
struct LabelledRun {
    QString name;
    RunLabels labels;
};

class LabelsDialog final : public QDialog {
    Q_OBJECT
public:
    enum class Field { Name, Tags, Note };
    /// runs: at least one; only one alone can be renamed. first: the field that gets the keyboard
    LabelsDialog(const std::vector<LabelledRun>& runs, Field first, QWidget* parent);

    /// What the person has changed. Of several runs, tags that only some of them have stay as they are.
    LabelEdit edit() const;

private:
    const bool one_;                        // a run alone can be renamed
    const QString name_, note_;             // as they were; the note that all runs have
    const std::vector<std::string> shared_; // tags that all runs have
    QLineEdit *nameField_, *tagsField_;
    QPlainTextEdit* noteField_;
};

} // namespace kvscope::ui
