// One line of the sweep dialog: a setting and the values that the runs get of it.
#pragma once

#include "base/indexed.h"
#include "core/session/sweep.h"
#include "ui/widgets/sweep_plan.h"

#include <QWidget>

#include <vector>

class QComboBox;
class QLineEdit;
class QMenu;
class QToolButton;

namespace kvscope::ui {

class MutedLabel;

class SweepAxisEditor final : public QWidget {
    Q_OBJECT
public:
    explicit SweepAxisEditor(QWidget* parent = nullptr);

    /// The settings that can be chosen; the chosen one stays if it is among them.
    void setFields(const std::vector<SweepField>& fields);
    void choose(const std::string& key);
    const SweepField* field() const; // null: none can be chosen
    bool isEmpty() const;            // no value was given yet
    /// @throws Error(BadInput) where a value between two commas is missing
    SweepAxis axis() const;
    void showRemove(bool shown);
    void focusValues();

signals:
    void changed();
    void removeRequested();

private:
    QString values() const;
    void showField();
    void fillChoices();

    Numbered<SweepField> fields_;
    QComboBox* field_;
    QLineEdit* values_;
    QToolButton *choose_, *remove_;
    QMenu* choices_;
    MutedLabel* hint_;
};

} // namespace kvscope::ui
