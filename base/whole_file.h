// A file that appears under its name only when it is complete. Until then it is written under another name in the same
// folder, and it is removed if it never becomes complete.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace kvscope {

class WholeFile {
public:
    /// Makes the file aside: an empty file in the same folder, under a name that nobody can guess, which stays locked.
    /// Removes such files of programs that were killed. Where it cannot be made, opening aside() fails and says why.
    /// Where `path` is a symbolic link, the link stays and the file to which it leads is replaced.
    explicit WholeFile(std::string path);
    ~WholeFile(); // removes the file aside, unless it appeared, and what SQLite may have left beside it
    WholeFile(const WholeFile&) = delete;
    WholeFile& operator=(const WholeFile&) = delete;

    /// The path under which the caller writes the file; no other program writes to it.
    const std::string& aside() const { return aside_; }
    /// Gives the file aside its final name. It replaces what had that name, unless that is a device, a pipe or a
    /// folder. @return empty, or why it could not be renamed
    std::string appear();

    /// Part of the name of every file aside. A file with such a name that no program has locked was left by a program
    /// that was killed.
    static constexpr const char* kMark = ".writing-";

private:
    std::string path_, aside_;
    int lock_ = -1; // descriptor of the file aside
};

/// Half a sentence that says why no table, report or text may replace the file at `path`: it is a trace or another
/// SQLite database. Empty where it may be replaced.
std::string databaseInTheWay(const std::string& path);

/// Tries whether writeWholeFile could make the file, and leaves nothing behind: called before work of minutes whose
/// result is written at its end. A disk may still be full then. @return empty, or why the file cannot be written, as
/// half a sentence
std::string whyUnwritable(const std::string& path);

/// Writes a file as a whole: it replaces what was there when it is complete. A device or a pipe is written directly,
/// and a database is never replaced. @return empty, or why nothing was replaced, as half a sentence
std::string writeWholeFile(const std::string& path, const std::function<void(std::ostream&)>& write);

} // namespace kvscope
