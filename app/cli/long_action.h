// What a command that takes a while owes the person who waits: how far it is, and an end when asked for one.
#pragma once

#include "core/model/model.h"
#include "core/model/progress.h"

#include <chrono>
#include <string>

namespace kvscope::cli {

/// From its construction on, Ctrl-C stops the action (a second one ends the process), and progress is one line on
/// standard error: rewritten in place where that is a terminal, elsewhere a new one every ten seconds, or as many as
/// KVSCOPE_PROGRESS_SECONDS says. One at a time.
class LongAction {
public:
    LongAction();
    ~LongAction(); // removes the line
    LongAction(const LongAction&) = delete;
    LongAction& operator=(const LongAction&) = delete;

    std::stop_token stop() const;
    /// A part of the whole: its 0..1 is shown as [from, to]. Valid as long as this object.
    Progress part(double from, double to);
    Progress whole() { return part(0, 1); }
    /// The same for actions that take no stop token: each word of progress throws Error(Cancelled) after Ctrl-C.
    Progress stopping(double from = 0, double to = 1);
    /// Removes the line, before something else is printed.
    void clear();

private:
    using Clock = std::chrono::steady_clock;
    void show(double fraction, std::string_view what);
    bool terminal_ = false;
    Clock::duration pause_; // between two lines, elsewhere
    Clock::time_point last_ = Clock::now();
    std::string shown_;
};

/// Model::load for commands that begin with it: shows how far it is, and Ctrl-C ends it with "cancelled".
std::shared_ptr<const Model> loadModel(const std::string& name, const std::string& calibration = {});

} // namespace kvscope::cli
