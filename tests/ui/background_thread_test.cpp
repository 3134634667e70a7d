// The threads behind the window leave the processor to others; this program asks for it as the desktop does.
#include "ui/frame/background_thread.h"

#include <gtest/gtest.h>
#include <thread>

#include <sys/resource.h>
#include <unistd.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(BackgroundThread, AloneHasTheLowerPriority) {
    const int before = getpriority(PRIO_PROCESS, 0);
    int nice = -1;
    std::thread([&] {
        beginBackgroundThread("kvscope-test", before + 3);
        nice = getpriority(PRIO_PROCESS, id_t(gettid()));
    }).join();
    EXPECT_EQ(nice, before + 3);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
