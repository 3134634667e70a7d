// The open runs: which is shown (A) and which is laid over it (B).
#pragma once

#include "ui/frame/shortcuts.h"

#include <QWidget>

class QListView;
class QStackedLayout;

namespace kvscope::ui {

class InlineMessage;
class RunListModel;
class Workspace;

class RunList final : public QWidget {
    Q_OBJECT
public:
    explicit RunList(Workspace& workspace, QWidget* parent = nullptr);
    QListView* view() const { return view_; }
    static std::vector<ShortcutText> gestures(); // for the help
    void showProblem(const QString& sentence);   // e.g. a trace that did not open

signals:
    void openRequested();

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
