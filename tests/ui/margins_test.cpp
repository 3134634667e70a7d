// The margins of a heatmap take their room only where enough is left for the heatmap.
#include "ui/plots/margins.h"
#include "ui/plots/plot_canvas.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(MarginsTest, GiveWayToWhatElseStandsAboveTheHeatmap) {
    PlotCanvas plot;
    QCPAxisRect* main = plot.addPanel(true);
    Margins margins(
        plot, main, [](int pixels) { return std::vector<float>(std::size_t(pixels), 1.f); }, nullptr);
    plot.resize(600, 350);
    plot.show();
    QCoreApplication::processEvents();
    EXPECT_TRUE(margins.shown());
    margins.setLeastHeight(430); // for a view with lanes above its heatmap
    EXPECT_FALSE(margins.shown());
    plot.replot();
    EXPECT_GT(main->rect().height(), 350 * 2 / 3);
    plot.resize(600, 440);
    QCoreApplication::processEvents();
    EXPECT_TRUE(margins.shown());
    margins.setWanted(false);
    EXPECT_FALSE(margins.shown());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
