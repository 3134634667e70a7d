#include "app/terminal/interruption.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <fcntl.h>
#include <thread>
#include <unistd.h>

namespace kvscope {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

// A launcher passes on the Ctrl-C that the terminal has sent to the program, too: then the same signal comes twice.
constexpr std::int64_t kSameSignalMs = 500;

volatile std::sig_atomic_t cause = 0;
std::array<std::atomic<std::int64_t>, kSignals.size()> firstMs{}; // when each signal came first; 0: not yet
static_assert(std::atomic<std::int64_t>::is_always_lock_free);    // the handler uses it
std::array<int, 2> wake{-1, -1}; // the handler writes, a thread reads: little else is allowed in a handler
std::array<struct sigaction, kSignals.size()> before{};
int living = 0;

std::stop_source& source() {
    static auto* stop = new std::stop_source; // the waiting thread may outlive everything static
    return *stop;
}

std::int64_t nowMs() {
    struct timespec now {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000 + 1;
}

void onSignal(int number) {
    const int kept = errno;
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
        if (kSignals[i] != number) continue;
        std::int64_t first = 0;
        const std::int64_t now = nowMs();
        if (!firstMs[i].compare_exchange_strong(first, now) && now - first >= kSameSignalMs) {
            std::signal(number, SIG_DFL); // the signal ends the process when this returns
            (void)std::raise(number);
        }
    }
    cause = number;
    const char byte = 0;
    (void)!write(wake[1], &byte, 1);
    errno = kept;
}

void waitForSignals() {
    for (char byte = 0;;) {
        const ssize_t got = read(wake[0], &byte, 1);
        if (got > 0) source().request_stop();
        if (got == 0 || (got < 0 && errno != EINTR)) return;
    }
}

} // namespace

Interruption::Interruption() {
    if (living++ > 0) return;
    if (wake[0] < 0) {
        if (pipe2(wake.data(), O_CLOEXEC) != 0) return; // the signals keep their own effect
        sigset_t all, kept;                             // the thread takes none of the program's signals
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &kept);
        std::thread(waitForSignals).detach();
        pthread_sigmask(SIG_SETMASK, &kept, nullptr);
    }
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
        sigaction(kSignals[i], nullptr, &before[i]);
        if (before[i].sa_handler == SIG_IGN) continue;
        struct sigaction action {};
        action.sa_handler = onSignal;
        action.sa_flags = SA_RESTART;
        sigaction(kSignals[i], &action, nullptr);
    }
}

Interruption::~Interruption() {
    if (--living > 0 || wake[0] < 0) return;
    if (cause != 0) return; // the program closes its files now, and a second signal must not cut that short
    for (std::size_t i = 0; i < kSignals.size(); ++i)
        if (before[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &before[i], nullptr);
}

std::stop_token Interruption::token() { return source().get_token(); }

int Interruption::exitStatus() { return 128 + (cause != 0 ? int(cause) : SIGINT); }

} // namespace kvscope
