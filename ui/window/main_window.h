// A window of the desktop: session form and runs on the left, views in the centre, tokens below, inspector on the
// right. Several may be open; those on the same run share one cursor while they are linked.
#pragma once

#include "ui/frame/workspace.h"
#include "ui/widgets/trace_facts.h"
#include "ui/window/session_journal.h"
#include "ui/window/settings.h"

#include <QMainWindow>
#include <QTimer>

#include <memory>
#include <vector>

class QDockWidget;
class QLabel;
class QProgressBar;
class QStackedWidget;
class QTabWidget;
class QToolBar;
class QToolButton;

namespace kvscope::ui {

class ColourMapMenu;
class CursorHistory;
class CursorLink;
class FilterBar;
class HelpOverlay;
class InlineMessage;
class Inspector;
class RecoveryBar;
class RunList;
class SessionController;
class SessionForm;
class TokenPanel;
class View;
class WelcomePage;
struct RecordedSession;

class MainWindow final : public QMainWindow {
    Q_OBJECT
public:
    explicit MainWindow(Settings settings, QWidget* parent = nullptr);
    ~MainWindow() override;

    void openFiles(const QStringList& paths);
    /// Opens a trace and runs its first run again, as Run > Run Again and then Run. Where that cannot be, the window
    /// says why.
    void runAgainWhenOpen(const QString& path);
    void setTheme(const QString& id); // "light" or "dark"; of all windows
    /// Ids of ui/colour_maps.h, for all windows. Remembered unless it is only tried.
    void setColourMaps(const QString& sequential, const QString& diverging, bool remember = true);
    /// Another window on the same traces, at the same place.
    MainWindow* newWindow();
    /// The view in front; null while the welcome page is shown.
    View* currentView() const;
    void showView(const QString& id);
    /// Makes the report of the shown (and compared) run in a second process of `program`, so that the window stays
    /// alive.
    void exportReport(const QString& path);
    void setReportProgram(const QString& program) { reportProgram_ = program; }
    void showMessage(const QString& text, bool isError = false);
    void saveSession();
    /// Saves the window and stops its session, without a question: the program is told to end. What is recorded so far
    /// is in the trace when the window is gone.
    void endNow();
    static void endAll(); // of all windows

    Workspace& workspace() { return *workspace_; }
    SessionController& controller() { return *controller_; }
    SessionForm& form() { return *form_; }
    TokenPanel& tokens() { return *tokens_; }
    Inspector& inspector() { return *inspector_; }
    HelpOverlay& help() { return *help_; }
    CursorHistory& history() { return *history_; }
    ColourMapMenu& colourMaps() { return *colourMaps_; }
    QAction* action(const char* name) const; // "run", "pause", "step", "stop", ...

signals:
    void firstPainted();

protected:
    void paintEvent(QPaintEvent* event) override;
    void closeEvent(QCloseEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;
    void dragEnterEvent(QDragEnterEvent* event) override;
    void dropEvent(QDropEvent* event) override;
    bool eventFilter(QObject* watched, QEvent* event) override;
    bool takesDrag(QWidget* over, QEvent* event);

private:
    void continueFrom(MainWindow& other);
    void restoreLook();
    void adoptTheme();
    void countCold(bool count);
    void makeNavigation();
    void updateNavigation();
    void makeCentre();
    QWidget* makeViewList();
    void makeDocks();
    void makeActions();
    void makeMenus();
    void makeToolBar();
    void makeStatusBar();
    void connectSession();
    void restore();
    void arrangeDocks(QSize window);
    void giveViewsRoom();
    void giveViewsHeight();
    void followPanelsToggles();
    void setViewsOnly(bool on);
    QByteArray layoutState() const; // as it is with the panels
    void afterFirstPaint();

    // What a crash must not take (main_window_recovery.cpp).
    void keepSaved();
    void collectSession();
    void saveChanges();
    void writeJournal();
    QStringList findLeftBehind(); // @return the traces that are offered, or will be
    void offerLeftBehind(const std::shared_ptr<SessionJournal::LeftBehind>& left,
                         const std::vector<TraceFacts>& recordings);
    bool discardTrace(const QString& path);
    void listTraces();

    QAction* addNamed(const char* name, const QString& text, const QList<QKeySequence>& keys, const QString& tip);
    void makeSessionActions();
    void makeFileActions();
    void makeViewActions();
    void makeCursorActions();
    void makeHelpActions();
    void runAgain(const RunKey& key);
    void fillFormAgain();
    void updateAgain();
    void showViolations(const RunKey& key);
    void updateActions();
    void updateIcons();
    void updateRecent();
    void showCentre();
    void ensureView(int tab);
    void showShortcuts();
    void stepView(int by);
    void moveCursor(int steps, int layers);
    void chooseFiles();
    void forgetOpenProblems();
    void chooseViewExport();
    void chooseReportExport();

    Settings settings_;
    SavedSession saved_, stored_; // as it is, and as it was last written
    std::unique_ptr<Workspace> workspace_;
    std::unique_ptr<SessionController> controller_; // after the workspace it reports to
    CursorHistory* history_ = nullptr;
    CursorLink* link_ = nullptr;

    QStackedWidget* centre_ = nullptr;
    WelcomePage* welcome_ = nullptr;
    QTabWidget* tabs_ = nullptr;
    std::vector<View*> views_; // by tab; null until first shown
    SessionForm* form_ = nullptr;
    RunList* runs_ = nullptr;
    TokenPanel* tokens_ = nullptr;
    Inspector* inspector_ = nullptr;
    HelpOverlay* help_ = nullptr;
    QDockWidget *sessionDock_ = nullptr, *runsDock_ = nullptr, *tokensDock_ = nullptr, *inspectorDock_ = nullptr;
    QMenu *recentMenu_ = nullptr, *backMenu_ = nullptr, *forwardMenu_ = nullptr;
    ColourMapMenu* colourMaps_ = nullptr;
    InlineMessage* banner_ = nullptr;         // what went wrong with the views, above them
    RecoveryBar* recovery_ = nullptr;         // what a program that crashed has left
    std::unique_ptr<SessionJournal> journal_; // null: nothing is remembered
    std::vector<std::shared_ptr<SessionJournal::LeftBehind>> leftBehind_;
    std::unique_ptr<RecordedSession> again_; // waits for its model
    bool runsFilledForm_ = false;            // and is run when the form holds it
    QTimer saveTimer_, regularTimer_;
    QByteArray defaultDocks_;
    QList<int> roomyColumns_;                               // widths of the side panels before a small window took them
    int roomyTokens_ = 0;                                   // and the height of the tokens; 0: they have it
    bool inspectorWaits_ = false, inspectorWanted_ = false; // hidden for want of room; shown in spite of it
    bool filterWaits_ = false, filterWanted_ = false;       // the same of the filter bar
    bool viewsOnly_ = false;                                // a person has put everything around the views away
    QByteArray aroundViews_;                                // the layout to come back to
    bool roomAsked_ = false;
    QString actionGroup_; // heading in the help of the actions being made
    QToolBar* toolBar_ = nullptr;
    FilterBar* filter_ = nullptr;
    QWidget* progress_ = nullptr;
    QLabel* progressText_ = nullptr;
    QProgressBar* progressBar_ = nullptr;
    QLabel *message_ = nullptr, *busy_ = nullptr;
    QToolButton *dismiss_ = nullptr, *broken_ = nullptr; // broken_: how many rows of the shown run break rules
    QString theme_, reportProgram_;
    QString openProblem_, modelProblem_; // what the status bar last said of files and of a model
    bool painted_ = false, sessionActive_ = false;
    bool ended_ = false; // it was saved for the last time
};

} // namespace kvscope::ui
