// One writer per trace: a program that records into a file holds its lock, and no program replaces a file that is being
// written.
#pragma once

#include <string>

namespace kvscope {

/// A file beside the trace, named like it with "-lock" behind. The system keeps it locked as long as its owner lives.
/// It is removed with this object; a lock file that a killed program left behind is taken over. Where the system has no
/// such locks, or the folder cannot be written, this object holds nothing and only SQLite's own locks protect the
/// trace.
class WriterLock {
public:
    /// @throws Error(Storage) when another program, or another part of this one, is writing the file
    explicit WriterLock(const std::string& path);
    ~WriterLock();
    WriterLock(const WriterLock&) = delete;
    WriterLock& operator=(const WriterLock&) = delete;

    /// The lock file was left by a program that was killed. A run that the trace calls `running` has no writer any
    /// more.
    bool tookOver() const { return tookOver_; }

    /// The file keeps some room on the disk. This call gives it back, so that a disk that has become full takes one
    /// more small transaction: the one that says why the run failed.
    void giveRoom() const;

private:
    std::string name_;
    int descriptor_ = -1;
    bool tookOver_ = false;
};

enum class Heartbeat : bool { Counts, IsOver };

/// Called before a file is replaced. Finds writers that do not use the lock by SQLite's own locks and, where it counts,
/// by the heartbeat of a run that is `running`. A file that is no database has no writer. @throws Error(Storage) while
/// a program is writing it
void refuseWhileWritten(const std::string& path, Heartbeat heartbeat);

/// Which file a name means; none: there is no such file.
struct FileIdentity {
    unsigned long long device = 0, number = 0;
    static FileIdentity of(const std::string& path);
    bool operator==(const FileIdentity&) const = default;
};

/// What has become of a file that this process holds open, under any name.
struct OpenFile {
    bool exists = false; // the file has a name; false also where the system does not say
    std::string path;    // that name; empty: not known
    static OpenFile find(const FileIdentity& identity);
};

} // namespace kvscope
