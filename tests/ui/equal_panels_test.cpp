// Panels of equal weight are equally high, though only the last one has numbers and a title below it.
#include "ui/plots/equal_panels.h"
#include "ui/plots/plot_canvas.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(EqualPanels, AreEquallyHighAtEverySize) {
    PlotCanvas plot;
    QList<QCPAxisRect*> panels;
    for (int i = 0; i < 4; ++i) {
        panels << plot.addPanel(false);
        panels.back()->axis(QCPAxis::atBottom)->setTickLabels(i == 3);
    }
    panels.back()->axis(QCPAxis::atBottom)->setLabel(QStringLiteral("Decode step"));
    const auto lay = [&](int height) {
        plot.resize(500, height);
        plot.setViewport(plot.rect()); // which a plot that is not shown does not do
        plot.replot();
    };
    lay(500);
    ASSERT_GT(panels.front()->rect().height() - panels.back()->rect().height(), 10) << "what is to be mended";
    keepEquallyHigh(plot, panels);
    for (const int height : {400, 700, 420, 500}) { // in less, what a panel needs at least decides
        lay(height);
        for (const QCPAxisRect* panel : panels)
            EXPECT_LE(std::abs(panel->rect().height() - panels.front()->rect().height()), 2) << height;
        EXPECT_LE(panels.back()->outerRect().bottom(), height);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
