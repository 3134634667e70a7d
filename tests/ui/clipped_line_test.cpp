// Lines cut at the edges of a rectangle, against every point of them looked at one by one.
#include "ui/plots/clipped_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

const QRectF kArea(10, 20, 100, 50);

double lengthOf(const QPolygonF& line) {
    double sum = 0;
    for (qsizetype i = 0; i + 1 < line.size(); ++i)
        sum += std::hypot(line[i + 1].x() - line[i].x(), line[i + 1].y() - line[i].y());
    return sum;
}

/// By steps of a ten-thousandth of each segment.
double lengthWithin(const QPolygonF& line) {
    constexpr int steps = 10'000;
    double sum = 0;
    for (qsizetype i = 0; i + 1 < line.size(); ++i) {
        int inside = 0;
        for (int step = 0; step < steps; ++step)
            inside += kArea.contains(line[i] + (line[i + 1] - line[i]) * ((step + 0.5) / steps));
        sum += lengthOf({line[i], line[i + 1]}) * inside / steps;
    }
    return sum;
}

TEST(ClippedLine, KeepsWhatIsWithinAndNothingElse) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> x(-40, 160), y(-40, 120);
    int cut = 0;
    for (int round = 0; round < 200; ++round) {
        QPolygonF line;
        for (int i = 0; i < 12; ++i) line << QPointF(x(random), y(random));
        const auto stretches = stretchesWithin(kArea, line);
        double kept = 0;
        for (const QPolygonF& stretch : stretches) {
            kept += lengthOf(stretch);
            for (const QPointF& point : stretch)
                EXPECT_TRUE(kArea.adjusted(-1e-9, -1e-9, 1e-9, 1e-9).contains(point)) << point.x() << ", " << point.y();
        }
        EXPECT_NEAR(kept, lengthWithin(line), 0.5);
        cut += stretches.size() > 1;
    }
    EXPECT_GT(cut, 100) << "most of these lines leave the area and come back";
}

TEST(ClippedLine, StaysOneWhileItIsWithin) {
    const QPolygonF line{{20, 30}, {30, 60}, {50, 25}, {109, 69}};
    EXPECT_EQ(stretchesWithin(kArea, line), std::vector{line});
    EXPECT_EQ(stretchesWithin(kArea, QPolygonF{{20, 30}}).size(), 1u);
    EXPECT_TRUE(stretchesWithin(kArea, QPolygonF{{0, 30}}).empty());
    EXPECT_TRUE(stretchesWithin(kArea, {}).empty());
    EXPECT_TRUE(stretchesWithin(kArea, {{0, 0}, {200, 10}}).empty()) << "it passes above";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
