// Sessions that run one after the other: what was added to the queue waits here until the controller is free.
#pragma once

#include "base/indexed.h"
#include "ui/session/session_controller.h"

#include <QObject>
#include <QString>

#include <optional>
#include <vector>

namespace kvscope::ui {

struct QueuedRun {
    enum class State { Waiting, Running, Finished, Failed, Cancelled };
    int id = 0;    // of this queue, never given again
    int group = 0; // runs of one group are recorded into one trace
    QString name;  // says what differs: "nosa, 32 blocks"
    SessionRequest request;
    State state = State::Waiting;
    double fraction = 0;       // of reading the model and the prompt, while it runs
    QString what;              // what is being done until the first token, e.g. "reading the prompt"
    QString sentence;          // why it failed
    std::optional<RunKey> key; // absent: nothing was recorded yet
};

/// Lives on the GUI thread. Starts the next waiting run when no session is active, unless the queue is held. A run that
/// fails does not hold the queue, unless that was asked for. A running session that somebody else stops holds it: the
/// person who stops a run does not expect the next one to begin.
class RunQueue final : public QObject {
    Q_OBJECT
public:
    explicit RunQueue(SessionController& controller, QObject* parent = nullptr);

    const std::vector<QueuedRun>& runs() const { return runs_; }
    const QueuedRun* find(int id) const;
    const QueuedRun* running() const; // null: none of the queue
    int count(QueuedRun::State state) const;
    int waiting() const { return count(QueuedRun::State::Waiting); }

    /// Adds a run behind the others. Runs that are added while others wait or run share the trace of these.
    void add(const QString& name, const SessionRequest& request);
    /// Adds runs that belong together. They get one trace: `trace`, or a new file if it is empty.
    void addSweep(const std::vector<std::pair<QString, SessionRequest>>& runs, const QString& trace = {});

    bool isHeld() const { return held_; }
    void setHeld(bool held); // held: no waiting run is started; the running one goes on
    bool stopsAtFailure() const { return stopsAtFailure_; }
    void setStopsAtFailure(bool stops);
    /// Moves a waiting run before (by < 0) or behind (by > 0) the next waiting one.
    void move(int id, int by);
    bool canMove(int id, int by) const;
    void cancel(int id); // a waiting run, or the running one, after which the next begins
    void cancelAll();
    void remove(int id); // takes a run that does not run out of the list
    void removeEnded();

signals:
    void changed();  // the list, a state, or whether the queue is held
    void advanced(); // the running run has got further
    void starting(); // a run of the queue is about to be handed to the controller
    /// No run of a sweep waits or runs any more. finished: those that were recorded to their end, in their order.
    void sweepEnded(const std::vector<kvscope::ui::RunKey>& finished);

private:
    struct Group {
        int number = 0;
        QString trace; // empty: a new file is made when the first run begins
        bool isSweep = false;
        bool made = false;            // the queue has made the file
        std::vector<RunKey> finished; // those of its runs that were recorded to their end
    };
    QueuedRun* findRun(int id);
    Group& groupOf(const QueuedRun& run);
    int newGroup(bool isSweep, const QString& trace);
    bool isOpen(int group) const; // whether one of its runs waits or runs
    std::optional<int> neighbour(int id, int by) const;
    void append(const QString& name, SessionRequest request, int group);
    void startSoon();
    void startNext();
    void start(QueuedRun& run);
    void end(QueuedRun::State state, const QString& sentence);
    void endGroup(int number);

    SessionController& controller_;
    Numbered<QueuedRun> runs_;
    std::vector<Group> groups_;
    int lastId_ = 0, lastGroup_ = 0;
    int runningId_ = 0; // 0: none of the queue runs
    bool held_ = false, stopsAtFailure_ = false, cancelling_ = false, startAsked_ = false;
};

} // namespace kvscope::ui
