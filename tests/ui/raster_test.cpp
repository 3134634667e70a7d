#include "ui/plots/raster.h"

#include <gtest/gtest.h>
#include <new>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

// Qt gives an image without pixels, and a plot that wrote into it ended the program (kvscope render with little
// memory).
TEST(Raster, AnImageWithoutMemoryIsAnError) {
    EXPECT_EQ(deviceImage({3, 2}).size(), QSize(3, 2));
    EXPECT_TRUE(deviceImage({0, 5}).isNull());
    EXPECT_THROW(deviceImage({1 << 20, 1 << 20}), std::bad_alloc);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
