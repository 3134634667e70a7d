// SQL: the user's own queries on the trace. Schema on the left, editor above, rows as a table or a plot below.
#pragma once

#include "ui/frame/view.h"

#include "profiler/sql/sql_session.h"

class QLabel;
class QModelIndex;
class QProgressBar;
class QPushButton;
class QTableView;
class QTabWidget;
class QTimer;

namespace kvscope::ui {

class InlineMessage;
class SqlEditor;
class SqlPlot;
class SqlQueryBar;
class SqlRunner;
class SqlSchema;
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
    QWidget* makeEditor();
    QWidget* makeResult();
    void connectRunner();
    void followRun();
    void showSchema(const std::vector<SqlTableInfo>& schema);
    void updateState();
    void showTableMenu(const QPoint& place);
    void copySelection(bool withHeaders);
    void chooseExport();
    void sortBy(int column);
    void followRow(const QModelIndex& index);
    SqlParameters parameters() const;

    Workspace& workspace_;
    SqlLimits limits_;
    SqlRunner* runner_;
    SqlTableModel* model_;
    SqlSchema* schema_ = nullptr;
    SqlEditor* editor_ = nullptr;
    QPushButton *run_ = nullptr, *stop_ = nullptr, *export_ = nullptr;
    SqlQueryBar* queries_ = nullptr;
    QProgressBar* progress_ = nullptr;
    QLabel* status_ = nullptr;
    InlineMessage* message_ = nullptr;
    QTabWidget* results_ = nullptr;
    QTableView* table_ = nullptr;
    SqlPlot* plot_ = nullptr;
    QTimer* tick_ = nullptr;
    /// The statement whose rows are shown.
    struct {
        QString sql;
        SqlParameters parameters;
        QString file;  // the trace on which it ran
        int begin = 0; // the index of its first character in the editor
    } ran_;
    int sortColumn_ = -1;
    bool sortDescending_ = false, exporting_ = false, wanted_ = false;
};

} // namespace kvscope::ui
