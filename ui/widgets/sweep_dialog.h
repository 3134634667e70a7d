// The dialog that asks which settings of the session form vary, and lists the runs that this makes before any begins.
#pragma once

#include "ui/widgets/sweep_plan.h"

#include <QDialog>
#include <QString>

#include <utility>
#include <vector>

class QComboBox;
class QLabel;
class QPushButton;
class QTreeWidget;
class QVBoxLayout;

namespace kvscope::ui {

class InlineMessage;
class SweepAxisEditor;

/// Modal for its window, so that the form stays as it is meanwhile. Accepted: the person wants the runs.
class SweepDialog final : public QDialog {
    Q_OBJECT
public:
    SweepDialog(SweepBase base, QWidget* parent);

    /// The runs of the list that can run.
    std::vector<std::pair<QString, SessionRequest>> runs() const;
    QString trace() const; // into which they are recorded; empty: a new one

private:
    QWidget* makeAxes();
    QWidget* makePreview();
    QWidget* makeFooter();
    SweepAxisEditor* addAxis();
    void removeAxis(SweepAxisEditor* axis);
    QStringList methodNames() const;
    std::vector<SweepField> fieldsFor(const SweepAxisEditor* axis) const;
    void refresh();
    void plan();
    void showRuns(const QString& wanted, const QString& problem);
    void chooseTrace();

    SweepBase base_;
    std::vector<SweepField> fields_; // of all methods of the sweep
    std::vector<SweepAxisEditor*> axes_;
    std::vector<SweptRun> runs_;
    QVBoxLayout* axisColumn_ = nullptr;
    QPushButton *more_ = nullptr, *add_ = nullptr;
    QLabel* count_ = nullptr;
    QTreeWidget* list_ = nullptr;
    QComboBox* trace_ = nullptr;
    InlineMessage* message_ = nullptr;
    bool refreshing_ = false;
};

} // namespace kvscope::ui
