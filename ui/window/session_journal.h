// The journal of a window: a file that lists the traces that the window has open, for as long as the window exists.
// After a crash the next start finds the file and offers the traces.
#pragma once

#include <QByteArray>
#include <QString>
#include <QStringList>

#include <memory>
#include <vector>

class QLockFile;

namespace kvscope::ui {

/// Used on the GUI thread only. The file is locked while its window exists. If no running program holds the lock, the
/// program that wrote the file has crashed.
class SessionJournal {
public:
    struct Entry {
        QStringList open;        // the open traces
        QStringList recording;   // those files that the program is recording
        QByteArray waiting = {}; // the runs that wait in the queue, as requestsJson() writes them; empty: none
        bool operator==(const Entry&) const = default;
    };
    /// The journal of a program that is gone. The file is locked against other starts while this object exists.
    /// forget() removes the file; otherwise the file stays for a later start.
    class LeftBehind {
    public:
        LeftBehind(Entry entry, QString file, std::unique_ptr<QLockFile> lock);
        ~LeftBehind();
        LeftBehind(LeftBehind&&) noexcept;
        const Entry& entry() const { return entry_; }
        void forget(); // removes the file

    private:
        Entry entry_;
        QString file_;
        std::unique_ptr<QLockFile> lock_;
    };

    explicit SessionJournal(const QString& folder);
    /// Leaves the file in place. end() removes it when the window is closed properly.
    ~SessionJournal();
    SessionJournal(const SessionJournal&) = delete;
    SessionJournal& operator=(const SessionJournal&) = delete;

    /// Writes the journal. If the folder cannot be written, nothing happens, and a crash leaves nothing to offer.
    void write(const Entry& entry);
    /// The window is closed properly: removes the file, unless runs wait, which the next start then offers.
    void end(const QByteArray& waiting = {});
    /// The journals of programs that are gone. Each journal is given to one caller only, because the result locks it.
    std::vector<LeftBehind> leftBehind() const;

private:
    QString folder_, file_;
    std::unique_ptr<QLockFile> lock_;
    Entry written_;
    bool ended_ = false;
};

} // namespace kvscope::ui
