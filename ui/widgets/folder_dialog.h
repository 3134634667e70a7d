// The traces of a folder in a table: rows appear as the files are read, and a double click opens one. Ranks open as one
// trace, with a run for each.
#pragma once

#include <QDialog>
#include <QStringList>

#include <memory>

class QComboBox;
class QProgressBar;
class QPushButton;
class QTimer;
class QTreeView;

namespace kvscope::ui {

class MutedLabel;

/// Stays open beside the window. Reads when it is made, and again when another depth is chosen; closing it ends the
/// reading.
class FolderDialog final : public QDialog {
    Q_OBJECT
public:
    explicit FolderDialog(const QString& folder, QWidget* parent = nullptr);
    ~FolderDialog() override;
    /// False once all files were read, or the reading was stopped.
    bool isReading() const;

signals:
    void openRequested(const QStringList& paths);
    void ranksRequested(const QString& path); // of the trace that the ranks were merged into

private:
    class Rows;
    class Reading;
    class Merging;
    QWidget* makeDepthPicker();
    void collect();
    void openSelected();
    void openRanks();
    void collectMerged();

    const QString folder_;
    Rows* rows_;
    QTreeView* table_;
    MutedLabel* state_;
    QProgressBar* progress_;
    QComboBox* depth_;
    QPushButton *stop_, *open_, *ranks_;
    QTimer* timer_;
    std::unique_ptr<Reading> reading_; // these two last: their threads end before the rest goes
    std::unique_ptr<Merging> merging_; // of the ranks of the folder; null: it was not asked for
};

} // namespace kvscope::ui
