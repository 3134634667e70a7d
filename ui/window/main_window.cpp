#include "ui/window/main_window.h"

#include "core/model/model.h"
#include "profiler/import/import.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/trace_head.h"
#include "ui/frame/cursor_history.h"
#include "ui/frame/cursor_link.h"
#include "ui/frame/remembers.h"
#include "ui/frame/run_names.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/session/run_again.h"
#include "ui/session/run_queue.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/calibrate_dialog.h"
#include "ui/widgets/help_overlay.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/prompt_progress.h"
#include "ui/widgets/queue_panel.h"
#include "ui/widgets/recovery_bar.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/serve_dialog.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/token_strip.h"
#include "ui/widgets/tune_dialog.h"
#include "ui/widgets/welcome_page.h"
#include "ui/window/crash_recovery.h"
#include "ui/window/panels.h"
#include "ui/window/screen_room.h"
#include "ui/window/session_progress.h"
#include "ui/window/shortcut_list.h"
#include "ui/window/status_line.h"
#include "ui/window/view_area.h"
#include "ui/window/window_server.h"

#include <QApplication>
#include <QCloseEvent>
#include <QDockWidget>
#include <QElapsedTimer>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QMenu>
#include <QMessageBox>
#include <QProcess>
#include <QPushButton>
#include <QScrollArea>
#include <QStackedWidget>
#include <QTabWidget>
#include <QTimer>
#include <QToolBar>
#include <QToolButton>
#include <QVBoxLayout>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace kvscope::ui {

namespace {

// Size of a new window, in logical pixels, where the screen has room for it: shows everything at once.
constexpr QSize kRoomy(1600, 1000);
constexpr int kTogetherMs = 2000; // errors within this time are shown together, as of files opened together

bool isTheOnly(const MainWindow& window) {
    const QWidgetList all = QApplication::topLevelWidgets();
    return std::none_of(all.begin(), all.end(), [&](const QWidget* other) {
        return other != &window && qobject_cast<const MainWindow*>(other) != nullptr;
    });
}

/// Whether the content of the file shows that it is neither a trace nor a timeline of another tool. False for a trace
/// that is damaged, locked or of a newer version, and for a file whose import failed, because these may open later.
bool isNoTrace(const QString& path) {
    const QFileInfo info(path);
    return info.isFile() && info.isReadable() && !isTraceFile(path.toStdString()) &&
           !findImportFormat(path.toStdString());
}

} // namespace

MainWindow::MainWindow(Settings settings, QWidget* parent)
    : QMainWindow(parent), settings_(std::move(settings)), saved_(settings_.load()),
      workspace_(std::make_unique<Workspace>()), controller_(std::make_unique<SessionController>(*workspace_, this)),
      reportProgram_(QCoreApplication::applicationFilePath()) {
    // The theme is applied before any widget is made. Otherwise widgets made before would keep the size of the system's
    // font, beside widgets made later with that of the theme.
    if (isTheOnly(*this)) {
        Theme::apply(*qApp, Theme::byId(saved_.theme));
        setColdSteps(saved_.countCold ? ColdSteps::Counted : ColdSteps::LeftOut); // the setting holds for all windows
    }
    setWindowTitle(QStringLiteral("KVScope"));
    setAcceptDrops(true);
    setDockNestingEnabled(true);
    history_ = new CursorHistory(*workspace_, this);
    link_ = new CursorLink(*workspace_, this);
    queue_ = new RunQueue(*controller_, this);
    makeCentre();
    makeDocks();
    makeActions();
    panels_->setFilter(*filter_, *action("filter"));
    makeMenus();
    makeToolBar();
    makeNavigation();
    makeStatusBar();
    help_ = new HelpOverlay(this, [this] { return shortcutsOf(*this); });
    connectSession();
    connectQueue();
    connectServer();
    restore();
    keepSaved();
    qApp->installEventFilter(this); // for the back and forward buttons of the mouse over any widget
}

MainWindow::~MainWindow() {
    qApp->removeEventFilter(this);
    // The window is destroyed properly, so no crash is to be reported at the next start.
    crash_->endJournal();
    controller_->disconnect();
    workspace_->disconnect(this);
    delete findChild<ServeDialog*>(); // the dialog uses the server
    delete served_;                   // stops the server and waits for its end
    for (QProcess* report : findChildren<QProcess*>())
        report->disconnect(this); // a report's process ends with its window
    delete history_;
    delete link_;
    controller_.reset(); // waits for the worker, which uses the workspace
    delete centre_;      // destroys the views before the workspace that they use
    for (QDockWidget* dock : panels_->docks()) delete dock;
}

void MainWindow::makeCentre() {
    auto* centre = new QWidget;
    auto* column = new QVBoxLayout(centre);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    banner_ = new InlineMessage;
    banner_->setObjectName(QStringLiteral("banner"));
    centre_ = new QStackedWidget;
    auto* recovery = new RecoveryBar;
    crash_ = new CrashRecovery(*workspace_, *recovery, this);
    column->addWidget(recovery);
    column->addWidget(banner_);
    column->addWidget(centre_, 1);
    welcome_ = new WelcomePage;
    area_ = new ViewArea(*workspace_);
    area_->tabs().setCornerWidget(makeViewList()); // in a narrow window some tabs are hidden
    auto* start = makePageScroll();
    start->setWidget(welcome_);
    centre_->addWidget(start);
    centre_->addWidget(area_);
    promptProgress_ = new PromptProgress(centre_);
    setCentralWidget(centre);
    connect(area_, &ViewArea::made, this, [this](int index) {
        if (auto* remembers = dynamic_cast<Remembers*>(area_->view(index)))
            remembers->recall(saved_.views.value(area_->view(index)->id()).toMap());
    });
    connect(area_, &ViewArea::frontChanged, this, &MainWindow::updateActions);
    connect(area_, &ViewArea::rearranged, this, &MainWindow::updatePlaceActions);
    const auto showTitle = [this] {
        const OpenRun* run = workspace_->current();
        setWindowTitle(run ? tr("%1 – KVScope").arg(runName(*run, workspace_->runs())) : QStringLiteral("KVScope"));
    };
    connect(workspace_.get(), &Workspace::runsChanged, this, [this, showTitle] {
        showCentre();
        showTitle(); // the name of a live run is known when its row was read
    });
    connect(workspace_.get(), &Workspace::currentChanged, this, [this, showTitle] {
        showTitle();
        updateActions();
    });
}

void MainWindow::makeDocks() {
    form_ = new SessionForm;
    runs_ = new RunList(*workspace_);
    queuePanel_ = new QueuePanel(*queue_, *workspace_);
    tokens_ = new TokenPanel(*workspace_);
    inspector_ = new Inspector(*workspace_);
    panels_ = new Panels(*this, *area_, *workspace_);
    panels_->add(Panel::Session, tr("Session"), "sessionDock", form_);
    panels_->add(Panel::Runs, tr("Runs"), "runsDock", runs_);
    panels_->add(Panel::Queue, tr("Queue"), "queueDock", queuePanel_, queuePanel_->heading());
    panels_->add(Panel::Tokens, tr("Tokens"), "tokensDock", tokens_, tokens_->heading());
    panels_->add(Panel::Inspector, tr("Inspector"), "inspectorDock", inspector_);
    connect(area_, &ViewArea::rearranged, panels_, &Panels::askForRoom);
    connect(panels_, &Panels::viewsOnlyChanged, this, [this](bool on) { action("viewsOnly")->setChecked(on); });
    connect(panels_, &Panels::viewWanted, this, [this] {
        if (View* view = currentView()) view->setFocus();
    });
    connect(runs_, &RunList::openRequested, this, &MainWindow::chooseFiles);
    connect(runs_, &RunList::againRequested, this, &MainWindow::runAgain);
    connect(runs_, &RunList::violationsRequested, this, &MainWindow::showViolations);
    connect(inspector_, &Inspector::definitionRequested, this,
            [this](const QString& id) { help_->open(HelpOverlay::Page::Definitions, id); });
    connect(welcome_, &WelcomePage::runRequested, form_, &SessionForm::run);
    connect(welcome_, &WelcomePage::openRequested, this, &MainWindow::chooseFiles);
    connect(welcome_, &WelcomePage::fileRequested, this, [this](const QString& path) { openFiles({path}); });
    connect(welcome_, &WelcomePage::failed, this, [this](const QString& sentence) { showMessage(sentence, true); });
    connect(welcome_, &WelcomePage::tracesWanted, this, &MainWindow::listTraces);
    connect(welcome_, &WelcomePage::shortcutsRequested, this, &MainWindow::showShortcuts);
    connect(welcome_, &WelcomePage::definitionsRequested, this,
            [this] { help_->open(HelpOverlay::Page::Definitions); });
}

void MainWindow::makeStatusBar() {
    status_ = new StatusLine(this);
    setStatusBar(status_);
    connect(status_, &StatusLine::brokenClicked, this, [this] {
        if (const OpenRun* run = workspace_->current()) showViolations(run->key);
    });
    connect(workspace_.get(), &Workspace::busyChanged, status_, &StatusLine::setBusy);
    connect(workspace_.get(), &Workspace::failed, this, [this](const QString& sentence) {
        banner_->show(InlineMessage::Kind::Error, sentence); // the message stands above the view whose read failed
    });
    connect(workspace_.get(), &Workspace::currentChanged, banner_, &InlineMessage::clear);
    struct Told {
        QStringList sentences;
        QElapsedTimer since;
    };
    connect(workspace_.get(), &Workspace::openFailed, this,
            [this, told = std::make_shared<Told>()](const QString& path, const QString& sentence) {
                if (isNoTrace(path) && saved_.recentFiles.removeAll(path) > 0) updateRecent();
                if (told->since.isValid() && told->since.elapsed() > kTogetherMs) told->sentences.clear();
                told->since.start();
                if (!told->sentences.contains(sentence)) told->sentences << sentence;
                // The sentences about all files that were opened together.
                const QString all = told->sentences.join(QLatin1Char('\n'));
                runs_->showProblem(all);
                status_->say(told->sentences.size() == 1 ? sentence
                                                         : tr("%1 files could not be opened: %2")
                                                               .arg(told->sentences.size())
                                                               .arg(told->sentences.join(QStringLiteral("; "))),
                             true, StatusLine::About::OpenedFiles);
                status_->explain(all);
            });
}

void MainWindow::showMessage(const QString& text, bool isError) { status_->say(text, isError); }

void MainWindow::connectSession() {
    SessionController* session = controller_.get();
    connect(form_, &SessionForm::modelRequested, this, [this](const QString& name) {
        status_->forget(StatusLine::About::Model); // the message was about another model
        if (repeat_.recorded && repeat_.recorded->request.model != name)
            repeat_.recorded.reset(); // the person chose another model meanwhile
        controller_->loadModel(name);
    });
    connect(form_, &SessionForm::problemChanged, this, &MainWindow::updateActions);
    connect(form_, &SessionForm::runRequested, this, [this](SessionRequest request) {
        request.options.recordModelPath = saved_.modelPath;
        session_.active = true;
        showMessage({});
        controller_->start(request);
        updateActions();
    });
    connect(session, &SessionController::modelLoaded, this, [this](const QString& name) {
        if (!controller_->model()) return;
        form_->setModel(name, controller_->model());
        if (auto* dialog = findChild<CalibrateDialog*>()) dialog->setModel(name, controller_->model());
        if (auto* dialog = findChild<ServeDialog*>()) dialog->setModel(name, controller_->model());
        if (auto* dialog = findChild<TuneDialog*>()) dialog->setModel(name, controller_->model());
        if (repeat_.recorded && repeat_.recorded->request.model == name) fillFormAgain();
    });
    connect(session, &SessionController::stateChanged, this, &MainWindow::updateActions);
    connect(session, &SessionController::progress, this, [this](double fraction, const QString& what) {
        progress_->advance(fraction, what);
        if (controller_->state() != SessionController::State::Prefill) return;
        const OpenRun* run = workspace_->current();
        const bool live = run && run->live; // the session's own run is shown
        promptProgress_->showReading(fraction, live ? run->row.layers : 0, live ? run->row.sequences : 0);
    });
    const auto shownAtEnd = std::make_shared<std::optional<RunKey>>();
    connect(session, &SessionController::finished, this, [this, shownAtEnd](bool completed) {
        session_.active = session_.queued = false;
        session_.forked.reset();
        status_->say(completed ? tr("The session finished.") : tr("The session was stopped."), false,
                     StatusLine::About::Session);
        const OpenRun* run = workspace_->current();
        *shownAtEnd = run != nullptr ? std::optional<RunKey>(run->key) : std::nullopt;
        updateActions();
    });
    connect(session, &SessionController::remark, this, [this](const QString& sentence) { showMessage(sentence); });
    connect(workspace_.get(), &Workspace::currentChanged, this, &MainWindow::compareFork);
    connect(workspace_.get(), &Workspace::currentChanged, this, [this, shownAtEnd] {
        const OpenRun* run = workspace_->current();
        if (run == nullptr || !(std::optional<RunKey>(run->key) == *shownAtEnd))
            status_->forget(StatusLine::About::Session); // below another run it would be about that one
    });
    connect(session, &SessionController::failed, this, [this](const QString& sentence) {
        repeat_.recorded.reset();
        session_.forked.reset();
        const bool queued = std::exchange(session_.queued, false);
        const bool ofModel = !std::exchange(session_.active, false);
        if (ofModel)
            form_->setModelProblem(sentence);
        else if (!queued) // the queue says it beside the run
            form_->setRunProblem(sentence);
        status_->say(sentence, true, ofModel ? StatusLine::About::Model : StatusLine::About::Other);
        updateActions();
    });
}

void MainWindow::restore() {
    restoreLook();
    form_->setValues(saved_.form);
    showView(saved_.view);
    area_->restore(saved_.places);
    updateRecent();
    const QSize room = roomFor(*this);
    resize(kRoomy.boundedTo(room));
    layout()->activate(); // gives the docks their sizes
    panels_->arrange(size());
    panels_->setDefault();
    if (!saved_.geometry.isEmpty()) restoreGeometry(saved_.geometry);
    // The saved window may be larger than this screen or lie partly outside of it.
    resize(size().boundedTo(room));
    moveOntoScreen(*this);
    if (!saved_.panels.docks.isEmpty()) panels_->restore(saved_.panels);
    updateActions();
    form_->setFocus();
}

void MainWindow::resizeEvent(QResizeEvent* event) {
    QMainWindow::resizeEvent(event);
    if (panels_ != nullptr) panels_->askForRoom();
}

void MainWindow::paintEvent(QPaintEvent* event) {
    QMainWindow::paintEvent(event);
    if (painted_) return;
    painted_ = true;
    QTimer::singleShot(0, this, &MainWindow::afterFirstPaint); // when the first picture is on the screen
}

void MainWindow::afterFirstPaint() {
    const QStringList offered = isTheOnly(*this) ? crash_->findLeftBehind() : QStringList();
    for (const QString& path : saved_.openFiles)
        if (QFileInfo::exists(path) && !offered.contains(path)) workspace_->open(path);
    emit firstPainted(); // files that are opened in answer are shown in front of those of the last time
    // Loads the model that the form names, unless another window has given its model to this one (continueFrom).
    if (controller_->state() == SessionController::State::Idle && !controller_->model())
        controller_->loadModel(form_->modelName());
}

QString MainWindow::saveSession() {
    if (ended_) return {};
    collectSession();
    return writeSettings();
}

/// Says once that the settings cannot be written, and again after they could.
QString MainWindow::writeSettings() {
    const QString problem = settings_.save(saved_);
    if (problem.isEmpty()) saving_.stored = saved_; // else the next turn tries again
    const bool told = std::exchange(saving_.problemTold, !problem.isEmpty());
    if (problem.isEmpty() || told) return {};
    showMessage(problem, true);
    return problem;
}

void MainWindow::collectSession() {
    saved_.geometry = saveGeometry();
    saved_.panels = panels_->layout();
    saved_.theme = theme_;
    saved_.view = area_->isChosen() ? QLatin1String(views()[std::size_t(area_->inTabs())].id) : QString();
    saved_.places = area_->places();
    saved_.form = form_->values();
    if (const auto* dialog = findChild<ServeDialog*>()) saved_.server = dialog->values();
    for (const View* view : area_->all())
        if (const auto* remembers = dynamic_cast<const Remembers*>(view))
            saved_.views[view->id()] = remembers->remembered();
    saved_.openFiles.clear();
    for (const OpenRun& run : workspace_->runs())
        if (!saved_.openFiles.contains(run.key.path)) saved_.openFiles << run.key.path;
    // Keeps the files that another window has opened in the meantime.
    for (const QString& file : settings_.load().recentFiles)
        if (!saved_.recentFiles.contains(file) && saved_.recentFiles.size() < 10) saved_.recentFiles << file;
}

void MainWindow::closeEvent(QCloseEvent* event) {
    if (!ended_ && (!served_->askToStop() || !askToClose())) return event->ignore();
    served_->stopAndWait();
    if (const QString problem = saveSession(); !problem.isEmpty()) { // the window's own line goes with the window
        QMessageBox box(QMessageBox::Warning, tr("Settings not saved"), {}, QMessageBox::Ok, this);
        box.setTextFormat(Qt::PlainText);
        box.setText(problem);
        box.exec();
    }
    crash_->endJournal();
    ended_ = true;
    area_->disappear(); // the windows of its views close with it
    event->accept();
}

} // namespace kvscope::ui
