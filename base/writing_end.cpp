#include "base/writing_end.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace kvscope {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{3};           // for a program that is started beside this one
constexpr std::chrono::milliseconds kBetweenTries{20}; // nothing tells when a pipe gets a reader

} // namespace

WritingEnd::WritingEnd(const std::string& path) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0 || !S_ISFIFO(status.st_mode)) return;
    const auto end = Clock::now() + kPatience;
    for (;;) {
        number_ = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (number_ >= 0 || (errno != ENXIO && errno != EINTR)) return; // opening it once more says what else is wrong
        if (Clock::now() >= end) break;
        std::this_thread::sleep_for(kBetweenTries);
    }
    fault_ = "it is a pipe from which no program reads";
}

WritingEnd::~WritingEnd() {
    if (number_ >= 0) close(number_);
}

} // namespace kvscope
