// The runs of the queue as a list model: what each is called, how far it is, and what became of it.
#pragma once

#include "base/indexed.h"
#include "ui/frame/workspace.h"
#include "ui/session/run_queue.h"

#include <QAbstractListModel>
#include <QTimer>

#include <vector>

namespace kvscope::ui {

class QueueModel final : public QAbstractListModel {
    Q_OBJECT
public:
    /// StateRole: QueuedRun::State as int. DetailRole: the second line, "token 12 of 128". ShareRole: how much of a
    /// running one is done, 0 to 1. PlaceRole: its place in the comparison; invalid if it is not compared. ColourRole:
    /// the lasting colour of its run; invalid while nothing is recorded.
    enum Role { StateRole = Qt::UserRole, DetailRole, ShareRole, PlaceRole, ColourRole };
    QueueModel(RunQueue& queue, Workspace& workspace, QObject* parent = nullptr);

    int rowCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role = Qt::DisplayRole) const override;
    int idOf(const QModelIndex& index) const; // of the run; 0: no row
    QModelIndex indexOf(int id) const;

private:
    void follow();
    void followRunning();

    RunQueue& queue_;
    Workspace& workspace_;
    Numbered<int> ids_; // as the views were last told
    QTimer timer_;      // a run that no view shows grows without a signal
};

/// What a run of the queue does or did, in a few words.
QString queuedDetail(const QueuedRun& run, const Workspace& workspace);
/// "2 of 8 done, 5 wait"; empty for an empty queue.
QString queueText(const RunQueue& queue);

} // namespace kvscope::ui
