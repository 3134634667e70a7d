#include "app/cli/long_action.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope::cli {
namespace {

std::stop_source interruption;

void onInterrupt(int) {
    std::signal(SIGINT, SIG_DFL);
    interruption.request_stop();
}

std::chrono::milliseconds pauseOfLines() {
    const char* wanted = std::getenv("KVSCOPE_PROGRESS_SECONDS");
    const double seconds = wanted != nullptr ? std::atof(wanted) : 0;
    return std::chrono::milliseconds(seconds > 0 && seconds < 1e6 ? int(seconds * 1000) : 10'000);
}

} // namespace

LongAction::LongAction() : terminal_(isatty(STDERR_FILENO) != 0), pause_(pauseOfLines()) {
    std::signal(SIGINT, onInterrupt);
}

LongAction::~LongAction() {
    clear();
    std::signal(SIGINT, SIG_DFL);
}

std::stop_token LongAction::stop() const { return interruption.get_token(); }

Progress LongAction::part(double from, double to) {
    return [this, from, to](double fraction, std::string_view what) { show(from + (to - from) * fraction, what); };
}

Progress LongAction::stopping(double from, double to) {
    return [stop = stop(), shown = part(from, to)](double fraction, std::string_view what) {
        throwIfCancelled(stop);
        report(shown, fraction, what);
    };
}

void LongAction::show(double fraction, std::string_view what) {
    std::string line = fmt::format("{:3.0f} % {}", 100 * fraction, what);
    if (!terminal_) {
        if (Clock::now() - last_ < pause_) return;
        last_ = Clock::now();
        fmt::print(stderr, "{}\n", line);
        return;
    }
    if (line == shown_) return;
    fmt::print(stderr, "\r{}\x1b[K", line);
    std::fflush(stderr);
    shown_ = std::move(line);
}

std::shared_ptr<const Model> loadModel(const std::string& name, const std::string& calibration) {
    LongAction action;
    return Model::load(name, action.whole(), action.stop(), calibration);
}

void LongAction::clear() {
    if (shown_.empty()) return;
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
    shown_.clear();
}

} // namespace kvscope::cli
