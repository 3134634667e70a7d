// What a crash must not destroy: the journal of a window, and the offers to get back what the journals of programs that
// crashed list.
#pragma once

#include "ui/widgets/trace_facts.h"
#include "ui/window/session_journal.h"

#include <QObject>

#include <memory>
#include <vector>

namespace kvscope::ui {

class RecoveryBar;
class Workspace;

class CrashRecovery final : public QObject {
    Q_OBJECT
public:
    CrashRecovery(Workspace& workspace, RecoveryBar& bar, QObject* parent);

    /// Begins the window's journal. Until then the functions below do nothing.
    void beginJournal(const QString& folder);
    /// Writes which traces are open and recorded. `waiting`: the runs that wait in the queue, as requestsJson() writes
    /// them
    void writeJournal(const QByteArray& waiting);
    /// The window ends as it should. Runs that wait are offered at the next start.
    void endJournal(const QByteArray& waiting = {});
    /// Offers in the bar what programs that crashed have left behind. @return the traces that are or will be offered
    QStringList findLeftBehind();
    /// Whether one of those programs was recording the trace: then nothing writes it, even if its last sign of life was
    /// a moment ago.
    bool isLeftBehind(const TraceFacts& facts) const;

signals:
    void openRequested(const QStringList& files);
    void queueRequested(const QByteArray& waiting);
    void discarded(const QString& trace);
    void said(const QString& sentence, bool isError);

private:
    using Journal = std::shared_ptr<SessionJournal::LeftBehind>;
    struct Offers;

    void offer(const Journal& left, const std::vector<TraceFacts>& recordings);
    /// @return whether an offer is made, rather than one of the other open files
    bool offerRecording(Offers& offers, const TraceFacts& facts);
    void offerOpenFiles(Offers& offers, const QStringList& files);
    void offerWaiting(Offers& offers, const QByteArray& waiting);
    void withdrawWhenOpen(const Offers& offers, QWidget* line, const QStringList& files);
    bool discard(const QString& trace);

    Workspace& workspace_;
    RecoveryBar& bar_;
    std::unique_ptr<SessionJournal> journal_; // null: the window keeps no journal
    std::vector<Journal> left_;
};

} // namespace kvscope::ui
