// Runs: a table of all open runs, sorted and filtered, with what can be done with the chosen ones.
#pragma once

#include "ui/frame/label_changes.h"
#include "ui/frame/remembers.h"
#include "ui/frame/view.h"
#include "ui/frame/workspace.h"
#include "ui/models/run_numbers_feed.h"
#include "ui/models/runs_table_model.h"
#include "ui/widgets/labels_dialog.h"

#include <vector>

class QAction;
class QLineEdit;
class QMenu;
class QPainter;
class QStackedWidget;
class QToolButton;
class QTreeView;

namespace kvscope::ui {

class EmptyPage;
class InlineMessage;
class MutedLabel;
class RunsFilter;

class RunsView final : public View, public Remembers {
    Q_OBJECT
public:
    RunsView(Workspace& workspace, QWidget* parent);

    bool exportImage(const QString& path, QSize size) override;
    /// A line per run that is shown, in the order of the table, with every column.
    QString exportCsv() const override;
    void resetZoom() override;
    void undoZoom() override;
    void redoZoom() override;
    void applyTheme(const Theme& theme) override;
    /// The order, widths and visibility of the columns, and what the table is sorted by.
    QVariantMap remembered() const override;
    void recall(const QVariantMap& state) override;

protected:
    void showEvent(QShowEvent* event) override;
    void hideEvent(QHideEvent* event) override;

private:
    QWidget* makeTools();
    void makeTable();
    void makeActions();
    QAction* addRunAction(const char* name, const QString& text, const QKeySequence& key, const QString& help);
    void fillColumnsMenu();
    void showMenu(const QPoint& place);
    void showState();
    void updateActions();
    void updateRunActions(const std::vector<RunKey>& chosen);
    std::vector<RunKey> chosenRuns() const;
    void mark(const std::vector<RunKey>& keys);
    void label(LabelsDialog::Field first);
    void pin();
    void closeRuns();
    void paintTable(QPainter& painter, QSize size) const;
    QString stateText() const;

    Workspace& workspace_;
    LabelChanges changes_;
    RunNumbersFeed feed_;
    RunsTableModel* model_;
    RunsFilter* sorted_;
    QTreeView* table_;
    QLineEdit* search_ = nullptr;
    MutedLabel *count_ = nullptr, *note_ = nullptr;
    InlineMessage* message_ = nullptr;
    QStackedWidget* pages_ = nullptr;
    EmptyPage* empty_ = nullptr;
    QMenu* columnsMenu_ = nullptr;
    QAction *show_ = nullptr, *mark_ = nullptr, *again_ = nullptr, *settings_ = nullptr, *fork_ = nullptr,
            *rename_ = nullptr, *tags_ = nullptr, *writeNote_ = nullptr, *pin_ = nullptr, *close_ = nullptr;
};

} // namespace kvscope::ui
