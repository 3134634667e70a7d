#include "bench/ui/timeline_tour.h"

#include "bench/machine.h"
#include "ui/timeline/timeline_canvas.h"

#include <QApplication>
#include <QKeyEvent>
#include <QWheelEvent>

namespace kvscope::bench {

namespace {

double frame(ui::TimelineCanvas& canvas, QEvent& event) {
    return 1e3 * seconds([&] {
               QApplication::sendEvent(&canvas, &event);
               canvas.repaint();
           });
}

} // namespace

double turnWheel(ui::TimelineCanvas& canvas, int clicks, double x) {
    const QPointF at(x, canvas.areas().body.center().y());
    QWheelEvent event(at, canvas.mapToGlobal(at), {}, {0, 120 * clicks}, Qt::NoButton, {}, Qt::NoScrollPhase, false);
    return frame(canvas, event);
}

double pressKey(ui::TimelineCanvas& canvas, int key) {
    QKeyEvent event(QEvent::KeyPress, key, {});
    return frame(canvas, event);
}

std::vector<double> timelineTour(ui::TimelineCanvas& canvas) {
    std::vector<double> frames;
    const QRect body = canvas.areas().body;
    for (const double place : {0.5, 0.13, 0.82, 0.37}) {
        const double x = body.left() + body.width() * place;
        for (int i = 0; i < 50; ++i) {
            frames.push_back(turnWheel(canvas, 1, x));
            if (i % 10 == 9)
                for (int pan = 0; pan < 12; ++pan) frames.push_back(pressKey(canvas, pan < 6 ? Qt::Key_D : Qt::Key_A));
        }
        for (int i = 0; i < 50; ++i) frames.push_back(turnWheel(canvas, -1, x));
    }
    return frames;
}

} // namespace kvscope::bench
