// All open runs as a table: what each is, what tells it apart, its numbers and what a person says of it.
#pragma once

#include "base/indexed.h"
#include "profiler/read/run_labels.h"
#include "profiler/read/summary.h"
#include "ui/frame/workspace.h"

#include <QAbstractTableModel>
#include <QString>
#include <QStringList>

#include <optional>
#include <vector>

namespace kvscope::ui {

class RunNumbersFeed;

class RunsTableModel final : public QAbstractTableModel {
    Q_OBJECT
public:
    enum Column {
        Run,
        Mark,
        Method,
        Model,
        Budget,
        Differs,
        Steps,
        TokenRate,
        HitRate,
        BytesPerToken,
        Exposed,
        DeviceKv,
        Answer,
        Pinned,
        Tags,
        Note,
        Started,
        Status,
        File,
        kColumns
    };
    /// SortRole: what a column is sorted by, a number or a text; invalid where it is not known. PinnedRole: of the row.
    /// SearchRole: every text of the row, for a filter. PlainRole: the number or text for CSV.
    enum Role { SortRole = Qt::UserRole, PinnedRole, SearchRole, PlainRole };

    RunsTableModel(Workspace& workspace, RunNumbersFeed& feed, QObject* parent);
    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role = Qt::DisplayRole) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

    /// The name of a column in CSV and in the settings: "hit_rate".
    static QString id(int column);
    static QString title(int column);
    std::optional<RunKey> keyOf(const QModelIndex& index) const;
    QModelIndex indexOf(const RunKey& key) const;
    RunLabels labelsOf(const RunKey& key) const;

private:
    struct Row {
        OpenRun run;
        std::string labelsJson; // that `labels` was made of
        RunLabels labels;
        QString differs;
        std::optional<std::size_t> place;  // in the comparison
        std::optional<RunSummary> summary; // absent: not read yet
        QString answer;
    };
    void follow();
    void takeNumbers(const RunKey& key);
    void fill(Row& row) const;
    void tellDifferences();
    QVariant value(const Row& row, int column) const; // of SortRole
    QString text(const Row& row, int column) const;
    QString help(const Row& row, int column) const;
    double number(const Row& row, int column) const;

    Workspace& workspace_;
    RunNumbersFeed& feed_;
    Numbered<Row> rows_;
};

} // namespace kvscope::ui
