// The panel that lists the runs of the queue: which one runs and how far it is, which wait, and what became of the
// others.
#pragma once

#include "ui/frame/workspace.h"

#include <QWidget>

#include <vector>

class QAction;
class QListView;
class QStackedWidget;

namespace kvscope::ui {

class MutedLabel;
class QueueModel;
class RunQueue;
struct QueuedRun;

class QueuePanel final : public QWidget {
    Q_OBJECT
public:
    QueuePanel(RunQueue& queue, Workspace& workspace, QWidget* parent = nullptr);
    QListView* view() const { return view_; }
    /// The row of buttons that the window puts beside the title of the panel's dock, so that the list has the full
    /// height. It belongs to the dock from then on.
    QWidget* heading() const { return heading_; }

signals:
    /// The user wants to compare these runs, the first of them as A.
    void compareRequested(const std::vector<kvscope::ui::RunKey>& runs);

protected:
    void changeEvent(QEvent* event) override;

private:
    QAction* addListAction(const char* name, const QString& text, const QKeySequence& key, const QString& help);
    void makeList();
    void makeActions();
    void makeHeading();
    void updateIcons();
    void updateState();
    const QueuedRun* chosen() const;
    void moveChosen(int by);
    void removeChosen();
    std::vector<RunKey> finished() const;

    RunQueue& queue_;
    Workspace& workspace_;
    QueueModel* model_;
    QListView* view_;
    QWidget* heading_;
    MutedLabel *state_, *empty_;
    QStackedWidget* pages_;
    QAction *holdAction_ = nullptr, *show_ = nullptr, *up_ = nullptr, *down_ = nullptr, *remove_ = nullptr,
            *cancelAll_ = nullptr, *compare_ = nullptr, *clear_ = nullptr, *stops_ = nullptr;
};

} // namespace kvscope::ui
