// Which rows of a run break which rule of the trace format: what `kvscope-cli check` prints, in a window.
#pragma once

#include "ui/frame/workspace.h"

#include <QDialog>

class QTableWidget;

namespace kvscope::ui {

class MutedLabel;

/// Stays open beside the window and is of the run it was made for.
class CheckDialog final : public QDialog {
    Q_OBJECT
public:
    /// `run` has been tested. `name`: as the list of runs shows it.
    CheckDialog(const Workspace& workspace, const RunKey& run, const QString& name, QWidget* parent);

private:
    QTableWidget* table_;
};

} // namespace kvscope::ui
