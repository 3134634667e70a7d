// Menus, tool bar and shortcuts of the main window.
#include "ui/figures/figure_dialog.h"
#include "ui/icons.h"
#include "ui/main_window.h"
#include "ui/session_controller.h"
#include "ui/theme.h"
#include "ui/views/view.h"
#include "ui/widgets/filter_bar.h"
#include "ui/widgets/help_overlay.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/small_widgets.h"
#include "ui/widgets/token_strip.h"
#include "ui/widgets/welcome_page.h"

#include <QApplication>
#include <QDockWidget>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QMenu>
#include <QMenuBar>
#include <QProgressBar>
#include <QTabWidget>
#include <QToolBar>
#include <QToolButton>
#include <QVBoxLayout>
#include <QWhatsThis>

namespace kvscope::ui {
namespace {

QWidget* makeStatistic(QLabel*& value, const QString& caption, const QString& tip) {
    auto* box = new QWidget;
    value = new QLabel(QStringLiteral("–"));
    QFont font = value->font();
    font.setWeight(QFont::DemiBold);
    value->setFont(font);
    value->setMinimumWidth(QFontMetrics(font).horizontalAdvance(QStringLiteral("100.0 %")));
    value->setAlignment(Qt::AlignRight | Qt::AlignVCenter);
    auto* layout = new QHBoxLayout(box);
    layout->setContentsMargins(8, 0, 8, 0);
    layout->setSpacing(5);
    layout->addWidget(value);
    layout->addWidget(new MutedLabel(caption));
    box->setToolTip(tip);
    return box;
}

QWidget* makeSpacer() {
    auto* spacer = new QWidget;
    spacer->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Preferred);
    return spacer;
}

} // namespace

QAction* MainWindow::addNamed(const char* name, const QString& text, const QList<QKeySequence>& keys,
                              const QString& tip) {
    auto* added = new QAction(text, this);
    added->setObjectName(QLatin1String(name));
    added->setShortcuts(keys);
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

void MainWindow::makeActions() {
    const auto add = [this](const char* name, const QString& text, const QList<QKeySequence>& keys, const QString& tip,
                            auto&& slot) { connect(addNamed(name, text, keys, tip), &QAction::triggered, this, slot); };
    const auto key = [](const char* text) { return QList<QKeySequence>{QKeySequence(QLatin1String(text))}; };
    add("run", tr("Run"), key("F5"), tr("Run the session"), [this] { form_->run(); });
    add("pause", tr("Pause"), key("F6"), tr("Pause or resume"), [this] {
        if (controller_->state() == SessionController::State::Paused)
            controller_->resume();
        else
            controller_->pause();
    });
    add("step", tr("Step"), key("F10"), tr("One decode step"), [this] { controller_->stepOnce(); });
    add("stop", tr("Stop"), key("Shift+F5"), tr("Stop the session"), [this] { controller_->stop(); });

    add("open", tr("Open Trace…"), key("Ctrl+O"), tr("Open a recorded trace"), [this] { chooseFiles(); });
    add("exportView", tr("Export View…"), key("Ctrl+E"), tr("Save the view in front as PNG, SVG, PDF or CSV"),
        [this] { chooseViewExport(); });
    add("exportReport", tr("Export Report…"), key("Ctrl+Shift+E"), tr("Save a report of the shown run as HTML or PDF"),
        [this] { chooseReportExport(); });
    add("exportFigure", tr("Paper Figure…"), key("Ctrl+Alt+E"),
        tr("Redraw a figure of the papers from the open traces, for print"), [this] {
            QStringList files;
            for (const OpenRun& run : workspace_->runs())
                if (!files.contains(run.key.path)) files << run.key.path;
            (new FigureDialog(files, this))->open();
        });
    add("quit", tr("Quit"), key("Ctrl+Q"), tr("Quit"), [this] { close(); });

    const auto onView = [this](void (View::*method)()) {
        return [this, method] {
            if (View* view = currentView()) (view->*method)();
        };
    };
    add("zoomUndo", tr("Undo Zoom"), key("Ctrl+Z"), tr("Back to the zoom before"), onView(&View::undoZoom));
    add("zoomRedo", tr("Redo Zoom"),
        {QKeySequence(QStringLiteral("Ctrl+Shift+Z")), QKeySequence(QStringLiteral("Ctrl+Y"))},
        tr("Forward to the zoom after"), onView(&View::redoZoom));
    add("zoomReset", tr("Reset Zoom"), key("Ctrl+0"), tr("Show everything"), onView(&View::resetZoom));
    add("theme", tr("Dark Theme"), key("Ctrl+Shift+D"), tr("Switch between light and dark"),
        [this] { setTheme(theme_ == QLatin1String("dark") ? QStringLiteral("light") : QStringLiteral("dark")); });
    action("theme")->setCheckable(true);

    add("previousStep", tr("Previous Step"), key("Alt+Left"), tr("Move the cursor"), [this] { moveCursor(-1, 0); });
    add("nextStep", tr("Next Step"), key("Alt+Right"), tr("Move the cursor"), [this] { moveCursor(1, 0); });
    add("previousLayer", tr("Previous Layer"), key("Alt+Up"), tr("Move the cursor"), [this] { moveCursor(0, -1); });
    add("nextLayer", tr("Next Layer"), key("Alt+Down"), tr("Move the cursor"), [this] { moveCursor(0, 1); });
    filter_ = new FilterBar(*workspace_, this);
    add("filter", tr("Filter"), key("Ctrl+L"), tr("Choose the layers, heads and steps that count"),
        [this] { filter_->edit(); });
    add("focusTokens", tr("Go to Tokens"), key("Ctrl+T"), tr("Keyboard focus to the token strip"), [this] {
        tokensDock_->show();
        tokens_->strip()->setFocus();
    });

    add("shortcuts", tr("Keyboard Shortcuts"), key("F1"), tr("Show every shortcut"),
        [this] { help_->open(HelpOverlay::Page::Shortcuts); });
    add("definitions", tr("Definitions"), key("Ctrl+F1"), tr("What the words on the screen mean"),
        [this] { help_->open(HelpOverlay::Page::Definitions); });
    add("about", tr("About KVScope"), {}, tr("Version and licence"), [this] { help_->open(HelpOverlay::Page::About); });

    for (std::size_t tab = 0; tab < views().size(); ++tab) {
        const ViewEntry& entry = views()[tab];
        QAction* shown = addNamed(entry.id, tr(entry.title), key(entry.shortcut), tr(entry.help));
        shown->setObjectName(QStringLiteral("view_") + QLatin1String(entry.id));
        connect(shown, &QAction::triggered, this, [this, tab] {
            tabs_->setCurrentIndex(int(tab));
            showCentre();
        });
    }
}

void MainWindow::makeMenus() {
    QMenu* file = menuBar()->addMenu(tr("&File"));
    file->addAction(action("open"));
    recentMenu_ = file->addMenu(tr("Open &Recent"));
    file->addSeparator();
    file->addAction(action("exportView"));
    file->addAction(action("exportReport"));
    file->addAction(action("exportFigure"));
    file->addSeparator();
    file->addAction(action("quit"));

    QMenu* view = menuBar()->addMenu(tr("&View"));
    for (const ViewEntry& entry : views()) view->addAction(action((std::string("view_") + entry.id).c_str()));
    view->addSeparator();
    for (QDockWidget* dock : {sessionDock_, runsDock_, tokensDock_, inspectorDock_})
        view->addAction(dock->toggleViewAction());
    view->addSeparator();
    for (const char* name : {"zoomUndo", "zoomRedo", "zoomReset"}) view->addAction(action(name));
    view->addSeparator();
    for (const char* name : {"previousStep", "nextStep", "previousLayer", "nextLayer", "focusTokens"})
        view->addAction(action(name));
    view->addSeparator();
    view->addAction(action("filter"));
    view->addAction(filter_->toggleViewAction());
    view->addSeparator();
    view->addAction(action("theme"));

    QMenu* run = menuBar()->addMenu(tr("&Run"));
    for (const char* name : {"run", "pause", "step", "stop"}) run->addAction(action(name));

    QMenu* help = menuBar()->addMenu(tr("&Help"));
    for (const char* name : {"shortcuts", "definitions"}) help->addAction(action(name));
    help->addAction(QWhatsThis::createAction(this)); // Shift+F1, then a click on what is in question
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

    statistics_ = new QWidget;
    auto* numbers = new QHBoxLayout(statistics_);
    numbers->setContentsMargins(4, 0, 4, 0);
    numbers->setSpacing(2);
    numbers->addWidget(makeStatistic(
        rate_, tr("tokens/s"), tr("Generated tokens of all sequences per second of decode wall time (measured)")));
    numbers->addWidget(
        makeStatistic(hitRate_, tr("hit rate"), tr("Hits / (hits + misses) of the selected blocks so far")));
    numbers->addWidget(makeStatistic(locality_, tr("locality"), tr("Mean γ so far, where it is defined")));
    // A widget on a tool bar is shown and hidden through its action; this one holds it instead.
    auto* holder = new QWidget;
    auto* holderLayout = new QHBoxLayout(holder);
    holderLayout->setContentsMargins(0, 0, 0, 0);
    holderLayout->addWidget(statistics_);
    statistics_->hide();
    toolBar_->addWidget(holder);
    toolBar_->addWidget(makeSpacer());

    progress_ = new QWidget;
    auto* progressRow = new QHBoxLayout(progress_);
    progressRow->setContentsMargins(4, 0, 4, 0);
    progressText_ = new MutedLabel;
    progressBar_ = new QProgressBar;
    progressBar_->setObjectName(QStringLiteral("progress"));
    progressBar_->setRange(0, 1000);
    progressBar_->setTextVisible(false);
    progressBar_->setFixedSize(180, 6);
    auto* cancel = new QToolButton;
    cancel->setObjectName(QStringLiteral("cancel"));
    cancel->setText(tr("Cancel"));
    connect(cancel, &QToolButton::clicked, this, [this] { controller_->stop(); });
    progressRow->addWidget(progressText_);
    progressRow->addWidget(progressBar_);
    progressRow->addWidget(cancel);
    auto* progressHolder = new QWidget;
    auto* progressLayout = new QHBoxLayout(progressHolder);
    progressLayout->setContentsMargins(0, 0, 0, 0);
    progressLayout->addWidget(progress_);
    progress_->hide();
    toolBar_->addWidget(progressHolder);

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
    form_->setRunning(sessionActive_); // first: it may change the problem
    const QString problem = form_->problem();
    action("run")->setEnabled(problem.isEmpty() && !sessionActive_);
    action("run")->setToolTip(problem.isEmpty() ? tr("Run the session (F5)") : problem);
    welcome_->setRunProblem(problem);
    action("pause")->setEnabled(sessionActive_ && (decoding || state == State::Prefill));
    action("pause")->setText(state == State::Paused ? tr("Resume") : tr("Pause"));
    action("pause")->setIcon(makeIcon(state == State::Paused ? Icon::Run : Icon::Pause, Theme::current()));
    action("step")->setEnabled(sessionActive_ && decoding);
    action("stop")->setEnabled(sessionActive_ || state == State::Loading);
    const bool working = state == State::Loading || state == State::Prefill;
    if (working && progress_->isHidden()) progressBar_->setValue(0);
    progress_->setVisible(working);
    const bool open = workspace_->current() != nullptr;
    for (const char* name : {"exportReport", "exportFigure", "previousStep", "nextStep", "previousLayer", "nextLayer"})
        action(name)->setEnabled(open);
    for (const char* name : {"exportView", "zoomUndo", "zoomRedo", "zoomReset"})
        action(name)->setEnabled(open || currentView() != nullptr);
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
    for (const char* name :
         {"open", "exportView", "exportReport", "theme", "shortcuts", "run", "pause", "step", "stop"})
        action(name)->setIconVisibleInMenu(false);
}

void MainWindow::setTheme(const QString& id) {
    const Theme& theme = Theme::byId(id);
    theme_ = theme.id;
    Theme::apply(*qApp, theme);
    for (View* view : views_)
        if (view) view->applyTheme(theme);
    action("theme")->setChecked(theme_ == QLatin1String("dark"));
    updateIcons();
    updateActions();
    update();
}

void MainWindow::updateRecent() {
    recentMenu_->clear();
    for (const QString& path : saved_.recentFiles) {
        QAction* recent = recentMenu_->addAction(QFileInfo(path).fileName(), this, [this, path] { openFiles({path}); });
        recent->setToolTip(path);
    }
    recentMenu_->setEnabled(!saved_.recentFiles.isEmpty());
    welcome_->setRecent(saved_.recentFiles);
}

void MainWindow::moveCursor(int steps, int layers) {
    Cursor cursor = workspace_->cursor();
    cursor.step = std::max(0, cursor.step + steps);
    cursor.layer = std::max(0, cursor.layer + layers);
    workspace_->setCursor(cursor);
}

void MainWindow::describeShortcuts() {
    std::vector<ShortcutText> list;
    const auto add = [&](const QString& group, const QAction* shown) {
        if (shown->shortcut().isEmpty()) return;
        list.push_back(
            {group, shown->text().remove(QStringLiteral("…")), shown->shortcut().toString(QKeySequence::NativeText)});
    };
    for (const char* name : {"run", "pause", "step", "stop"}) add(tr("Session"), action(name));
    for (const ViewEntry& entry : views()) add(tr("Views"), action((std::string("view_") + entry.id).c_str()));
    for (const char* name : {"zoomUndo", "zoomRedo", "zoomReset", "theme"}) add(tr("Views"), action(name));
    for (const char* name : {"previousStep", "nextStep", "previousLayer", "nextLayer", "focusTokens", "filter"})
        add(tr("Cursor"), action(name));
    list.push_back({tr("Token strip"), tr("Step back, forward, a line up, a line down"), tr("← → ↑ ↓")});
    list.push_back({tr("Token strip"), tr("First and last step"), tr("Home, End")});
    list.push_back({tr("Token strip"), tr("Choose a range of steps"), tr("Shift+arrows, drag")});
    list.push_back({tr("Token strip"), tr("Clear the range"), tr("Esc")});
    list.push_back({tr("Runs"), tr("Show the run"), tr("Enter")});
    list.push_back({tr("Runs"), tr("Compare with the shown run"), tr("B")});
    list.push_back({tr("Runs"), tr("Close the run"), tr("Del")});
    for (const char* name : {"open", "exportView", "exportReport", "exportFigure", "quit"})
        add(tr("Files"), action(name));
    for (const char* name : {"shortcuts", "definitions"}) add(tr("Help"), action(name));
    list.push_back({tr("Help"), tr("Explain what is clicked next"), tr("Shift+F1")});
    help_->setShortcuts(std::move(list));
}

} // namespace kvscope::ui
