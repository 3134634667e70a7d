// The threads that read and check traces behind a window.
#pragma once

namespace kvscope::ui {

/// Background threads that begin from now on run at low priority, so that views go before them and a session before
/// both. The desktop calls it. A program that makes pictures or reports waits for these threads, and they keep the
/// program's priority: beside other work on the machine one at low priority takes many times as long.
void letBackgroundThreadsYield();

/// Called by a background thread when it begins. name: at most 15 characters; nice: how much the priority of this
/// thread alone is lowered, where background threads yield.
void beginBackgroundThread(const char* name, int nice);

} // namespace kvscope::ui
