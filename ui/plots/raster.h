// For plottables that make their own pixels: how many device pixels a rectangle has on a screen, in a picture or in a
// vector file, and how to draw an image exactly onto them.
#pragma once

#include <QImage>
#include <QRect>

class QCPPainter;

namespace kvscope::ui {

/// Device pixels per logical pixel where the painter draws: the ratio of a screen, the scale of a picture, or 3 for a
/// vector file, which embeds the image.
double deviceScale(const QCPPainter& painter);

/// Size in device pixels of an image that covers `rect`.
QSize deviceSize(const QRect& rect, double scale);

/// An image of so many device pixels, which are not set yet. @throws std::bad_alloc where Qt has no memory for it: Qt
/// itself would give an image without pixels, into which nobody can write
QImage deviceImage(QSize size);

/// Draws an image of the size deviceSize(rect, scale) over `rect`, pixel by pixel and without resampling.
void drawDeviceImage(QCPPainter& painter, const QRect& rect, QImage image, double scale);

} // namespace kvscope::ui
