#include "ui/frame/background_thread.h"

#include <atomic>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace kvscope::ui {
namespace {

std::atomic<bool> yields{false};

} // namespace

void letBackgroundThreadsYield() { yields = true; }

void beginBackgroundThread(const char* name, int nice) {
    pthread_setname_np(pthread_self(), name);
    if (yields) setpriority(PRIO_PROCESS, id_t(gettid()), nice); // of this thread only, on Linux
}

} // namespace kvscope::ui
