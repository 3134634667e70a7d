// A file that appears when it is complete: until then it has another name beside its own, and it is gone if that never
// happens.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace kvscope {

class WholeFile {
public:
    /// Makes the file aside, empty, under a name that nobody can guess, and keeps it locked. Removes files that
    /// programs which were killed have left in the same folder. Where the file cannot be made, opening it fails and
    /// says why. A symbolic link stays: the file it leads to is written.
    explicit WholeFile(std::string path);
    ~WholeFile(); // removes the file aside, unless it appeared, and what SQLite may have left beside it
    WholeFile(const WholeFile&) = delete;
    WholeFile& operator=(const WholeFile&) = delete;

    /// Where to write it. Nobody else writes there.
    const std::string& aside() const { return aside_; }
    /// Gives the file its own name. It replaces what had that name, unless that is a device, a pipe or a folder.
    /// @return empty, or why it could not
    std::string appear();

    /// Part of the name of every file that is not complete. Such a file that no program has locked was left by a
    /// program that was killed.
    static constexpr const char* kMark = ".writing-";

private:
    std::string path_, aside_;
    int lock_ = -1; // descriptor of the file aside
};

/// Why no table, report or text may take the place of what is there: a trace, or another SQLite database, as half a
/// sentence; empty where it may.
std::string databaseInTheWay(const std::string& path);

/// Tries whether writeWholeFile could make the file, and leaves nothing behind: for work of minutes whose result is
/// written at its end. A disk may still be full then. @return empty, or why it cannot be written, as half a sentence
std::string whyUnwritable(const std::string& path);

/// Writes a file as a whole: it replaces what was there when it is complete. A device or a pipe is written directly,
/// and a database is never replaced. @return empty, or why nothing was replaced, as half a sentence
std::string writeWholeFile(const std::string& path, const std::function<void(std::ostream&)>& write);

} // namespace kvscope
