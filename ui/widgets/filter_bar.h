// The tool bar in which the user edits the filter: one field for each part. The bar marks a field whose text cannot be
// used and says why, and highlights the parts that are set.
#pragma once

#include "ui/frame/filter.h"

#include <QToolBar>

class QComboBox;
class QLabel;
class QLineEdit;
class QToolButton;

namespace kvscope::ui {

class Workspace;

class FilterBar final : public QToolBar {
    Q_OBJECT
public:
    explicit FilterBar(Workspace& workspace, QWidget* parent = nullptr);
    /// Shows the bar and gives the keyboard focus to its first field.
    void edit();
    /// Why the text of a field cannot be used; empty if all fields are fine.
    QString problem() const;

signals:
    void left(); // Escape was pressed in a field that is empty

private:
    QLineEdit* addField(const char* name, const QString& title, const QString& placeholder, const QString& help,
                        int characters);
    void apply();
    void display(const Filter& filter);
    void markActive();

    Workspace& workspace_;
    QLineEdit *layers_ = nullptr, *heads_ = nullptr, *steps_ = nullptr, *text_ = nullptr;
    QComboBox* component_ = nullptr;
    QToolButton *fromCursor_ = nullptr, *clear_ = nullptr;
    QLabel* problem_ = nullptr;
};

} // namespace kvscope::ui
