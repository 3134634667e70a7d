#include "ui/window/crash_recovery.h"

#include "ui/frame/workspace.h"
#include "ui/session/request_json.h"
#include "ui/widgets/recovery_bar.h"

#include <QDir>
#include <QFile>
#include <QFileInfo>
#include <QMessageBox>
#include <QPushButton>

#include <algorithm>
#include <functional>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr qsizetype kNamesShown = 4;

/// The files of a trace: SQLite keeps two files beside the trace while not everything is in the trace itself.
QStringList filesOf(const QString& trace) {
    QStringList files;
    for (const char* suffix : {"", "-wal", "-shm"})
        if (const QString file = trace + QLatin1String(suffix); QFileInfo::exists(file)) files << file;
    return files;
}

QStringList namesIn(const QByteArray& waiting) {
    QStringList names;
    for (const auto& [name, request] : requestsOf(waiting)) names << name;
    return names;
}

bool isRunning(const TraceFacts& facts) { return facts.status == QLatin1String(nameOf(RunStatus::Running)); }

} // namespace

/// The offers that are made of one journal. When the last of them is answered, the journal is forgotten.
struct CrashRecovery::Offers {
    Journal left;
    std::shared_ptr<int> open = std::make_shared<int>(0); // not answered yet

    /// To be called when an offer is answered. @return true
    std::function<bool()> answered() const {
        return [left = left, open = open] {
            if (--*open == 0) left->forget();
            return true;
        };
    }
};

CrashRecovery::CrashRecovery(Workspace& workspace, RecoveryBar& bar, QObject* parent)
    : QObject(parent), workspace_(workspace), bar_(bar) {}

void CrashRecovery::beginJournal(const QString& folder) { journal_ = std::make_unique<SessionJournal>(folder); }

void CrashRecovery::writeJournal(const QByteArray& waiting) {
    if (!journal_) return;
    SessionJournal::Entry entry;
    for (const OpenRun& run : workspace_.runs()) {
        if (!entry.open.contains(run.key.path)) entry.open << run.key.path;
        if (run.live && !entry.recording.contains(run.key.path)) entry.recording << run.key.path;
    }
    entry.waiting = waiting;
    journal_->write(entry);
}

void CrashRecovery::endJournal(const QByteArray& waiting) {
    if (journal_) journal_->end(waiting);
}

QStringList CrashRecovery::findLeftBehind() {
    QStringList offered;
    if (!journal_) return offered;
    for (SessionJournal::LeftBehind& left : journal_->leftBehind()) {
        offered += left.entry().open + left.entry().recording;
        auto kept = std::make_shared<SessionJournal::LeftBehind>(std::move(left));
        const QStringList recording = kept->entry().recording;
        readTraceFacts(
            this, [recording] { return recording; },
            [this, kept](const std::vector<TraceFacts>& facts) { offer(kept, facts); });
        left_.push_back(std::move(kept)); // the journal stays locked while this window may answer the offers
    }
    return offered;
}

bool CrashRecovery::isLeftBehind(const TraceFacts& facts) const {
    return isRunning(facts) && std::any_of(left_.begin(), left_.end(), [&](const Journal& left) {
               return left->entry().recording.contains(facts.path);
           });
}

void CrashRecovery::offer(const Journal& left, const std::vector<TraceFacts>& recordings) {
    Offers offers{left};
    QStringList others = left->entry().open;
    for (const TraceFacts& facts : recordings)
        if (!QFileInfo::exists(facts.path) || offerRecording(offers, facts)) others.removeAll(facts.path);
    others.erase(
        std::remove_if(others.begin(), others.end(), [](const QString& path) { return !QFileInfo::exists(path); }),
        others.end());
    others.removeDuplicates();
    if (!others.isEmpty()) offerOpenFiles(offers, others);
    offerWaiting(offers, left->entry().waiting);
    if (*offers.open == 0) left->forget();
}

/// A trace that was ended properly is offered with the other open files.
bool CrashRecovery::offerRecording(Offers& offers, const TraceFacts& facts) {
    const bool interrupted = isRunning(facts);
    if (!interrupted && facts.runs > 0) return false;
    ++*offers.open;
    const auto answered = offers.answered();
    std::vector<RecoveryBar::Choice> choices;
    if (interrupted)
        choices.push_back({tr("Open"), tr("Show what was recorded"), [this, path = facts.path, answered] {
                               emit openRequested({path});
                               return answered();
                           }});
    choices.push_back({tr("Discard"), tr("Move the trace to the trash"),
                       [this, path = facts.path, answered] { return discard(path) && answered(); }});
    QWidget* line = bar_.offer(interrupted ? tr("Recovered: %1, %2").arg(facts.name, countOf(facts))
                                           : tr("Left behind: %1, a recording without anything in it").arg(facts.name),
                               tr("KVScope ended while it recorded %1. What was written until then is there.")
                                   .arg(QDir::toNativeSeparators(facts.path)),
                               choices);
    if (interrupted) withdrawWhenOpen(offers, line, {facts.path});
    return true;
}

void CrashRecovery::offerOpenFiles(Offers& offers, const QStringList& files) {
    ++*offers.open;
    const auto answered = offers.answered();
    QStringList names;
    for (const QString& path : files.mid(0, kNamesShown)) names << QFileInfo(path).fileName();
    if (files.size() > kNamesShown) names << tr("and %1 more").arg(files.size() - kNamesShown);
    QWidget* line =
        bar_.offer(files.size() == 1 ? tr("Open when KVScope ended unexpectedly: %1").arg(names.front())
                                     : tr("%1 traces were open when KVScope ended unexpectedly: %2")
                                           .arg(QString::number(files.size()), names.join(QStringLiteral(", "))),
                   files.join(QLatin1Char('\n')),
                   {{tr("Open"), tr("Open them again"),
                     [this, files, answered] {
                         emit openRequested(files);
                         return answered();
                     }},
                    {tr("Not Now"), tr("Leave them closed; they stay where they are"), answered}});
    withdrawWhenOpen(offers, line, files);
}

void CrashRecovery::offerWaiting(Offers& offers, const QByteArray& waiting) {
    const QStringList names = namesIn(waiting);
    if (names.isEmpty()) return;
    ++*offers.open;
    const auto answered = offers.answered();
    bar_.offer(names.size() == 1 ? tr("A run waited in the queue when KVScope ended: %1").arg(names.front())
                                 : tr("%1 runs waited in the queue when KVScope ended").arg(names.size()),
               names.join(QLatin1Char('\n')),
               {{tr("Queue Again"), tr("Run them one after the other, into a new trace"),
                 [this, waiting, answered] {
                     emit queueRequested(waiting);
                     return answered();
                 }},
                {tr("Not Now"), tr("Forget them"), answered}});
}

/// If the user has opened all files of an offer in another way, the offer is withdrawn.
void CrashRecovery::withdrawWhenOpen(const Offers& offers, QWidget* line, const QStringList& files) {
    connect(&workspace_, &Workspace::runsChanged, line, [this, line, files, answered = offers.answered()] {
        const auto isOpen = [this](const QString& file) {
            return std::any_of(workspace_.runs().begin(), workspace_.runs().end(),
                               [&](const OpenRun& run) { return run.key.path == file; });
        };
        if (line->isHidden() || !std::all_of(files.begin(), files.end(), isOpen)) return;
        answered();
        bar_.withdraw(line);
    });
}

bool CrashRecovery::discard(const QString& path) {
    std::vector<RunKey> shown;
    for (const OpenRun& run : workspace_.runs())
        if (run.key.path == path) shown.push_back(run.key);
    for (const RunKey& key : shown) workspace_.close(key);
    const QStringList files = filesOf(path);
    const auto trashed = [](const QString& file) { return QFile::moveToTrash(file); };
    const bool moved = std::all_of(files.begin(), files.end(), trashed);
    if (!moved) {
        QMessageBox question(QMessageBox::Question, tr("Delete the trace?"), {}, QMessageBox::NoButton, bar_.window());
        question.setTextFormat(Qt::PlainText);
        question.setText(
            tr("%1 cannot be moved to the trash. Delete it for good?").arg(QDir::toNativeSeparators(path)));
        const QAbstractButton* remove = question.addButton(tr("Delete"), QMessageBox::DestructiveRole);
        question.setDefaultButton(question.addButton(tr("Keep"), QMessageBox::RejectRole));
        question.exec();
        if (question.clickedButton() != remove) return false;
        for (const QString& file : filesOf(path))
            if (!QFile::remove(file)) {
                emit said(tr("%1 could not be deleted; is its folder writable?").arg(file), true);
                return false;
            }
    }
    emit said((moved ? tr("%1 was moved to the trash.") : tr("%1 was deleted.")).arg(QFileInfo(path).fileName()),
              false);
    emit discarded(path);
    return true;
}

} // namespace kvscope::ui
