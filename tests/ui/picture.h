// Pictures of views against kept ones. Both are reduced to the size of a stamp first: fonts and smoothing differ from
// machine to machine, the place and colour of everything else does not.
#pragma once

#include <QColor>
#include <QDir>
#include <QImage>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

/// With KVSCOPE_KEEP_PICTURES=FOLDER what is drawn now is kept as the picture of that name; in the folder it is written
/// in full, to be looked at.
inline void expectPicture(const QImage& drawn, const QString& name) {
    constexpr int kWidth = 125, kHeight = 80;
    constexpr double kMeanTolerance = 4;   // of 255: text in another font moves the mean by about 1
    constexpr double kPlaceTolerance = 40; // of any 5 x 5 pixels of the stamp: a missing bar or cell is more
    const QImage stamp = drawn.scaled(kWidth, kHeight, Qt::IgnoreAspectRatio, Qt::SmoothTransformation)
                             .convertToFormat(QImage::Format_RGB32);
    const QString path = QStringLiteral(KVSCOPE_TEST_DATA "/golden/pictures/%1.png").arg(name);
    if (qEnvironmentVariableIsSet("KVSCOPE_KEEP_PICTURES")) {
        QDir().mkpath(QStringLiteral(KVSCOPE_TEST_DATA "/golden/pictures"));
        ASSERT_TRUE(stamp.save(path));
        ASSERT_TRUE(drawn.save(qEnvironmentVariable("KVSCOPE_KEEP_PICTURES") + QStringLiteral("/%1.png").arg(name)));
    }
    const QImage kept = QImage(path).convertToFormat(QImage::Format_RGB32);
    ASSERT_EQ(kept.size(), stamp.size()) << "there is no picture " << path.toStdString();
    double sum = 0, worst = 0;
    for (int top = 0; top < kHeight; top += 5)
        for (int left = 0; left < kWidth; left += 5) {
            double place = 0;
            for (int y = top; y < top + 5; ++y)
                for (int x = left; x < left + 5; ++x) {
                    const QColor a = stamp.pixelColor(x, y), b = kept.pixelColor(x, y);
                    place += (std::abs(a.red() - b.red()) + std::abs(a.green() - b.green()) +
                              std::abs(a.blue() - b.blue())) /
                             3.;
                }
            sum += place;
            worst = std::max(worst, place / 25);
        }
    EXPECT_LE(sum / (kWidth * kHeight), kMeanTolerance) << name.toStdString();
    EXPECT_LE(worst, kPlaceTolerance) << name.toStdString();
}

} // namespace kvscope::ui
