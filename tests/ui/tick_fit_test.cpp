// What stands beside a value axis fits beside it: fewer ticks and shorter titles where a panel is low.
#include "ui/plots/tick_fit.h"

#include <gtest/gtest.h>
#include <qcustomplot.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TickFit : public ::testing::Test {
protected:
    TickFit() { fitTicksToRoom(plot); }
    QString titleAt(int height, const QString& title) {
        plot.setViewport({0, 0, 500, height});
        axis().setLabel(title);
        plot.replot();
        return axis().label();
    }
    QCPAxis& axis() { return *plot.axisRect()->axis(QCPAxis::atLeft); }
    QCustomPlot plot;
};

TEST_F(TickFit, TitlesAreShortenedTheUnitLast) {
    const QString title = QStringLiteral("A: time of the step (ms)");
    EXPECT_EQ(titleAt(600, title), title);
    EXPECT_EQ(titleAt(130, title), QStringLiteral("A (ms)"));
    EXPECT_EQ(titleAt(80, title), QStringLiteral("(ms)"));
    const QString plain = titleAt(130, QStringLiteral("Locality of all layers and all KV heads"));
    EXPECT_TRUE(plain.startsWith(QStringLiteral("Local"))) << plain.toStdString();
    EXPECT_TRUE(plain.endsWith(QStringLiteral("…"))) << plain.toStdString();
}

TEST_F(TickFit, TitlesComeBackWithTheRoomAndChangeWithTheirOwner) {
    const QString title = QStringLiteral("A: time of the step (ms)");
    titleAt(130, title);
    plot.setViewport({0, 0, 500, 600});
    plot.replot();
    EXPECT_EQ(axis().label(), title);
    plot.setViewport({0, 0, 500, 30}); // no room for anything, but the title is not forgotten
    plot.replot();
    plot.setViewport({0, 0, 500, 600});
    plot.replot();
    EXPECT_EQ(axis().label(), title);
    axis().setLabel(QStringLiteral("Hits"));
    plot.replot();
    EXPECT_EQ(axis().label(), QStringLiteral("Hits"));
    axis().setLabel({});
    plot.replot();
    EXPECT_EQ(axis().label(), QString());
}

TEST_F(TickFit, ALowPanelHasFewTicks) {
    axis().setRange(0, 100);
    plot.setViewport({0, 0, 500, 600});
    plot.replot();
    const auto many = axis().tickVector().size();
    plot.setViewport({0, 0, 500, 110});
    plot.replot();
    EXPECT_LT(axis().tickVector().size(), many);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
