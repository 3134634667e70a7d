#include "ui/plots/raster.h"

#include <qcustomplot.h>

#include <algorithm>
#include <cmath>
#include <new>

namespace kvscope::ui {

double deviceScale(const QCPPainter& painter) {
    if (painter.modes().testFlag(QCPPainter::pmVectorized)) return 3;
    const double transform = std::hypot(painter.worldTransform().m11(), painter.worldTransform().m12());
    const double device = painter.device() ? painter.device()->devicePixelRatioF() : 1;
    return std::clamp(transform * device, 0.25, 8.0);
}

QSize deviceSize(const QRect& rect, double scale) {
    return {std::max(1, int(std::lround(rect.width() * scale))), std::max(1, int(std::lround(rect.height() * scale)))};
}

QImage deviceImage(QSize size) {
    QImage image(size, QImage::Format_ARGB32_Premultiplied);
    if (image.isNull() && !size.isEmpty()) throw std::bad_alloc();
    return image;
}

void drawDeviceImage(QCPPainter& painter, const QRect& rect, QImage image, double scale) {
    image.setDevicePixelRatio(scale);
    painter.drawImage(QPointF(rect.topLeft()), image);
}

} // namespace kvscope::ui
