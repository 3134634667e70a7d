// The open runs of the workspace as a list model for Qt's views.
#pragma once

#include "base/indexed.h"
#include "ui/frame/workspace.h"

#include <QAbstractListModel>

namespace kvscope::ui {

class RunListModel final : public QAbstractListModel {
    Q_OBJECT
public:
    /// PlaceRole: the run's place in the comparison, 0 for the shown run; invalid if the run is not compared.
    /// FreePlaceRole: the place that the next compared run would get.
    enum Role { SubtitleRole = Qt::UserRole, StatusRole, LiveRole, PlaceRole, FreePlaceRole, WarningRole };
    explicit RunListModel(Workspace& workspace, QObject* parent = nullptr);
    int rowCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role = Qt::DisplayRole) const override;
    std::optional<RunKey> keyOf(const QModelIndex& index) const;
    QModelIndex indexOf(const RunKey& key) const;

private:
    void follow();
    Workspace& workspace_;
    Numbered<OpenRun> runs_; // the runs as the views were last told
    QStringList names_;      // [run] its name, different from all others
};

/// A run's length and state for the list and the inspector: "12 decode steps · stopped", "live", "interrupted".
QString statusText(const RunRow& row, bool live);
/// A sentence about the steps that the recorder dropped; empty if it dropped none.
QString lossText(const RunRow& row);

} // namespace kvscope::ui
