// Opens a trace for reading and checks that it is one.
#pragma once

#include "profiler/sqlite/sqlite.h"

#include <memory>
#include <string>

namespace kvscope {

/// A temporary folder that only this user may read. It is removed with this object. Making one also removes the folders
/// that killed programs left behind.
class TemporaryFolder {
public:
    TemporaryFolder(); // @throws Error(Storage)
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
    /// A file in the folder, locked while this program lives. A folder whose file is not locked was left by a killed
    /// program.
    int lock_ = -1;
};

struct OpenTrace {
    std::unique_ptr<TemporaryFolder> copy; // where the file had to be copied to be readable; usually null
    std::unique_ptr<Connection> connection;
};

/// Reads the first page and the schema only, whatever the size of the file. A trace that a killed recorder left behind
/// (with its -wal) opens like any other; in a folder that cannot be written, where SQLite refuses that, a finished file
/// is opened as immutable and an unfinished one is copied to a temporary folder with its -wal. A file of another tool
/// that can be imported (import/import.h) is opened as its conversion in the cache, which is made now if it is not
/// there; messages name the file itself.
/// @throws Error(Storage | BadInput): not there, not readable, not a trace, newer than this program, damaged
OpenTrace openTrace(const std::string& path);

} // namespace kvscope
