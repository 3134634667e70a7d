#include "bench/child_program.h"

#include "base/error.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvscope::bench {

std::string programBeside(std::string_view name) {
    std::error_code failure;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
    return failure ? std::string() : (self.parent_path() / name).string();
}

ChildProgram::ChildProgram(const std::vector<std::string>& command) {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) == 0) {
        const int parent = getpid();
        id_ = fork();
        if (id_ == 0) { // other threads of this program may hold locks, so that the child makes system calls only
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() == parent && dup2(ends[1], STDOUT_FILENO) >= 0) execv(words[0], words.data());
            _exit(127);
        }
        close(ends[1]);
        pipe_ = ends[0];
    }
    if (id_ < 0) {
        const std::string why = std::strerror(errno);
        if (pipe_ >= 0) close(pipe_);
        throw Error(ErrorKind::Unsupported, fmt::format("{} cannot be started: {}", command.front(), why));
    }
}

ChildProgram::~ChildProgram() {
    terminate();
    wait();
}

bool ChildProgram::readUntil(std::string_view text) {
    while (output_.find(text) == std::string::npos)
        if (!readSome()) return false;
    return true;
}

void ChildProgram::terminate() const {
    if (id_ > 0) kill(id_, SIGTERM);
}

int ChildProgram::wait() {
    if (id_ < 0) return -1;
    while (readSome()) {
    }
    close(pipe_);
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool ChildProgram::readSome() {
    std::array<char, 4096> buffer{};
    ssize_t count = -1;
    do count = read(pipe_, buffer.data(), buffer.size());
    while (count < 0 && errno == EINTR);
    if (count <= 0) return false;
    output_.append(buffer.data(), std::size_t(count));
    return true;
}

} // namespace kvscope::bench
