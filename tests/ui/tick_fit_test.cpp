// What stands beside an axis fits beside it: fewer ticks and shorter titles where a panel is low or narrow.
#include "ui/frame/units.h"
#include "ui/plots/log_axis.h"
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
    QCPAxis& across() { return *plot.axisRect()->axis(QCPAxis::atBottom); }
    void drawAt(int width) {
        plot.setViewport({0, 0, width, 300});
        plot.replot();
    }
    /// The first two labels of the horizontal axis that overlap; empty if none do.
    QString overlapping() {
        const QFontMetrics metrics(across().tickLabelFont());
        const QVector<QString> labels = across().tickVectorLabels();
        double end = -1e9;
        for (qsizetype i = 0; i < labels.size(); ++i) {
            if (labels[i].isEmpty()) continue;
            const double at = across().coordToPixel(across().tickVector()[i]);
            const double half = metrics.horizontalAdvance(labels[i]) / 2.0;
            if (at - half < end) return labels[i - 1] + QStringLiteral(" and ") + labels[i];
            end = at + half;
        }
        return {};
    }
    qsizetype labels() {
        const QVector<QString> all = across().tickVectorLabels();
        return all.size() - all.count(QString());
    }
    void expectNoOverlap(const char* what) {
        for (const int width : {600, 400, 300, 220, 180, 150}) {
            drawAt(width);
            EXPECT_EQ(overlapping(), QString()) << what << " at " << width;
            EXPECT_GE(labels(), 1) << what << " at " << width;
        }
        drawAt(150);
        const qsizetype few = labels();
        drawAt(1000);
        EXPECT_GT(labels(), few) << what << ": the ticks come back with the room";
    }
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

TEST_F(TickFit, LabelsAcrossNeverOverlap) {
    across().setRange(1'200'000, 1'268'000);
    setIntegerAxis(&across(), QStringLiteral("Decode step"));
    expectNoOverlap("whole numbers");
    setUnitAxis(&across(), QStringLiteral("Moved"), Unit::Count);
    expectNoOverlap("a unit");
    across().setRange(1, 20.4);
    setLogAxis(&across(), QStringLiteral("Context (tokens)"), 2);
    expectNoOverlap("powers of two");
    across().setRange(0.2, 6.9);
    setLogAxis(&across(), QStringLiteral("Latency (ms)"), 10);
    expectNoOverlap("powers of ten");
    across().setRange(1.05, 3.3);
    setLogAxis(&across(), QStringLiteral("Latency (ms)"), 10);
    expectNoOverlap("1, 2 and 5");
    QStringList names;
    for (int i = 0; i < 24; ++i) names << QStringLiteral("layer %1").arg(i);
    across().setRange(-0.5, 23.5);
    setNamedAxis(&across(), QStringLiteral("Layer"), names);
    expectNoOverlap("names");
}

TEST_F(TickFit, WhatFitsKeepsTheTicksThatItsOwnerAskedFor) {
    across().setRange(0, 100);
    setIntegerAxis(&across(), QStringLiteral("Decode step"));
    const int asked = across().ticker()->tickCount();
    drawAt(500);
    EXPECT_EQ(across().ticker()->tickCount(), asked);
    const qsizetype many = labels();
    // The same axis with longer numbers needs more room, and gives it back.
    across().setRange(10'000'000, 10'000'100);
    drawAt(260);
    EXPECT_EQ(overlapping(), QString());
    EXPECT_LT(labels(), many);
    across().setRange(0, 100);
    drawAt(500);
    EXPECT_EQ(labels(), many);
    across().ticker()->setTickCount(2); // another wish
    drawAt(500);
    EXPECT_EQ(across().ticker()->tickCount(), 2);
}

TEST_F(TickFit, ALogarithmicAxisWithLittleRoomHasEveryThirdPower) {
    across().setRange(0, 9);
    setLogAxis(&across(), QStringLiteral("Batch"), 2);
    across().ticker()->setTickCount(4);
    drawAt(600);
    EXPECT_EQ(across().tickVectorLabels(), (QVector<QString>{"1", "8", "64", "512"}));
}

TEST_F(TickFit, ATitleBelowANarrowPlotIsShortened) {
    const QString title = QStringLiteral("Transferred with the next step (MiB)");
    across().setLabel(title);
    drawAt(600);
    EXPECT_EQ(across().label(), title);
    drawAt(150);
    EXPECT_EQ(across().label(), QStringLiteral("(MiB)"));
    drawAt(600);
    EXPECT_EQ(across().label(), title);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
