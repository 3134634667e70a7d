// Runs a program and collects what it says. The program says nothing of its progress unless a test asks for that,
// because on a busy machine it would print lines that are not there on an idle one.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace kvscope::test {

struct Finished {
    int status = -1; // exit status; 128 + signal when killed
    std::string out, err;
};

class Process {
public:
    explicit Process(const std::vector<std::string>& command) {
        std::array<int, 2> out{}, err{};
        if (pipe(out.data()) != 0 || pipe(err.data()) != 0) std::abort();
        id_ = fork();
        if (id_ == 0) {
            dup2(out[1], 1);
            dup2(err[1], 2);
            for (const int fd : {out[0], out[1], err[0], err[1]}) close(fd);
            std::vector<char*> arguments;
            for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
            arguments.push_back(nullptr);
            setenv("KVSCOPE_PROGRESS_SECONDS", "0", 1); // tests of progress set it by /usr/bin/env
            execv(arguments[0], arguments.data());
            _exit(127);
        }
        close(out[1]);
        close(err[1]);
        out_ = out[0];
        err_ = err[0];
    }
    ~Process() {
        if (id_ > 0) wait();
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    /// Does nothing when the program was waited for: the number -1 would mean every process of this user.
    void signal(int number) const {
        if (id_ > 0) kill(id_, number);
    }

    /// Reads until something matching has been said on standard output, or the program ended.
    bool waitForOutput(const std::string& text) {
        while (done_.out.find(text) == std::string::npos)
            if (!readSome()) return false;
        return true;
    }

    /// The program's standard output so far.
    const std::string& output() const { return done_.out; }

    Finished wait() {
        while (readSome()) {
        }
        int status = 0;
        waitpid(id_, &status, 0);
        id_ = -1;
        close(out_);
        close(err_);
        done_.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return done_;
    }

private:
    bool readSome() {
        std::array<pollfd, 2> fds{pollfd{outOpen_ ? out_ : -1, POLLIN, 0}, pollfd{errOpen_ ? err_ : -1, POLLIN, 0}};
        if (!outOpen_ && !errOpen_) return false;
        poll(fds.data(), 2, -1);
        std::array<char, 65536> buffer{};
        if (fds[0].revents) {
            const auto n = read(out_, buffer.data(), buffer.size());
            if (n > 0)
                done_.out.append(buffer.data(), std::size_t(n));
            else
                outOpen_ = false;
        }
        if (fds[1].revents) {
            const auto n = read(err_, buffer.data(), buffer.size());
            if (n > 0)
                done_.err.append(buffer.data(), std::size_t(n));
            else
                errOpen_ = false;
        }
        return outOpen_ || errOpen_;
    }
    pid_t id_ = -1;
    int out_ = -1, err_ = -1;
    bool outOpen_ = true, errOpen_ = true;
    Finished done_;
};

inline Finished runProcess(const std::vector<std::string>& command) { return Process(command).wait(); }

} // namespace kvscope::test
