// Ctrl-C (SIGINT), SIGTERM and SIGHUP as one stop token, so that a program that is ended from outside ends in order.
#pragma once

#include <stop_token>

namespace kvscope {

/// While one lives, the first of these signals requests the stop. One of the same kind that comes half a second later
/// ends the process; a sooner one is the first one that came twice, and does nothing.
/// A signal that was ignored when the program began (SIGHUP under nohup) stays ignored. The token is the same for all:
/// once stopped, the process stays stopped. One thread makes and destroys them.
class Interruption {
public:
    Interruption();
    ~Interruption(); // the signals do again what they did before the outermost one, unless one came
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;

    static std::stop_token token();
    /// 128 + the signal that came, as a shell reports it; 130 if none did.
    static int exitStatus();
};

} // namespace kvscope
