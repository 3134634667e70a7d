// Writing to a named pipe. Opening a pipe for writing waits until a program reads it: for ever if none does, and a
// signal with a handler does not end the wait.
#pragma once

#include <string>

namespace kvscope {

class WritingEnd {
public:
    /// Waits up to three seconds for a program to open the pipe for reading. Then holds the pipe open, so that a later
    /// open does not wait and the reading program sees no end before it. Does nothing with any other kind of file.
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
