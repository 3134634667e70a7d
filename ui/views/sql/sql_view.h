// SQL: the user's own queries on the trace. Schema on the left, editor above, rows as a table or a plot below.
#pragma once

#include "ui/frame/view.h"
#include "ui/models/sql_queries.h"

#include "profiler/sql/sql_session.h"

class QComboBox;
class QLabel;
class QLineEdit;
class QModelIndex;
class QProgressBar;
class QPushButton;
class QTableView;
class QTabWidget;
class QTimer;
class QToolButton;
class QTreeWidget;
class QTreeWidgetItem;

namespace kvscope::ui {

class InlineMessage;
class SqlEditor;
class SqlPlot;
class SqlRunner;
class SqlTableModel;

class SqlView final : public View {
    Q_OBJECT
public:
    SqlView(Workspace& workspace, QWidget* parent);
    ~SqlView() override;

    bool exportImage(const QString& path, QSize size) override;
    QString exportCsv() const override;
    NumberWriter numbers() const override;
    void resetZoom() override;
    void undoZoom() override;
    void redoZoom() override;
    void applyTheme(const Theme& theme) override;

    /// Puts a query into the editor, and runs it if there is a trace to run it on.
    void setQuery(const QString& sql, bool run);
    bool busy() const;
    /// Rows that a query may bring into memory; more are not fetched, and the page says so.
    void setLimits(const SqlLimits& limits) { limits_ = limits; }

public slots:
    void run();
    void stop();

protected:
    void showEvent(QShowEvent* event) override;

private:
    QWidget* makeSchema();
    QWidget* makeEditor();
    QWidget* makeResult();
    void connectRunner();
    void followRun();
    void showSchema(const std::vector<SqlTableInfo>& schema);
    void filterSchema(const QString& text);
    void insertName(QTreeWidgetItem* item);
    void fillQueries();
    void chooseQuery(int index);
    void beginSaving(bool saving);
    void saveQuery();
    void updateState();
    void showTableMenu(const QPoint& place);
    void copySelection(bool withHeaders);
    void chooseExport();
    void sortBy(int column);
    void followRow(const QModelIndex& index);
    SqlParameters parameters() const;

    Workspace& workspace_;
    SqlQueries queries_;
    SqlLimits limits_;
    SqlRunner* runner_;
    SqlTableModel* model_;
    QLineEdit* schemaFilter_ = nullptr;
    QTreeWidget* schema_ = nullptr;
    SqlEditor* editor_ = nullptr;
    QPushButton *run_ = nullptr, *stop_ = nullptr, *export_ = nullptr;
    QComboBox* saved_ = nullptr;
    QToolButton *save_ = nullptr, *remove_ = nullptr;
    QWidget* naming_ = nullptr;
    QLineEdit* name_ = nullptr;
    QProgressBar* progress_ = nullptr;
    QLabel* status_ = nullptr;
    InlineMessage* message_ = nullptr;
    QTabWidget* results_ = nullptr;
    QTableView* table_ = nullptr;
    SqlPlot* plot_ = nullptr;
    QTimer* tick_ = nullptr;
    QString ran_;               // the statement whose rows are shown
    SqlParameters ranWith_;     // and its parameters
    QString runFile_, runName_; // what it ran on
    int ranBegin_ = 0;          // where it begins in the editor
    int sortColumn_ = -1;
    bool sortDescending_ = false, exporting_ = false, wanted_ = false;
};

} // namespace kvscope::ui
