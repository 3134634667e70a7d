// Another program of KVScope that a benchmark starts and listens to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::bench {

/// The path of a program that lies in the folder of this one; empty where the system does not tell that folder.
std::string programBeside(std::string_view name);

/// A program that runs as a child of this one. Its standard output comes here, its standard error goes to ours. It gets
/// SIGTERM when this program ends, whatever has ended it.
class ChildProgram {
public:
    /// command: the program's path, and its arguments. @throws Error(Unsupported) where no process can be made
    explicit ChildProgram(const std::vector<std::string>& command);
    /// Sends SIGTERM, and waits.
    ~ChildProgram();
    ChildProgram(const ChildProgram&) = delete;
    ChildProgram& operator=(const ChildProgram&) = delete;

    /// Reads standard output until the text is in it. @return false where the output ends before
    bool readUntil(std::string_view text);
    /// Standard output as far as it has been read.
    const std::string& output() const { return output_; }
    /// Asks the program to end.
    void terminate() const;
    /// Reads standard output to its end, and waits for the program's end.
    /// @return its exit status, 127 where it could not be started; -1: a signal has ended it
    int wait();

private:
    bool readSome();

    int id_ = -1; // of the process; -1: it has been waited for
    int pipe_ = -1;
    std::string output_;
};

} // namespace kvscope::bench
