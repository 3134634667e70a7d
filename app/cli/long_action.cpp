#include "app/cli/long_action.h"
#include "app/terminal/output.h"

#include "core/calibrate/calibrate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope::cli {
namespace {

Prints printed = Prints::Text;
std::string remarkOfCommand;

/// The seconds that a person asked for.
std::optional<double> secondsOf(const char* wanted) {
    if (wanted == nullptr) return {};
    char* end = nullptr;
    const double seconds = std::strtod(wanted, &end);
    if (end == wanted || *end != 0 || std::isnan(seconds)) return {};
    return seconds;
}

} // namespace

std::optional<std::chrono::milliseconds> pauseOfLines(const char* wanted, Prints prints) {
    constexpr double kMost = 1e6; // days, without overflow
    const std::optional<double> seconds = secondsOf(wanted);
    if (!seconds && prints == Prints::Document) return {};
    if (seconds && *seconds <= 0) return {};
    return std::chrono::milliseconds(std::int64_t(1000 * std::min(seconds.value_or(10), kMost)));
}

void commandPrints(Prints what) { printed = what; }

void setCommandRemark(std::string remark) { remarkOfCommand = std::move(remark); }
const std::string& commandRemark() { return remarkOfCommand; }

LongAction::LongAction()
    : terminal_(isatty(STDERR_FILENO) != 0),
      pause_(pauseOfLines(std::getenv("KVSCOPE_PROGRESS_SECONDS"), terminal_ ? Prints::Text : printed)) {}

LongAction::~LongAction() { clear(); }

std::stop_token LongAction::stop() const { return Interruption::token(); }

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
    if (!pause_) return;
    std::string line = fmt::format("{:3.0f} % {}", 100 * fraction, what);
    if (!terminal_) {
        if (Clock::now() - last_ < *pause_) return;
        last_ = Clock::now();
        printErr("{}\n", line);
        return;
    }
    if (line == shown_) return;
    writeErrAsIs(fmt::format("\r{}\x1b[K", shownSafely(line)));
    shown_ = std::move(line);
}

std::shared_ptr<const Model> loadModel(const std::string& name, const std::string& calibration) {
    // refused before the model is loaded, which takes minutes for a large one
    if (!calibration.empty()) checkCalibration(calibration);
    LongAction action;
    return Model::load(name, action.whole(), action.stop(), calibration);
}

void LongAction::clear() {
    if (shown_.empty()) return;
    writeErrAsIs("\r\x1b[K");
    shown_.clear();
}

} // namespace kvscope::cli
