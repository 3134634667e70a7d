// The panel that lists the open runs and marks which run is shown (A) and which are compared with it (B, C, ...).
#pragma once

#include "ui/frame/shortcuts.h"
#include "ui/frame/workspace.h"

#include <QWidget>

class QListView;
class QStackedLayout;

namespace kvscope::ui {

class InlineMessage;
class RunListModel;

class RunList final : public QWidget {
    Q_OBJECT
public:
    explicit RunList(Workspace& workspace, QWidget* parent = nullptr);
    QListView* view() const { return view_; }
    static std::vector<ShortcutText> gestures(); // for the list of shortcuts
    void showProblem(const QString& sentence);   // e.g. that a trace could not be opened; empty: hides it

signals:
    void openRequested();
    void againRequested(const kvscope::ui::RunKey& key);      // Run Again
    void violationsRequested(const kvscope::ui::RunKey& key); // the list of what breaks rules

private:
    void showMenu(const QPoint& place);
    bool eventFilter(QObject* watched, QEvent* event) override;

    Workspace& workspace_;
    RunListModel* model_;
    QListView* view_;
    QWidget* empty_;
    InlineMessage* message_;
};

} // namespace kvscope::ui
