// Progress and an orderly end for commands that take a while.
#pragma once

#include "app/terminal/interruption.h"
#include "base/progress.h"
#include "core/model/model.h"

#include <chrono>
#include <optional>
#include <string>

namespace kvscope::cli {

enum class Prints : bool { Text, Document };

/// How long a LongAction waits between two lines of progress where nobody watches; nothing: it writes none.
/// @param wanted what KVSCOPE_PROGRESS_SECONDS says: 0 or less is none. Where it is not set or no number, texts have a
/// line every ten seconds and JSON documents, which programs ask for, have none.
std::optional<std::chrono::milliseconds> pauseOfLines(const char* wanted, Prints prints);

/// Says what the command prints. It holds for all of the command's actions; call it before the first one.
void commandPrints(Prints what);

/// Sets what the program adds to its last sentence when standard output could not take all text: what succeeded
/// nevertheless, such as "the recording went on to its end".
void setCommandRemark(std::string remark);
const std::string& commandRemark();

/// While it lives, Ctrl-C and the signals that end a program stop the action (a second one half a second later ends the
/// process), and progress is shown on standard error. On a terminal that is one line, rewritten in place, unless
/// KVSCOPE_PROGRESS_SECONDS says none; elsewhere it is a new line after every pauseOfLines(). Only one may live at a
/// time.
class LongAction {
public:
    LongAction();
    ~LongAction(); // removes the line
    LongAction(const LongAction&) = delete;
    LongAction& operator=(const LongAction&) = delete;

    std::stop_token stop() const;
    /// The progress of a part of the action: its 0..1 is shown as [from, to] of the whole. Valid as long as this
    /// object.
    Progress part(double from, double to);
    Progress whole() { return part(0, 1); }
    /// A progress for actions that take no stop token: after Ctrl-C its next call throws Error(Cancelled).
    Progress stopping(double from = 0, double to = 1);
    /// Removes the line of progress. Call it before something else is printed.
    void clear();

private:
    using Clock = std::chrono::steady_clock;
    Interruption interruption_;
    void show(double fraction, std::string_view what);
    bool terminal_ = false;
    std::optional<Clock::duration> pause_; // between two lines where there is no terminal; none: they are not shown
    Clock::time_point last_ = Clock::now();
    std::string shown_;
};

/// Model::load for commands that begin with it: shows how far it is, and Ctrl-C ends it with "cancelled".
std::shared_ptr<const Model> loadModel(const std::string& name, const std::string& calibration = {});

} // namespace kvscope::cli
