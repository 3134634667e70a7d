// Background threads yield in the desktop, and nowhere else.
#include "ui/frame/background_thread.h"

#include <gtest/gtest.h>
#include <thread>

#include <sys/resource.h>
#include <unistd.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

int niceOfAThread() {
    int nice = -1;
    std::thread([&] {
        beginBackgroundThread("kvscope-test", 7);
        nice = getpriority(PRIO_PROCESS, id_t(gettid()));
    }).join();
    return nice;
}

TEST(BackgroundThread, YieldsWhereTheDesktopAskedForIt) {
    const int before = getpriority(PRIO_PROCESS, 0);
    EXPECT_EQ(niceOfAThread(), before);
    EXPECT_EXIT(
        {
            letBackgroundThreadsYield(); // in a process of its own: it stays so
            _exit(niceOfAThread() == 7 ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
