// What a window has open, in a file of its own for as long as the window is there: after a crash the next start finds
// it and offers what was lost.
#pragma once

#include <QString>
#include <QStringList>

#include <memory>
#include <vector>

class QLockFile;

namespace kvscope::ui {

/// GUI thread. The file is locked while its window is there; a file whose lock is held by no running program was left
/// behind by one that ended without a word.
class SessionJournal {
public:
    struct Entry {
        QStringList open;      // traces that were shown
        QStringList recording; // of them, those that the program was recording
        bool operator==(const Entry&) const = default;
    };
    /// Journal of a program that is gone. It stays, and stays locked against other starts, until it is forgotten or
    /// this object dies.
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
    /// The file stays: end() says that the window was closed properly.
    ~SessionJournal();
    SessionJournal(const SessionJournal&) = delete;
    SessionJournal& operator=(const SessionJournal&) = delete;

    /// Nothing happens where the folder cannot be written: then a crash is not remembered.
    void write(const Entry& entry);
    void end();
    /// Those of programs that are gone; each is given once.
    std::vector<LeftBehind> leftBehind() const;

private:
    QString folder_, file_;
    std::unique_ptr<QLockFile> lock_;
    Entry written_;
    bool ended_ = false;
};

} // namespace kvscope::ui
