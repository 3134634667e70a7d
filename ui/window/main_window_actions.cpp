// Makes the menus, the tool bar and the shortcuts of the main window.
#include "profiler/read/step_kind.h"
#include "ui/figures/figure_dialog.h"
#include "ui/frame/as_written.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/cursor_history.h"
#include "ui/frame/cursor_link.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/sql_request.h"
#include "ui/frame/view.h"
#include "ui/frame/workspace.h"
#include "ui/look/icons.h"
#include "ui/look/theme.h"
#include "ui/session/session_controller.h"
#include "ui/views/marks_range.h"
#include "ui/widgets/calibrate_dialog.h"
#include "ui/widgets/colour_map_menu.h"
#include "ui/widgets/data_export_menu.h"
#include "ui/widgets/filter_bar.h"
#include "ui/widgets/folder_dialog.h"
#include "ui/widgets/help_overlay.h"
#include "ui/widgets/prompt_progress.h"
#include "ui/widgets/queue_panel.h"
#include "ui/widgets/rank_picker.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/run_statistics.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/token_strip.h"
#include "ui/widgets/welcome_page.h"
#include "ui/window/main_window.h"
#include "ui/window/panels.h"
#include "ui/window/session_progress.h"
#include "ui/window/view_area.h"

#include <QApplication>
#include <QClipboard>
#include <QDockWidget>
#include <QFileDialog>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QListView>
#include <QMenu>
#include <QMenuBar>
#include <QStackedWidget>
#include <QToolBar>
#include <QToolButton>
#include <QVBoxLayout>
#include <QWhatsThis>

#include <optional>
#include <vector>

namespace kvscope::ui {
namespace {

QWidget* makeSpacer() {
    auto* spacer = new QWidget;
    spacer->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Preferred);
    return spacer;
}

/// As soon as the runs of a sample trace are open, shows its view; with the view that compares, all its runs are
/// marked.
void showWhenOpen(MainWindow& window, const QString& path, const QString& view) {
    auto* once = new QObject(&window);
    Workspace* workspace = &window.workspace();
    const auto show = [&window, workspace, once, file = QFileInfo(path).canonicalFilePath(), view] {
        const OpenRun* current = workspace->current();
        if (!current || QFileInfo(current->key.path).canonicalFilePath() != file) return;
        workspace->disconnect(once);
        once->deleteLater();
        workspace->setCompare(std::nullopt); // a run of another trace
        if (view == QLatin1String("compare")) {
            const RunKey shown = current->key;
            std::vector<RunKey> others;
            for (const OpenRun& run : workspace->runs())
                if (run.key.path == shown.path && run.key != shown) others.push_back(run.key);
            for (const RunKey& other : others) workspace->setCompared(other, true);
        }
        window.showView(view);
    };
    QObject::connect(workspace, &Workspace::runsChanged, once, show);
    QObject::connect(workspace, &Workspace::currentChanged, once, show);
    QObject::connect(workspace, &Workspace::openFailed, once, &QObject::deleteLater);
}

} // namespace

QAction* MainWindow::addNamed(const char* name, const QString& text, const QList<QKeySequence>& keys,
                              const QString& tip) {
    auto* added = new QAction(text, this);
    added->setObjectName(QLatin1String(name));
    added->setShortcuts(keys);
    setShortcutGroup(added, actionGroup_);
    const QString keyText =
        keys.isEmpty() ? QString() : QStringLiteral(" (%1)").arg(keys.front().toString(QKeySequence::NativeText));
    added->setToolTip(tip + keyText);
    added->setStatusTip(QString());
    addAction(added);
    return added;
}

QAction* MainWindow::action(const char* name) const {
    return findChild<QAction*>(QLatin1String(name), Qt::FindDirectChildrenOnly);
}

namespace {

QList<QKeySequence> keys(std::initializer_list<const char*> texts) {
    QList<QKeySequence> list;
    for (const char* text : texts) list << QKeySequence(QLatin1String(text));
    return list;
}

} // namespace

void MainWindow::makeActions() {
    makeSessionActions();
    makeViewActions();
    makeCursorActions();
    makeFileActions();
    makeHelpActions();
    // Their shortcuts work in the window of a view too, and lead from there to this window.
    for (const char* name : {"filter", "focusTokens", "focusQueue", "focusRuns", "palette", "shortcuts", "definitions"})
        connect(action(name), &QAction::triggered, this, &QWidget::activateWindow);
}

void MainWindow::makeSessionActions() {
    actionGroup_ = tr("Session");
    connect(addNamed("run", tr("Run"), keys({"F5"}), tr("Run the session")), &QAction::triggered, this,
            [this] { form_->run(); });
    connect(addNamed("queueAdd", tr("Add to Queue"), keys({"F7"}),
                     tr("Run the session when those before it have ended; at once if none runs")),
            &QAction::triggered, form_, &SessionForm::addToQueue);
    connect(addNamed("sweep", tr("Sweep…"), keys({"Ctrl+F7"}),
                     tr("Queue a run for every combination of values of some settings")),
            &QAction::triggered, form_, &SessionForm::sweep);
    connect(addNamed("pause", tr("Pause"), keys({"F6"}), tr("Pause or resume")), &QAction::triggered, this, [this] {
        if (controller_->state() == SessionController::State::Paused)
            controller_->resume();
        else
            controller_->pause();
    });
    connect(addNamed("step", tr("Step"), keys({"F10"}), tr("One decode step")), &QAction::triggered, this,
            [this] { controller_->stepOnce(); });
    connect(addNamed("stop", tr("Stop"), keys({"Shift+F5"}), tr("Stop the session")), &QAction::triggered, this,
            [this] { controller_->stop(); });
    connect(addNamed("again", tr("Run Again…"), keys({"Ctrl+F5"}),
                     tr("Fill the session form with what the shown run was recorded with")),
            &QAction::triggered, this, [this] {
                if (const OpenRun* run = workspace_->current()) runAgain(run->key);
            });
    connect(addNamed("fork", tr("Fork Here…"), keys({"Ctrl+Shift+F5"}),
                     tr("Go on from the cursor's step of the shown run with other settings, or without a block")),
            &QAction::triggered, this, &MainWindow::forkHere);
    QAction* path = addNamed("modelPath", tr("Keep the Model's Path in Traces"), {},
                             tr("A trace says where its model lies, so that it can be run again and checked without "
                                "asking. Reports and exports never show more than its name"));
    path->setCheckable(true);
    path->setChecked(saved_.modelPath);
    connect(path, &QAction::toggled, this, [this](bool on) { saved_.modelPath = on; });
    connect(addNamed("serve", tr("Serve…"), keys({"Ctrl+Alt+R"}),
                     tr("Start a server for clients of OpenAI's API, and watch its requests live")),
            &QAction::triggered, this, &MainWindow::showServeDialog);
    connect(addNamed("tune", tr("Tune…"), keys({"Ctrl+Alt+T"}),
                     tr("Choose method, budget and block size for a memory, a link and a load, and check the choice")),
            &QAction::triggered, this, &MainWindow::showTuneDialog);
    connect(addNamed("calibrate", tr("Calibrate Model…"), keys({"Ctrl+Alt+L"}),
                     tr("Learn what SparDA, Locret, Double Sparsity and AsyncTLS must know about the model")),
            &QAction::triggered, this, [this] {
                auto* dialog = findChild<CalibrateDialog*>();
                if (dialog == nullptr) {
                    dialog = new CalibrateDialog(this);
                    connect(dialog, &CalibrateDialog::calibrated, this,
                            [this](const QString& name, const std::shared_ptr<const Model>& model) {
                                if (form_->modelName() == name) controller_->adoptModel(name, model);
                                showMessage(
                                    tr("The calibration of %1 is done.").arg(QString::fromStdString(model->name())));
                            });
                }
                dialog->setModel(form_->modelName(), form_->hasModel() ? controller_->model() : nullptr);
                dialog->show();
                dialog->raise();
                dialog->activateWindow();
            });
}

void MainWindow::makeFileActions() {
    actionGroup_ = tr("Files");
    connect(addNamed("open", tr("Open Trace…"), keys({"Ctrl+O"}), tr("Open a recorded trace")), &QAction::triggered,
            this, [this] { chooseFiles(); });
    connect(addNamed("openFolder", tr("Open Folder…"), keys({"Ctrl+Shift+O"}), tr("List the traces of a folder")),
            &QAction::triggered, this, [this] {
                const QString folder = QFileDialog::getExistingDirectory(this, tr("Open a folder of traces"),
                                                                         SessionController::tracesFolder());
                if (folder.isEmpty()) return;
                auto* dialog = new FolderDialog(folder, this);
                connect(dialog, &FolderDialog::openRequested, this, &MainWindow::openFiles);
                connect(dialog, &FolderDialog::ranksRequested, this, [this](const QString& path) {
                    openFiles({path});
                    showView(QStringLiteral("ranks"));
                });
                dialog->show();
            });
    connect(addNamed("exportView", tr("Export View…"), keys({"Ctrl+E"}),
                     tr("Save the view in front as PNG, SVG, PDF or CSV")),
            &QAction::triggered, this, [this] { chooseViewExport(); });
    connect(addNamed("exportReport", tr("Export Report…"), keys({"Ctrl+Shift+E"}),
                     tr("Save a report of the shown run as HTML or PDF")),
            &QAction::triggered, this, [this] { chooseReportExport(); });
    connect(addNamed("exportFigure", tr("Paper Figure…"), keys({"Ctrl+Alt+E"}),
                     tr("Redraw a figure of the papers from the open traces, for print")),
            &QAction::triggered, this, [this] {
                QStringList files;
                for (const OpenRun& run : workspace_->runs())
                    if (!files.contains(run.key.path)) files << run.key.path;
                (new FigureDialog(files, this))->show();
            });
    connect(addNamed("newWindow", tr("New Window"), keys({"Ctrl+Shift+N"}),
                     tr("Another window on the same traces, with a linked cursor")),
            &QAction::triggered, this, [this] { newWindow(); });
    connect(addNamed("closeWindow", tr("Close Window"), keys({"Ctrl+Shift+W"}), tr("Close this window")),
            &QAction::triggered, this, &QWidget::close);
    connect(addNamed("quit", tr("Quit"), keys({"Ctrl+Q"}), tr("Close all windows")), &QAction::triggered, this, [] {
        // The main windows first: they save where the windows of their views stand, and hide them. Qt may close
        // a window of a view first, which puts the view back into the tabs.
        for (QWidget* widget : QApplication::topLevelWidgets())
            if (qobject_cast<MainWindow*>(widget) && widget->isVisible() && !widget->close()) return;
        QApplication::closeAllWindows();
    });
}

void MainWindow::makeViewActions() {
    actionGroup_ = tr("Views");
    for (std::size_t index = 0; index < views().size(); ++index) {
        const ViewEntry& entry = views()[index];
        const QByteArray name = QByteArray("view_") + entry.id;
        connect(addNamed(name, tr(entry.title), keys({entry.shortcut}), tr(entry.help)), &QAction::triggered, this,
                [this, index] {
                    area_->bringToFront(int(index));
                    showCentre();
                    // The keys of the view then work at once.
                    if (View* view = currentView()) view->setFocus(Qt::ShortcutFocusReason);
                });
    }
    makePlaceActions();
    const auto onView = [this](void (View::*method)()) {
        return [this, method] {
            if (View* view = currentView()) (view->*method)();
        };
    };
    connect(addNamed("nextView", tr("Next View"), keys({"Ctrl+PgDown", "Ctrl+Tab"}), tr("The view to the right")),
            &QAction::triggered, this, [this] { stepView(1); });
    connect(addNamed("previousView", tr("Previous View"), keys({"Ctrl+PgUp", "Ctrl+Shift+Tab"}),
                     tr("The view to the left")),
            &QAction::triggered, this, [this] { stepView(-1); });
    connect(addNamed("zoomUndo", tr("Undo Zoom"), keys({"Ctrl+Z"}), tr("Back to the zoom before")), &QAction::triggered,
            this, onView(&View::undoZoom));
    connect(addNamed("zoomRedo", tr("Redo Zoom"), keys({"Ctrl+Shift+Z", "Ctrl+Y"}), tr("Forward to the zoom after")),
            &QAction::triggered, this, onView(&View::redoZoom));
    connect(addNamed("zoomReset", tr("Reset Zoom"), keys({"Ctrl+0"}), tr("Show everything")), &QAction::triggered, this,
            onView(&View::resetZoom));
    connect(addNamed("copyTable", tr("Copy as Table"), keys({"Ctrl+Shift+C"}),
                     tr("The numbers of the view in front, separated by tabs")),
            &QAction::triggered, this, [this] {
                if (View* view = currentView()) view->copyNumbers();
            });
    connect(addNamed("copyImage", tr("Copy Image"), keys({"Ctrl+Alt+C"}), tr("The view in front as a picture")),
            &QAction::triggered, this, [this] {
                if (!currentView()) return;
                currentView()->copyImage();
                showMessage(tr("The picture of this view was copied."));
            });
    connect(addNamed("copySql", tr("Copy SQL"), keys({"Ctrl+Alt+S"}), tr("The statement that gives what is shown")),
            &QAction::triggered, this, [this] {
                const QString statement = currentView() ? currentView()->sql() : QString();
                if (statement.isEmpty())
                    showMessage(tr("No one statement gives what this view shows."));
                else {
                    QApplication::clipboard()->setText(statement);
                    showMessage(tr("The SQL of this view was copied."));
                }
            });
    connect(addNamed("openSql", tr("Open in SQL Page"), keys({"Ctrl+Alt+Q"}),
                     tr("The statement that gives what is shown, to be changed and run")),
            &QAction::triggered, this, [this] {
                const QString statement = currentView() ? currentView()->sql() : QString();
                if (statement.isEmpty())
                    showMessage(tr("No one statement gives what this view shows."));
                else
                    openInSql(*currentView(), statement);
            });
    connect(addNamed("theme", tr("Dark Theme"), keys({"Ctrl+Shift+D"}), tr("Switch between light and dark")),
            &QAction::triggered, this,
            [this] { setTheme(theme_ == QLatin1String("dark") ? QStringLiteral("light") : QStringLiteral("dark")); });
    action("theme")->setCheckable(true);
    QAction* cold = addNamed("countCold", tr("Count Cold Steps"), {},
                             tr("Let rates, shares and means count the steps in which a sequence selects for the first "
                                "time; totals always do"));
    cold->setCheckable(true);
    cold->setChecked(coldSteps() == ColdSteps::Counted);
    connect(cold, &QAction::toggled, this, &MainWindow::countCold);
    connect(addNamed("viewsOnly", tr("Only the Views"), keys({"F11"}),
                     tr("Put the panels and the filter away, and bring them back")),
            &QAction::triggered, this, [this] { panels_->setViewsOnly(!panels_->viewsOnly()); });
    action("viewsOnly")->setCheckable(true);
    connect(addNamed("resetLayout", tr("Reset Layout"), {}, tr("Views and panels where they were at first")),
            &QAction::triggered, this, [this] {
                panels_->setViewsOnly(false);
                area_->rejoinAll();
                panels_->reset();
            });
}

void MainWindow::makeCursorActions() {
    actionGroup_ = tr("Cursor");
    connect(addNamed("cursorBack", tr("Back"), keys({"Alt+Left"}), tr("Where the cursor was before")),
            &QAction::triggered, this, [this] { history_->back(); });
    connect(addNamed("cursorForward", tr("Forward"), keys({"Alt+Right"}), tr("Where the cursor was after")),
            &QAction::triggered, this, [this] { history_->forward(); });
    connect(addNamed("previousStep", tr("Previous Step"), keys({"Ctrl+Left"}), tr("Move the cursor")),
            &QAction::triggered, this, [this] { moveCursor(-1, 0); });
    connect(addNamed("nextStep", tr("Next Step"), keys({"Ctrl+Right"}), tr("Move the cursor")), &QAction::triggered,
            this, [this] { moveCursor(1, 0); });
    connect(addNamed("previousLayer", tr("Previous Layer"), keys({"Ctrl+Up"}), tr("Move the cursor")),
            &QAction::triggered, this, [this] { moveCursor(0, -1); });
    connect(addNamed("nextLayer", tr("Next Layer"), keys({"Ctrl+Down"}), tr("Move the cursor")), &QAction::triggered,
            this, [this] { moveCursor(0, 1); });
    filter_ = new FilterBar(*workspace_, this);
    connect(
        addNamed("filter", tr("Go to Filter"), keys({"Ctrl+L"}), tr("Choose the layers, heads and steps that count")),
        &QAction::triggered, this, [this] { filter_->edit(); });
    connect(addNamed("find", tr("Find…"), keys({"Ctrl+F"}),
                     tr("Search the view in front; where it has no search, filter by text")),
            &QAction::triggered, this, &MainWindow::findInView);
    connect(addNamed("focusTokens", tr("Go to Tokens"), keys({"Ctrl+T"}), tr("Keyboard focus to the token strip")),
            &QAction::triggered, this, [this] {
                panels_->dock(Panel::Tokens)->show();
                tokens_->strip()->setFocus();
            });
    connect(addNamed("focusView", tr("Go to View"), keys({"Ctrl+G"}), tr("Keyboard focus to the view in front")),
            &QAction::triggered, this, [this] {
                if (View* view = currentView()) view->setFocus();
            });
    connect(addNamed("focusQueue", tr("Go to Queue"), keys({"Ctrl+Alt+U"}),
                     tr("Keyboard focus to the list of what waits to run")),
            &QAction::triggered, this, [this] {
                showQueue();
                queuePanel_->view()->setFocus();
            });
    connect(addNamed("focusRuns", tr("Go to Runs"), keys({"Ctrl+R"}), tr("Keyboard focus to the list of runs")),
            &QAction::triggered, this, [this] {
                panels_->dock(Panel::Runs)->show();
                runs_->view()->setFocus();
            });
    QAction* linked = addNamed("linkCursor", tr("Link Windows"), keys({"Ctrl+Shift+L"}),
                               tr("One cursor for all windows on the same run"));
    linked->setCheckable(true);
    linked->setChecked(true);
    connect(linked, &QAction::toggled, this, [this](bool on) { link_->setEnabled(on); });
}

void MainWindow::makeHelpActions() {
    actionGroup_ = tr("Help");
    connect(addNamed("palette", tr("Command Palette…"), keys({"Ctrl+Shift+P"}),
                     tr("Find an action, a view, a layer, a setting or spans by a few letters")),
            &QAction::triggered, this, &MainWindow::showPalette);
    connect(addNamed("shortcuts", tr("Keyboard Shortcuts"), keys({"F1", "?"}), tr("Show every shortcut")),
            &QAction::triggered, this, [this] {
                if (help_->isOpen(HelpOverlay::Page::Shortcuts))
                    help_->leave();
                else
                    showShortcuts();
            });
    connect(addNamed("definitions", tr("Definitions"), keys({"Ctrl+F1"}), tr("What the words on the screen mean")),
            &QAction::triggered, this, [this] { help_->open(HelpOverlay::Page::Definitions); });
    connect(addNamed("about", tr("About KVScope"), {}, tr("Version and licence")), &QAction::triggered, this,
            [this] { help_->open(HelpOverlay::Page::About); });
}

void MainWindow::makeMenus() {
    QMenu* file = menuBar()->addMenu(tr("&File"));
    file->addAction(action("open"));
    file->addAction(action("openFolder"));
    recentMenu_ = file->addMenu(tr("Open &Recent"));
    file->addSeparator();
    file->addAction(action("exportView"));
    file->addAction(action("exportReport"));
    file->addAction(action("exportFigure"));
    file->addMenu(new DataExportMenu(
        *workspace_,
        [this]() -> std::optional<ExportRange> {
            for (View* view : area_->all())
                if (const auto* marks = dynamic_cast<const MarksRange*>(view)) return marks->markedRange();
            return std::nullopt;
        },
        centre_, this));
    file->addSeparator();
    for (const char* name : {"newWindow", "closeWindow", "quit"}) file->addAction(action(name));

    QMenu* edit = menuBar()->addMenu(tr("&Edit"));
    for (const char* name : {"copyTable", "copyImage", "copySql", "openSql"}) edit->addAction(action(name));
    edit->addSeparator();
    for (const char* name : {"zoomUndo", "zoomRedo", "zoomReset"}) edit->addAction(action(name));
    edit->addSeparator();
    edit->addAction(action("find"));

    QMenu* view = menuBar()->addMenu(tr("&View"));
    for (const ViewEntry& entry : views()) view->addAction(action((std::string("view_") + entry.id).c_str()));
    view->addSeparator();
    for (QDockWidget* dock : panels_->docks()) view->addAction(dock->toggleViewAction());
    view->addAction(action("viewsOnly"));
    view->addSeparator();
    for (const char* name : {"splitRight", "splitDown", "floatView", "rejoinView"}) view->addAction(action(name));
    view->addAction(action("resetLayout"));
    view->addSeparator();
    view->addAction(action("filter"));
    view->addAction(filter_->toggleViewAction());
    view->addSeparator();
    view->addAction(action("countCold"));
    view->addAction(action("theme"));
    colourMaps_ = new ColourMapMenu(this);
    view->addMenu(colourMaps_);
    connect(colourMaps_, &ColourMapMenu::chosen, this,
            [this](const QString& sequential, const QString& diverging) { setColourMaps(sequential, diverging); });
    connect(colourMaps_, &ColourMapMenu::preview, this, [this](const QString& sequential, const QString& diverging) {
        setColourMaps(sequential, diverging, false);
    });

    QMenu* go = menuBar()->addMenu(tr("&Go"));
    for (const char* name : {"cursorBack", "cursorForward"}) go->addAction(action(name));
    go->addSeparator();
    for (const char* name : {"previousStep", "nextStep", "previousLayer", "nextLayer"}) go->addAction(action(name));
    go->addSeparator();
    for (const char* name : {"previousView", "nextView", "focusView", "focusTokens", "focusQueue", "focusRuns"})
        go->addAction(action(name));
    go->addSeparator();
    go->addAction(action("linkCursor"));

    QMenu* run = menuBar()->addMenu(tr("&Run"));
    run->setToolTipsVisible(true); // why a run cannot be run again
    for (const char* name : {"run", "pause", "step", "stop"}) run->addAction(action(name));
    run->addSeparator();
    for (const char* name : {"queueAdd", "sweep"}) run->addAction(action(name));
    run->addSeparator();
    run->addAction(action("again"));
    run->addAction(action("fork"));
    run->addSeparator();
    run->addAction(action("serve"));
    run->addSeparator();
    run->addAction(action("tune"));
    run->addAction(action("calibrate"));
    run->addAction(action("modelPath"));

    QMenu* help = menuBar()->addMenu(tr("&Help"));
    for (const char* name : {"palette", "shortcuts", "definitions"}) help->addAction(action(name));
    QAction* whatsThis = QWhatsThis::createAction(this); // Shift+F1, then a click on a widget to be explained
    whatsThis->setIconVisibleInMenu(false);              // no other entry has one
    setShortcutGroup(whatsThis, tr("Help"));
    help->addAction(whatsThis);
    help->addSeparator();
    connect(welcome_, &WelcomePage::sampleRequested, this,
            [this](const QString& path, const QString& best) { showWhenOpen(*this, path, best); });
    QMenu* samples = help->addMenu(tr("&Sample Traces"));
    samples->setObjectName(QStringLiteral("sampleTraces"));
    const QStringList titles = WelcomePage::sampleTitles();
    for (qsizetype i = 0; i < titles.size(); ++i)
        connect(samples->addAction(titles[i]), &QAction::triggered, this,
                [this, i] { welcome_->openSample(std::size_t(i)); });
    help->addSeparator();
    help->addAction(action("about"));
}

void MainWindow::makeToolBar() {
    toolBar_ = addToolBar(tr("Session"));
    toolBar_->setObjectName(QStringLiteral("sessionToolBar"));
    toolBar_->setMovable(false);
    toolBar_->setToolButtonStyle(Qt::ToolButtonTextBesideIcon);
    toolBar_->setIconSize(QSize(18, 18));
    toolBar_->setContextMenuPolicy(Qt::PreventContextMenu);
    for (const char* name : {"run", "pause", "step", "stop"}) toolBar_->addAction(action(name));

    // A tool bar shows and hides its widgets through actions. RunStatistics shows and hides itself, so it lies in a
    // holder that is always shown.
    auto* holder = new QWidget;
    auto* holderLayout = new QHBoxLayout(holder);
    holderLayout->setContentsMargins(0, 0, 0, 0);
    auto* ranks = new RankPicker(*workspace_);
    connect(ranks, &RankPicker::allRequested, this, [this] { showView(QStringLiteral("ranks")); });
    holderLayout->addWidget(ranks);
    holderLayout->addWidget(new RunStatistics(*workspace_));
    QAction* numbers = toolBar_->addWidget(holder);
    toolBar_->addWidget(makeSpacer());

    progress_ = new SessionProgress;
    connect(progress_, &SessionProgress::cancelled, this, [this] { controller_->stop(); });
    toolBar_->addWidget(progress_);
    progress_->takeRoomOf(numbers);

    addToolBarBreak();
    addToolBar(filter_);

    for (const char* name : {"exportView", "exportReport", "theme", "shortcuts"}) {
        auto* button = new QToolButton;
        button->setDefaultAction(action(name));
        button->setToolButtonStyle(Qt::ToolButtonIconOnly);
        toolBar_->addWidget(button);
    }
}

void MainWindow::updateActions() {
    using State = SessionController::State;
    const State state = controller_->state();
    const bool decoding = state == State::Decoding || state == State::Paused;
    form_->setRunning(session_.active); // before form_->problem(), which it may change
    const QString problem = form_->problem();
    action("run")->setEnabled(problem.isEmpty() && !session_.active);
    action("run")->setToolTip(problem.isEmpty() ? tr("Run the session (F5)") : asWritten(problem));
    welcome_->setRunProblem(problem);
    for (const char* name : {"queueAdd", "sweep"}) action(name)->setEnabled(form_->requestProblem().isEmpty());
    action("pause")->setEnabled(session_.active && (decoding || state == State::Prefill));
    action("pause")->setText(state == State::Paused ? tr("Resume") : tr("Pause"));
    action("pause")->setIcon(makeIcon(state == State::Paused ? Icon::Run : Icon::Pause, Theme::current()));
    action("step")->setEnabled(session_.active && decoding);
    action("stop")->setEnabled(session_.active || state == State::Loading);
    progress_->setWorking(state == State::Loading || state == State::Prefill);
    if (state != State::Prefill) promptProgress_->end();
    const bool open = workspace_->current() != nullptr;
    for (const char* name : {"exportReport", "exportFigure", "previousStep", "nextStep", "previousLayer", "nextLayer"})
        action(name)->setEnabled(open);
    for (const char* name :
         {"exportView", "copyTable", "copyImage", "copySql", "openSql", "zoomUndo", "zoomRedo", "zoomReset"})
        action(name)->setEnabled(open || currentView() != nullptr);
    updatePlaceActions();
    updateAgain();
}

void MainWindow::updateIcons() {
    const Theme& theme = Theme::current();
    action("run")->setIcon(makeIcon(Icon::Run, theme.ok, theme.mutedText));
    action("step")->setIcon(makeIcon(Icon::Step, theme));
    action("stop")->setIcon(makeIcon(Icon::Stop, theme));
    action("exportView")->setIcon(makeIcon(Icon::Export, theme));
    action("exportReport")->setIcon(makeIcon(Icon::Report, theme));
    action("open")->setIcon(makeIcon(Icon::Open, theme));
    action("theme")->setIcon(makeIcon(theme_ == QLatin1String("dark") ? Icon::Sun : Icon::Moon, theme));
    action("shortcuts")->setIcon(makeIcon(Icon::Help, theme));
    action("cursorBack")->setIcon(makeIcon(Icon::Back, theme));
    action("cursorForward")->setIcon(makeIcon(Icon::Forward, theme));
    for (const char* name : {"open", "exportView", "exportReport", "theme", "shortcuts", "run", "pause", "step", "stop",
                             "cursorBack", "cursorForward"})
        action(name)->setIconVisibleInMenu(false);
}

/// Opens the list of shortcuts of all views. The views that were not shown yet are made first, because their shortcuts
/// are found in their actions and widgets.
void MainWindow::showShortcuts() {
    area_->makeAll();
    help_->open(HelpOverlay::Page::Shortcuts);
}

void MainWindow::updateRecent() {
    recentMenu_->clear();
    recentMenu_->setToolTipsVisible(true); // the tooltip says in which folder the file is
    int number = 0;
    for (const QString& path : saved_.recentFiles) {
        const QString name = QFileInfo(path).fileName().replace(QLatin1Char('&'), QLatin1String("&&"));
        QAction* recent = recentMenu_->addAction(QStringLiteral("&%1 %2").arg(++number % 10).arg(name), this,
                                                 [this, path] { openFiles({path}); });
        recent->setToolTip(asWritten(path));
        recent->setEnabled(QFileInfo::exists(path));
    }
    recentMenu_->addSeparator();
    recentMenu_->addAction(tr("Clear the List"), this, [this] {
        saved_.recentFiles.clear();
        saveSession();
        updateRecent();
    });
    recentMenu_->setEnabled(!saved_.recentFiles.isEmpty());
    welcome_->setRecent(saved_.recentFiles);
}

void MainWindow::moveCursor(int steps, int layers) {
    Cursor cursor = workspace_->cursor();
    cursor.step = std::max(0, cursor.step + steps);
    cursor.layer = std::max(0, cursor.layer + layers);
    workspace_->setCursor(cursor);
}

} // namespace kvscope::ui
