#include "ui/views/sql/sql_view.h"

#include "ui/frame/home_window.h"
#include "ui/frame/save_path.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/sql_request.h"
#include "ui/frame/units.h"
#include "ui/frame/view_request.h"
#include "ui/frame/workspace.h"
#include "ui/models/sql_table_model.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/make_views.h"
#include "ui/views/sql/sql_plot.h"
#include "ui/views/sql/sql_query_bar.h"
#include "ui/views/sql/sql_runner.h"
#include "ui/views/sql/sql_schema.h"
#include "ui/widgets/sql_editor.h"

#include <QApplication>
#include <QClipboard>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QMenu>
#include <QProgressBar>
#include <QPushButton>
#include <QShortcut>
#include <QSplitter>
#include <QTabWidget>
#include <QTableView>
#include <QTimer>
#include <QVBoxLayout>

#include <algorithm>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr int kTickMs = 100;
constexpr int kPictureWaitMs = 20'000; // a picture waits this long for a query that still runs

/// "1.2 s", "340 ms".
QString duration(qint64 ms) {
    return ms >= 10'000 ? SqlView::tr("%1 s").arg(double(ms) / 1000, 0, 'f', 1) : SqlView::tr("%1 ms").arg(ms);
}

} // namespace

SqlView::SqlView(Workspace& workspace, QWidget* parent)
    : View(parent), workspace_(workspace), runner_(new SqlRunner(this)), model_(new SqlTableModel(this)) {
    setAccessibleName(tr("SQL"));
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(12, 10, 12, 8);
    auto* across = new QSplitter(Qt::Horizontal);
    across->setChildrenCollapsible(false);
    auto* down = new QSplitter(Qt::Vertical);
    down->setChildrenCollapsible(false);
    schema_ = new SqlSchema;
    across->addWidget(schema_);
    across->addWidget(down);
    down->addWidget(makeEditor());
    down->addWidget(makeResult());
    across->setSizes({230, 800});
    across->setStretchFactor(1, 1);
    down->setSizes({190, 460});
    down->setStretchFactor(1, 1);
    row->addWidget(across);
    tick_ = new QTimer(this);
    tick_->setInterval(kTickMs);
    connect(tick_, &QTimer::timeout, this, &SqlView::updateState);
    connectRunner();
    connect(&workspace_, &Workspace::currentChanged, this, &SqlView::followRun);
    connect(schema_, &SqlSchema::nameChosen, this, [this](const QString& name) {
        editor_->insertPlainText(name);
        editor_->setFocus();
    });
    editor_->setPlainText(queries_->firstQuery());
    updateState();
}

SqlView::~SqlView() { runner_->disconnect(this); }

QWidget* SqlView::makeEditor() {
    auto* box = new QWidget;
    auto* column = new QVBoxLayout(box);
    column->setContentsMargins(8, 0, 0, 6);
    column->setSpacing(6);
    auto* tools = new QHBoxLayout;
    tools->setSpacing(6);
    run_ = new QPushButton(tr("Run"));
    run_->setObjectName(QStringLiteral("sqlRun"));
    run_->setProperty("primary", true);
    run_->setToolTip(tr("Run the selected text, or the statement at the cursor (Ctrl+Return)"));
    stop_ = new QPushButton(tr("Stop"));
    stop_->setObjectName(QStringLiteral("sqlStop"));
    stop_->setToolTip(tr("Stop the query (Esc); the rows that came stay"));
    queries_ = new SqlQueryBar([this] { return editor_->toPlainText(); });
    for (QWidget* widget : std::initializer_list<QWidget*>{run_, stop_, queries_}) tools->addWidget(widget);
    tools->addStretch(1);
    editor_ = new SqlEditor;
    column->addLayout(tools);
    column->addWidget(editor_, 1);
    message_ = new InlineMessage;
    message_->setObjectName(QStringLiteral("sqlMessage"));
    column->addWidget(message_);

    connect(run_, &QPushButton::clicked, this, &SqlView::run);
    connect(stop_, &QPushButton::clicked, this, &SqlView::stop);
    connect(editor_, &SqlEditor::runRequested, this, &SqlView::run);
    connect(queries_, &SqlQueryBar::chosen, this, [this](const QString& sql) { setQuery(sql, true); });
    connect(queries_, &SqlQueryBar::named, this, [this] { editor_->setFocus(); });
    connect(queries_, &SqlQueryBar::saved, this,
            [this](const QString& name) { message_->show(InlineMessage::Kind::Note, tr("Saved as “%1”.").arg(name)); });
    connect(queries_, &SqlQueryBar::failed, this,
            [this](const QString& problem) { message_->show(InlineMessage::Kind::Error, problem); });
    auto* escape = new QShortcut(QKeySequence(Qt::Key_Escape), this);
    escape->setWhatsThis(tr("Stop the query"));
    escape->setContext(Qt::WidgetWithChildrenShortcut);
    connect(escape, &QShortcut::activated, this, [this] {
        if (queries_->isNaming())
            queries_->setNaming(false);
        else
            stop();
    });
    return box;
}

QWidget* SqlView::makeResult() {
    auto* box = new QWidget;
    auto* column = new QVBoxLayout(box);
    column->setContentsMargins(8, 0, 0, 0);
    column->setSpacing(6);
    results_ = new QTabWidget;
    results_->setObjectName(QStringLiteral("sqlResults"));
    results_->setAccessibleName(tr("Results"));
    results_->setDocumentMode(true);
    table_ = new QTableView;
    table_->setObjectName(QStringLiteral("sqlTable"));
    table_->setAccessibleName(tr("Rows of the query"));
    table_->setModel(model_);
    table_->setFrameShape(QFrame::NoFrame);
    table_->setAlternatingRowColors(true);
    table_->setWordWrap(false);
    table_->setShowGrid(false);
    table_->setContextMenuPolicy(Qt::CustomContextMenu);
    table_->verticalHeader()->setDefaultSectionSize(table_->fontMetrics().height() + 8);
    table_->verticalHeader()->setSectionResizeMode(QHeaderView::Fixed);
    table_->horizontalHeader()->setSectionsClickable(true);
    table_->horizontalHeader()->setHighlightSections(false);
    table_->horizontalHeader()->setToolTip(tr("Click to sort by a column, again to turn the order around"));
    results_->addTab(table_, tr("Table"));
    plot_ = new SqlPlot(workspace_, *model_, nullptr);
    results_->addTab(plot_, tr("Plot"));
    auto* foot = new QHBoxLayout;
    status_ = new QLabel;
    status_->setTextFormat(Qt::PlainText); // names of the file's tables stand in it
    status_->setObjectName(QStringLiteral("sqlStatus"));
    status_->setProperty("role", QStringLiteral("muted"));
    status_->setWordWrap(true);
    progress_ = new QProgressBar;
    progress_->setAccessibleName(tr("The query runs"));
    progress_->setRange(0, 0);
    progress_->setTextVisible(false);
    progress_->setFixedSize(120, 6);
    export_ = new QPushButton(tr("Export CSV…"));
    export_->setObjectName(QStringLiteral("sqlExport"));
    export_->setToolTip(tr("Run the query again and write all of its rows to a file, however many"));
    foot->addWidget(status_, 1);
    foot->addWidget(progress_);
    foot->addWidget(export_);
    column->addWidget(results_, 1);
    column->addLayout(foot);
    auto* filtered = new MutedLabel;
    filtered->setObjectName(QStringLiteral("sqlFilterNote"));
    filtered->setWordWrap(true);
    column->addWidget(filtered);
    const auto noteFilter = [this, filtered] {
        const QString note = filterNote(workspace_.filter(), 0);
        filtered->setText(note.isEmpty() ? note : note + tr(" A query counts what its WHERE says."));
        filtered->setVisible(!note.isEmpty());
    };
    connect(&workspace_, &Workspace::filterChanged, this, noteFilter);
    noteFilter();

    connect(table_, &QTableView::customContextMenuRequested, this, &SqlView::showTableMenu);
    connect(table_->horizontalHeader(), &QHeaderView::sectionClicked, this, &SqlView::sortBy);
    connect(table_->selectionModel(), &QItemSelectionModel::currentChanged, this, &SqlView::followRow);
    connect(export_, &QPushButton::clicked, this, &SqlView::chooseExport);
    auto* copy = new QShortcut(QKeySequence(QKeySequence::Copy), table_);
    copy->setWhatsThis(tr("Copy the chosen rows"));
    copy->setContext(Qt::WidgetShortcut);
    connect(copy, &QShortcut::activated, this, [this] { copySelection(false); });
    return box;
}

void SqlView::connectRunner() {
    connect(runner_, &SqlRunner::busyChanged, this, [this](bool busy) {
        busy ? tick_->start() : tick_->stop();
        updateState();
    });
    connect(runner_, &SqlRunner::schemaRead, this, [this](const std::vector<SqlTableInfo>& schema) {
        showSchema(schema);
        if (std::exchange(wanted_, false)) run();
    });
    connect(runner_, &SqlRunner::began, this, [this](const QStringList& columns) {
        model_->reset(columns);
        sortColumn_ = -1;
        table_->horizontalHeader()->setSortIndicatorShown(false);
        plot_->columnsChanged();
    });
    connect(runner_, &SqlRunner::rowsCame, this, [this](std::shared_ptr<const SqlRows> rows) {
        const bool first = model_->rowCount() == 0;
        model_->append(std::move(rows));
        if (first) {
            table_->resizeColumnsToContents(); // looks at the rows on the screen only
            for (int i = 0; i < model_->columnCount(); ++i)
                table_->setColumnWidth(i, std::clamp(table_->columnWidth(i) + 12, 60, 420));
        }
        plot_->rowsChanged(false);
    });
    connect(runner_, &SqlRunner::finished, this, [this](const SqlOutcome& outcome) {
        plot_->rowsChanged(true);
        updateState();
        if (outcome.truncated)
            message_->show(
                InlineMessage::Kind::Warning,
                tr("These are the first %1 rows; the rest was not fetched, to keep the memory free. Narrow the "
                   "query, or write all rows to a file with “Export CSV”.")
                    .arg(formatCount(qint64(outcome.rows))));
        if (model_->columnCount() == 0) message_->show(InlineMessage::Kind::Note, tr("The statement gives no rows."));
    });
    connect(runner_, &SqlRunner::sorted, this, [this](int column, bool descending, const std::vector<quint32>& order) {
        model_->setOrder(order);
        sortColumn_ = column;
        sortDescending_ = descending;
        table_->horizontalHeader()->setSortIndicator(column, descending ? Qt::DescendingOrder : Qt::AscendingOrder);
        table_->horizontalHeader()->setSortIndicatorShown(true);
        plot_->rowsChanged(true);
    });
    connect(runner_, &SqlRunner::exporting, this,
            [this](qint64 rows) { status_->setText(tr("Exporting: %1 rows written").arg(formatCount(rows))); });
    connect(runner_, &SqlRunner::exported, this, [this](const QString& path, qint64 rows) {
        exporting_ = false;
        message_->show(InlineMessage::Kind::Note, tr("%1 rows were written to %2.").arg(formatCount(rows), path));
    });
    connect(runner_, &SqlRunner::stopped, this, [this] {
        if (std::exchange(exporting_, false))
            message_->show(InlineMessage::Kind::Note, tr("The export was stopped; no file was written."));
        else
            message_->show(
                InlineMessage::Kind::Note,
                tr("Stopped after %1; the rows that had come are shown.").arg(duration(runner_->elapsedMs())));
        plot_->rowsChanged(true);
    });
    connect(runner_, &SqlRunner::failed, this, [this](const QString& sentence, int offset) {
        exporting_ = wanted_ = false;
        if (model_->columnCount() == 0) plot_->columnsChanged(); // nothing of the query before is left to draw
        message_->show(InlineMessage::Kind::Error, sentence);
        if (offset >= 0) editor_->markError(ran_.begin + int(QString::fromUtf8(ran_.sql.toUtf8().left(offset)).size()));
    });
}

void SqlView::showEvent(QShowEvent* event) {
    View::showEvent(event);
    followRun();
}

/// The page asks the file of the run that is shown. What was asked of another one stays until the next query.
void SqlView::followRun() {
    if (!isVisible()) return;
    const OpenRun* run = workspace_.current();
    updateState();
    if (!run || run->key.path == runner_->file()) return;
    const bool first = runner_->file().isEmpty();
    runner_->setFile(run->key.path);
    if (first && model_->columnCount() == 0) wanted_ = true; // something to look at, once the schema is there
}

void SqlView::showSchema(const std::vector<SqlTableInfo>& schema) {
    schema_->setTables(schema);
    QStringList names;
    for (const SqlTableInfo& table : schema) {
        names << QString::fromStdString(table.name);
        for (const SqlColumnInfo& column : table.columns) names << QString::fromStdString(column.name);
    }
    for (const auto& [name, value] : parameters()) names << QString::fromStdString(name);
    editor_->setNames(names);
}

void SqlView::setQuery(const QString& sql, bool run) {
    editor_->selectAll();
    editor_->insertPlainText(sql); // as typed, so that it can be undone
    if (run) this->run();
}

bool SqlView::busy() const { return runner_->busy(); }

SqlParameters SqlView::parameters() const {
    const OpenRun* run = workspace_.current();
    const Cursor& cursor = workspace_.cursor();
    const int last = run ? std::max(run->row.steps - 1, 0) : 0;
    return {{":run_id", run ? run->key.runId : 0},
            {":step", cursor.step},
            {":layer", cursor.layer},
            {":seq", cursor.sequence},
            {":kv_head", cursor.kvHead},
            {":block", cursor.block},
            {":first_step", cursor.firstStep >= 0 ? cursor.firstStep : 0},
            {":last_step", cursor.lastStep >= 0 ? cursor.lastStep : last}};
}

void SqlView::run() {
    message_->clear();
    editor_->markError(-1);
    const OpenRun* run = workspace_.current();
    if (!run) {
        message_->show(InlineMessage::Kind::Note,
                       tr("Open a trace (Ctrl+O) or record a run first; queries run on its file."));
        return;
    }
    if (run->key.path != runner_->file()) {
        wanted_ = true; // when the schema is there
        runner_->setFile(run->key.path);
        return;
    }
    if (runner_->busy() && schema_->isEmpty()) {
        wanted_ = true;
        return;
    }
    ran_.sql = editor_->statement(&ran_.begin);
    ran_.parameters = parameters();
    ran_.file = run->key.path;
    exporting_ = false;
    model_->reset({});
    runner_->run(ran_.sql, ran_.parameters, limits_);
    updateState();
}

void SqlView::stop() {
    wanted_ = false;
    runner_->stop();
}

void SqlView::updateState() {
    const bool busy = runner_->busy(), open = workspace_.current() != nullptr;
    run_->setEnabled(open);
    stop_->setEnabled(busy);
    progress_->setVisible(busy);
    export_->setEnabled(open && !busy && model_->columnCount() > 0);
    if (exporting_ && busy) return; // the export says how far it is
    QString text;
    if (!open)
        text = tr("No run is open. Queries run on the file of the run that is shown: open a trace with Ctrl+O.");
    else if (busy)
        text = tr("%1 rows after %2 …").arg(formatCount(model_->rowCount()), duration(runner_->elapsedMs()));
    else if (model_->columnCount() > 0)
        text =
            tr("%1 rows in %2, from %3. Values of the cursor: :run_id, :step, :layer, :seq, :kv_head, :block.")
                .arg(formatCount(model_->rowCount()), duration(runner_->elapsedMs()), QFileInfo(ran_.file).fileName());
    else
        text = tr("Ctrl+Return runs the statement at the cursor. Only reading is possible.");
    if (status_->text() != text) status_->setText(text);
}

void SqlView::showTableMenu(const QPoint& place) {
    QMenu menu(this);
    const bool any = table_->selectionModel()->hasSelection();
    menu.addAction(tr("Copy"), this, [this] { copySelection(false); })->setEnabled(any);
    menu.addAction(tr("Copy with headers"), this, [this] { copySelection(true); })->setEnabled(any);
    menu.addAction(tr("Select all"), table_, &QTableView::selectAll)->setEnabled(model_->rowCount() > 0);
    menu.addSeparator();
    menu.addAction(tr("Order of the query"), this,
                   [this] {
                       model_->setOrder({});
                       sortColumn_ = -1;
                       table_->horizontalHeader()->setSortIndicatorShown(false);
                       plot_->rowsChanged(true);
                   })
        ->setEnabled(sortColumn_ >= 0);
    menu.addAction(tr("Export CSV…"), this, &SqlView::chooseExport)->setEnabled(export_->isEnabled());
    menu.exec(table_->viewport()->mapToGlobal(place));
}

void SqlView::copySelection(bool withHeaders) {
    if (!table_->selectionModel()->hasSelection()) return;
    QApplication::clipboard()->setText(model_->tabSeparated(table_->selectionModel()->selection(), withHeaders));
}

void SqlView::chooseExport() {
    const QString path = askSavePath(this, tr("Export the query's rows"), QStringLiteral("query.csv"),
                                     withCompressed({{tr("CSV"), QStringLiteral("csv")}}));
    if (path.isEmpty()) return;
    message_->clear();
    exporting_ = true;
    runner_->exportCsv(ran_.sql, ran_.parameters, path);
}

void SqlView::sortBy(int column) {
    if (runner_->busy() || model_->rowCount() == 0) return;
    runner_->sort(model_->table(), column, sortColumn_ == column && !sortDescending_);
}

/// A row that names a step, layer, sequence, KV head or block moves the shared cursor there.
void SqlView::followRow(const QModelIndex& index) {
    const OpenRun* run = workspace_.current();
    if (!index.isValid() || !run || runner_->busy() || run->key.path != ran_.file) return;
    const std::size_t row = model_->sourceRow(index.row());
    const auto take = [&](const char* name, int& value) {
        const int column = model_->columnOf(QLatin1String(name));
        if (column < 0 || model_->rows().type(row, column) != SqlType::Integer) return;
        const double number = model_->rows().number(row, column);
        if (number >= 0 && number < 1e9) value = int(number);
    };
    int runId = run->key.runId;
    take("run_id", runId);
    if (runId != run->key.runId) return; // a row of another run says nothing about this one
    Cursor cursor = workspace_.cursor();
    take("step", cursor.step);
    take("layer", cursor.layer);
    take("seq", cursor.sequence);
    take("kv_head", cursor.kvHead);
    take("block", cursor.block);
    workspace_.setCursor(cursor);
}

bool SqlView::exportImage(const QString& path, QSize size) {
    QElapsedTimer waited; // a picture of a half-run query would be a picture of nothing
    waited.start();
    while (runner_->busy() && waited.elapsed() < kPictureWaitMs)
        QCoreApplication::processEvents(QEventLoop::ExcludeUserInputEvents, 20);
    if (results_->currentWidget() != plot_) {
        results_->setCurrentWidget(plot_); // laid out like one that is looked at
        QCoreApplication::processEvents(QEventLoop::ExcludeUserInputEvents);
    }
    return plot_->exportImage(path, size);
}

QString SqlView::exportCsv() const { return textOf(numbers()); }
NumberWriter SqlView::numbers() const { return model_->numbers(); }

void SqlView::resetZoom() { plot_->resetZoom(); }
void SqlView::undoZoom() {
    if (editor_->hasFocus())
        editor_->undo(); // the keys are the same: they belong to what has the focus
    else
        plot_->undoZoom();
}
void SqlView::redoZoom() {
    if (editor_->hasFocus())
        editor_->redo();
    else
        plot_->redoZoom();
}

void SqlView::applyTheme(const Theme& theme) {
    plot_->applyTheme(theme);
    editor_->applyTheme(theme);
}

View* makeSqlView(Workspace& workspace, QWidget* parent) { return new SqlView(workspace, parent); }

bool openInSql(const QWidget& from, const QString& sql, bool run) {
    const QString id = QStringLiteral("sql");
    const QWidget* window = homeOf(from);
    if (!requestView(from, id)) return false;
    auto* view = dynamic_cast<SqlView*>(viewIn(*window, id));
    if (view) view->setQuery(sql, run);
    return view != nullptr;
}

} // namespace kvscope::ui
