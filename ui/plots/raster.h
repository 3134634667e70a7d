// Where a plottable that renders its own pixels must put them: device pixels, exactly, on screens, pictures and paper.
#pragma once

#include <QImage>
#include <QRect>

class QCPPainter;

namespace kvscope::ui {

/// Device pixels per logical pixel of what the painter draws on: the screen's ratio, the scale of a picture, and a
/// finer grid for vector files, where an image is embedded.
double deviceScale(const QCPPainter& painter);

/// Size in device pixels of an image that covers `rect`.
QSize deviceSize(const QRect& rect, double scale);

/// Draws an image of deviceSize(rect, scale) over rect without resampling.
void drawDeviceImage(QCPPainter& painter, const QRect& rect, QImage image, double scale);

} // namespace kvscope::ui
