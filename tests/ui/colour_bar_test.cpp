// The bar of colours beside a panel.
#include "ui/plots/colour_bar.h"

#include "ui/plots/plot_canvas.h"

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(ColourBar, IsAsHighAsItsPanelWhateverItsMargins) {
    PlotCanvas canvas;
    canvas.resize(500, 300);
    QCPAxisRect* panel = canvas.addPanel(true);
    QCPColorScale* bar = addColourBar(canvas, 0, 1, panel);
    const auto expectAligned = [&](int height) {
        canvas.resize(500, height);
        canvas.replot();
        const QRect colours = bar->axis()->axisRect()->rect();
        EXPECT_GT(colours.height(), 100);
        EXPECT_EQ(colours.top(), panel->top()) << height;
        EXPECT_EQ(colours.bottom(), panel->bottom()) << height;
        EXPECT_GT(colours.left(), panel->right());
    };
    expectAligned(300);
    bar->setMarginGroup(QCP::msTop | QCP::msBottom, nullptr);
    bar->setMinimumMargins(QMargins(0, 40, 0, 30));
    expectAligned(300);
    expectAligned(280);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
