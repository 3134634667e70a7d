// A named pipe that somebody reads. To open one for writing waits for a program that reads, for ever if none comes, and
// no signal that is handled ends that.
#pragma once

#include <string>

namespace kvscope {

class WritingEnd {
public:
    /// Waits for a program to open the pipe for reading, three seconds at most, and holds the pipe open, so that
    /// opening it once more does not wait and the program sees no end meanwhile. Any other kind of file is left alone.
    explicit WritingEnd(const std::string& path);
    ~WritingEnd();
    WritingEnd(const WritingEnd&) = delete;
    WritingEnd& operator=(const WritingEnd&) = delete;

    /// Why the pipe cannot be written, as half a sentence; empty where it can, and for other kinds of files.
    const std::string& fault() const { return fault_; }

private:
    std::string fault_;
    int number_ = -1;
};

} // namespace kvscope
