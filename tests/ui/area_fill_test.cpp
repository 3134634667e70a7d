// The area below a curve, filled in pieces: the same pixels as one polygon's, none of them twice.
#include "ui/plots/area_fill.h"

#include <QImage>
#include <gtest/gtest.h>
#include <qcustomplot.h>
#include <random>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

constexpr int kWidth = 400, kHeight = 120;

QImage drawn(const QPolygonF& line, double base, bool pieces) {
    QImage image(kWidth, kHeight, QImage::Format_RGB32);
    image.fill(Qt::white);
    QCPPainter painter(&image);
    painter.setBrush(QColor(0, 0, 255, 80));
    if (pieces) {
        painter.setAntialiasing(true); // as a plottable may have it
        fillBelow(painter, line, base);
        EXPECT_TRUE(painter.antialiasing()) << "as it was";
    } else {
        QPolygonF body = line;
        body << QPointF(line.last().x(), base) << QPointF(line.first().x(), base);
        painter.setAntialiasing(false);
        painter.setPen(Qt::NoPen);
        painter.drawPolygon(body);
    }
    return image;
}

TEST(AreaFill, HasThePixelsOfTheWholePolygonEachOnce) {
    std::mt19937 random(4);
    for (const int points : {2, 3, 9, 10, 100, 797}) {
        QPolygonF line;
        for (int i = 0; i < points; ++i)
            line << QPointF(5.3 + 380.0 * i / (points - 1), 4 + double(random() % 1000) / 10);
        const QImage whole = drawn(line, 110, false), pieces = drawn(line, 110, true);
        int filled = 0, other = 0;
        for (int y = 0; y < kHeight; ++y)
            for (int x = 0; x < kWidth; ++x) {
                const QRgb one = whole.pixel(x, y), two = pieces.pixel(x, y);
                EXPECT_TRUE(two == qRgb(255, 255, 255) || two == qRgb(175, 175, 255)) << "blended twice at " << x;
                filled += one != qRgb(255, 255, 255);
                other += one != two;
            }
        EXPECT_GT(filled, 1000) << points;
        EXPECT_LE(other, filled / 50) << points << " points: along the curve rounding may differ";
    }
}

TEST(AreaFill, OfOnePointIsNothing) {
    QPolygonF line;
    line << QPointF(20, 20);
    QImage empty(kWidth, kHeight, QImage::Format_RGB32);
    empty.fill(Qt::white);
    EXPECT_EQ(drawn(line, 110, true), empty);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
