// A window of the desktop: the session form and the runs are at the left, the views in the centre, the tokens below,
// and the inspector is at the right. Several windows can be open. Linked windows that show the same run share one
// cursor.
#pragma once

#include "ui/frame/proposals.h"
#include "ui/frame/workspace.h"
#include "ui/window/settings.h"

#include <QMainWindow>
#include <QTimer>

#include <memory>
#include <optional>
#include <vector>

class QStackedWidget;
class QToolBar;
class QToolButton;

namespace kvscope {
struct TuneResult;
}

namespace kvscope::ui {

class ColourMapMenu;
class CommandPalette;
class CrashRecovery;
class CursorHistory;
class CursorLink;
class FilterBar;
class HelpOverlay;
class InlineMessage;
class Inspector;
class Panels;
class PromptProgress;
class QueuePanel;
class RunList;
class RunQueue;
class ServerProcess;
class SessionController;
class SessionForm;
class SessionProgress;
class StatusLine;
class TokenPanel;
class View;
class ViewArea;
class WelcomePage;
class WindowServer;
struct ForkRequest;
struct PaletteEntry;
struct SessionRequest;
struct SessionToRepeat;

class MainWindow final : public QMainWindow, public RunsChanges {
    Q_OBJECT
public:
    explicit MainWindow(Settings settings, QWidget* parent = nullptr);
    ~MainWindow() override;

    void openFiles(const QStringList& paths);
    /// Opens a trace and runs its first run again, as Run > Run Again and then Run. Where that cannot be, the window
    /// says why.
    void runAgainWhenOpen(const QString& path);
    void setTheme(const QString& id); // "light" or "dark"; of all windows
    /// Ids of ui/look/colour_maps.h, for all windows. Remembered unless it is only tried.
    void setColourMaps(const QString& sequential, const QString& diverging, bool remember = true);
    /// Opens another window with the same traces, which shows the same place in the same view.
    MainWindow* newWindow();
    /// The view in front; null while the start page is shown.
    View* currentView() const;
    void showView(const QString& id);
    /// Makes the report of the shown run and of the compared run if there is one. It is made in a second process of
    /// `program`, so that the window keeps responding.
    void exportReport(const QString& path);
    void setReportProgram(const QString& program) { reportProgram_ = program; }
    /// The program that serves; by default kvscope-cli beside this one.
    void setServerProgram(const QString& program);
    void showMessage(const QString& text, bool isError = false);
    /// Writes what the next start shows, and says where it cannot. @return what it has said, once; empty: nothing new
    QString saveSession();
    /// Saves the window and stops its session without asking, because the program was told to end. By the time the
    /// window is gone, what was recorded is in the trace.
    void endNow();
    static void endAll(); // calls endNow for all windows

    Workspace& workspace() { return *workspace_; }
    SessionController& controller() { return *controller_; }
    SessionForm& form() { return *form_; }
    RunQueue& queue() { return *queue_; }
    ServerProcess& server();
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
    void afterFirstPaint();

    // These functions keep what a crash must not destroy (main_window_saving.cpp).
    void keepSaved();
    void collectSession();
    void saveChanges();
    QString writeSettings();
    void writeJournal();
    void listTraces();

    QAction* addNamed(const char* name, const QString& text, const QList<QKeySequence>& keys, const QString& tip);
    void makeSessionActions();
    void makeFileActions();
    void makeViewActions();
    void makePlaceActions();
    void updatePlaceActions();
    void makeCursorActions();
    void makeHelpActions();
    void runAgain(const RunKey& key);
    QString whyNoRun() const override;
    void runWith(const ProposedChange& change) override;
    QString whyNoFork() const override;
    void forkHere() override;
    void useSettings(const RunKey& key) override { runAgain(key); }
    void runFork(const ForkRequest& fork);
    void compareFork();
    void fillFormAgain();
    void runWhenReady();
    void updateAgain();
    void showTuneDialog();
    void runTuned(const TuneResult& result, std::size_t row);
    void showPalette();
    std::vector<PaletteEntry> paletteEntries();
    std::vector<PaletteEntry> paletteSearches(const QString& typed);
    void findInView();

    // The queue of runs (main_window_queue.cpp).
    void connectQueue();
    void addToQueue(SessionRequest request);
    void showSweepDialog();
    void showQueue();
    void updateQueue();
    void compareRuns(const std::vector<RunKey>& runs);
    bool askToClose();
    QByteArray waitingRuns() const;
    void queueAgain(const QByteArray& waiting);

    void showViolations(const RunKey& key);
    void showServeDialog();
    void connectServer();
    void updateActions();
    void updateIcons();
    void updateRecent();
    void showCentre();
    void showShortcuts();
    void stepView(int by);
    void moveCursor(int steps, int layers);
    void chooseFiles();
    void forgetOpenProblems();
    void chooseViewExport();
    void chooseReportExport();

    Settings settings_;
    SavedSession saved_; // the state of the window as it is now
    struct {
        SavedSession stored;      // the state as it was last written to the settings
        bool problemTold = false; // a person knows that the settings cannot be written
        QTimer soon, regularly;   // until the state is looked at again
    } saving_;
    /// The session of controller_.
    struct {
        bool active = false;
        bool queued = false;          // the session is one of the queue, not of the form
        std::optional<RunKey> forked; // the session is a fork of this run, and its own run is not in the list yet
    } session_;
    /// A recorded run that was asked for again.
    struct {
        std::unique_ptr<SessionToRepeat> recorded; // waits for its model; null: none does
        std::optional<ProposedChange> change;      // what the user wants to be different
        bool runs = false;                         // whether the session runs as soon as the form holds it
    } repeat_;
    std::unique_ptr<Workspace> workspace_;
    std::unique_ptr<SessionController> controller_; // after workspace_, which it uses
    RunQueue* queue_ = nullptr;
    WindowServer* served_ = nullptr;
    CursorHistory* history_ = nullptr;
    CursorLink* link_ = nullptr;

    QStackedWidget* centre_ = nullptr;
    WelcomePage* welcome_ = nullptr;
    ViewArea* area_ = nullptr;
    SessionForm* form_ = nullptr;
    RunList* runs_ = nullptr;
    QueuePanel* queuePanel_ = nullptr;
    TokenPanel* tokens_ = nullptr;
    Inspector* inspector_ = nullptr;
    HelpOverlay* help_ = nullptr;
    CommandPalette* palette_ = nullptr; // made when it is first opened
    Panels* panels_ = nullptr;
    QMenu* recentMenu_ = nullptr;
    ColourMapMenu* colourMaps_ = nullptr;
    InlineMessage* banner_ = nullptr; // errors of reads, above the views
    CrashRecovery* crash_ = nullptr;
    PromptProgress* promptProgress_ = nullptr;
    /// The heading under which the help lists the actions that are being made.
    QString actionGroup_;
    QToolBar* toolBar_ = nullptr;
    FilterBar* filter_ = nullptr;
    SessionProgress* progress_ = nullptr;
    StatusLine* status_ = nullptr;
    QToolButton* queued_ = nullptr; // of status_: says how far the queue is
    QString theme_, reportProgram_;
    bool painted_ = false;
    bool ended_ = false; // the window was saved for the last time and is closing
};

} // namespace kvscope::ui
