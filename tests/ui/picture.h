// Pictures of views against kept ones, reduced to stamps and compared by the mean colour of small places. Fonts and
// smoothing differ from machine to machine: they move ink within a place or to its neighbour. A legend that is gone, a
// wrong colour or a bar elsewhere changes what a place holds. tests/ui/pictures_test.cpp tests both.
#pragma once

#include "tests/support/places.h"

#include <QColor>
#include <QDir>
#include <QImage>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvscope::ui {

inline constexpr int kStampWidth = 200, kStampHeight = 128;

inline QImage stampOf(const QImage& picture) {
    return picture.scaled(kStampWidth, kStampHeight, Qt::IgnoreAspectRatio, Qt::SmoothTransformation)
        .convertToFormat(QImage::Format_RGB32);
}

struct PictureDifference {
    double mean = 0, worst = 0; // of 255, over the places
    QPoint where;               // of the worst, in the stamp
    QString places;             // those that differ by 2 and more: where in percent, and each channel's difference
};

/// The difference of two stamps. A place is 8 x 8 pixels, about 40 x 40 of the picture; the largest channel counts.
inline PictureDifference pictureDifference(const QImage& a, const QImage& b) {
    constexpr int kPlace = 8;
    PictureDifference result;
    for (int top = 0; top < kStampHeight; top += kPlace)
        for (int left = 0; left < kStampWidth; left += kPlace) {
            std::array<double, 3> sum{};
            for (int y = top; y < top + kPlace; ++y)
                for (int x = left; x < left + kPlace; ++x) {
                    const QRgb p = a.pixel(x, y), q = b.pixel(x, y);
                    sum[0] += qRed(p) - qRed(q), sum[1] += qGreen(p) - qGreen(q), sum[2] += qBlue(p) - qBlue(q);
                }
            double place = 0;
            for (const double channel : sum) place = std::max(place, std::abs(channel) / (kPlace * kPlace));
            result.mean += place;
            if (place > result.worst) result.worst = place, result.where = {left, top};
            if (place >= 2)
                result.places += QStringLiteral(" (%1 %, %2 %: %3 %4 %5)")
                                     .arg(left * 100 / kStampWidth)
                                     .arg(top * 100 / kStampHeight)
                                     .arg(sum[0] / (kPlace * kPlace), 0, 'f', 1)
                                     .arg(sum[1] / (kPlace * kPlace), 0, 'f', 1)
                                     .arg(sum[2] / (kPlace * kPlace), 0, 'f', 1);
        }
    result.mean /= (kStampWidth / kPlace) * (kStampHeight / kPlace);
    return result;
}

// Everything 2 % smaller and elsewhere moves the mean by less than 1 and a place by 12; a legend of one line that is
// gone, or bars of another colour, change a place by 15 and more.
inline constexpr double kMeanTolerance = 3, kPlaceTolerance = 14;

/// Compares a drawing with the kept picture of the name. With KVSCOPE_KEEP_PICTURES=FOLDER the drawing is kept as that
/// picture, and written into the folder in full size. A drawing that differs is written into the folder for temporary
/// files.
inline void expectPicture(const QImage& drawn, const QString& name) {
    const QString folder = QString::fromStdString(test::source("tests/golden/pictures")),
                  path = folder + "/" + name + ".png";
    const QImage stamp = stampOf(drawn);
    if (qEnvironmentVariableIsSet("KVSCOPE_KEEP_PICTURES")) {
        QDir().mkpath(folder);
        ASSERT_TRUE(stamp.save(path));
        ASSERT_TRUE(drawn.save(qEnvironmentVariable("KVSCOPE_KEEP_PICTURES") + QStringLiteral("/%1.png").arg(name)));
    }
    if (!QDir(folder).exists()) GTEST_SKIP() << "tools/small_checkout.sh leaves the pictures out";
    const QImage kept = QImage(path).convertToFormat(QImage::Format_RGB32);
    ASSERT_EQ(kept.size(), stamp.size()) << "there is no picture " << path.toStdString();
    const PictureDifference difference = pictureDifference(stamp, kept);
    if (difference.mean <= kMeanTolerance && difference.worst <= kPlaceTolerance) return;
    const QString seen = QDir::temp().filePath(QStringLiteral("kvscope-actual-%1.png").arg(name));
    drawn.save(seen);
    ADD_FAILURE() << name.toStdString() << " differs by " << difference.mean << " on average and " << difference.worst
                  << " at (" << difference.where.x() * 100 / kStampWidth << " %, "
                  << difference.where.y() * 100 / kStampHeight << " %); what was drawn is in " << seen.toStdString()
                  << "; drawn less kept, red, green, blue:" << difference.places.left(1200).toStdString();
}

} // namespace kvscope::ui
