#include "base/text_file.h"

#include "base/progress.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace kvscope {
namespace {

constexpr int kPatienceMs = 3000;    // for a program that is started beside this one to open the pipe between them
constexpr int kBetweenLooksMs = 100; // whether a stop was requested, while a pipe's writer has nothing to say

class OpenFile {
public:
    explicit OpenFile(const std::string& path)
        : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {} // a pipe must not wait for its writer
    ~OpenFile() {
        if (number_ >= 0) close(number_);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    int number() const { return number_; }
    bool is(mode_t kind) const {
        struct stat status {};
        return fstat(number_, &status) == 0 && (status.st_mode & S_IFMT) == kind;
    }
    ssize_t read(std::vector<char>& piece) const {
        ssize_t got = 0;
        do got = ::read(number_, piece.data(), piece.size());
        while (got < 0 && errno == EINTR);
        return got;
    }
    /// Waits until there is something to read, or its end. @return false: the time is up
    bool wait(int milliseconds) const {
        pollfd one{number_, POLLIN, 0};
        int ready = 0;
        do ready = poll(&one, 1, milliseconds);
        while (ready < 0 && errno == EINTR);
        return ready != 0;
    }

private:
    int number_;
};

} // namespace

std::string readTextFile(const std::string& path, std::string_view what, std::size_t most,
                         const std::stop_token& stop) {
    const auto unreadable = [&](const std::string& why) {
        return Error(ErrorKind::BadInput, fmt::format("cannot read {} {}: {}", what, path, why),
                     "check its name and permissions");
    };
    const OpenFile file(path);
    if (file.number() < 0) throw unreadable(std::strerror(errno));
    if (file.is(S_IFDIR)) throw unreadable(std::strerror(EISDIR));
    std::string text;
    std::vector<char> piece(std::size_t(1) << 20);
    // Before some program opens a pipe to write, reading gives its end at once.
    bool awaited = file.is(S_IFIFO), unopened = false;
    for (;;) {
        const ssize_t got = file.read(piece);
        if (got < 0 && errno != EAGAIN) throw unreadable(std::strerror(errno));
        if (got == 0 && unopened)
            throw Error(ErrorKind::BadInput, fmt::format("{} {} is a pipe into which no program writes", what, path),
                        "start the program that does before this one, or give a file");
        unopened = false;
        if (got > 0) {
            if (text.size() + std::size_t(got) > most)
                throw Error(ErrorKind::BadInput, fmt::format("{} {} is longer than {} MiB", what, path, most >> 20),
                            "give a shorter file");
            text.append(piece.data(), std::size_t(got));
        } else if (got < 0) { // the writer has nothing to say yet
            while (!file.wait(kBetweenLooksMs)) throwIfCancelled(stop);
        } else if (awaited) {
            unopened = !file.wait(kPatienceMs);
        } else {
            break;
        }
        awaited = false;
    }
    return text;
}

} // namespace kvscope
