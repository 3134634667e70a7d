// The open runs as a list; follows the workspace.
#pragma once

#include "ui/workspace.h"

#include <QAbstractListModel>

namespace kvscope::ui {

class RunListModel final : public QAbstractListModel {
    Q_OBJECT
public:
    /// PlaceRole: in the comparison, 0 for the shown run; invalid: not in it. FreePlaceRole: the place it would get.
    enum Role { SubtitleRole = Qt::UserRole, StatusRole, LiveRole, PlaceRole, FreePlaceRole, WarningRole };
    explicit RunListModel(Workspace& workspace, QObject* parent = nullptr);
    int rowCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role = Qt::DisplayRole) const override;
    std::optional<RunKey> keyOf(const QModelIndex& index) const;
    QModelIndex indexOf(const RunKey& key) const;

private:
    void follow();
    Workspace& workspace_;
    std::vector<OpenRun> runs_; // what the views of this model know
    QStringList names_;         // of each: no two are the same
};

/// "12 steps · stopped", "running", "interrupted: the recorder is gone"; shown in the list and the inspector.
QString statusText(const RunRow& row, bool live);
/// What a recorder lost: empty when nothing.
QString lossText(const RunRow& row);

} // namespace kvscope::ui
