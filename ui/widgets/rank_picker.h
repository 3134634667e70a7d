// The picker of the tool bar that chooses which rank of a run in several processes all views show.
#pragma once

#include "ui/frame/workspace.h"

#include <QWidget>

class QComboBox;

namespace kvscope::ui {

/// Hidden unless the shown run has a rank. Lists the ranks of its trace that are open, those that are missing, and "all
/// ranks", which asks for the view that shows them side by side.
class RankPicker final : public QWidget {
    Q_OBJECT
public:
    explicit RankPicker(Workspace& workspace, QWidget* parent = nullptr);

signals:
    void allRequested();

private:
    void follow();
    void choose(int index);

    Workspace& workspace_;
    QComboBox* ranks_;
};

} // namespace kvscope::ui
