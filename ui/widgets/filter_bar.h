// The filter as a tool bar: one field per part, wrong text refused where it was typed, an active part shown as such.
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
    /// Keyboard focus to the first field.
    void edit();
    /// Why a field is refused; empty if all are fine.
    QString problem() const;

signals:
    void left(); // Escape, with nothing in the field that it could empty

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
