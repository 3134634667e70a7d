// The canvas that all plots share, without a view around it.
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"

#include <QImage>

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(PlotCanvas, PaintsAllOfItselfBeforeItIsDrawnInItsNewSize) {
    for (const Theme* theme : {&Theme::light(), &Theme::dark()}) {
        PlotCanvas canvas;
        canvas.applyTheme(*theme);
        canvas.resize(400, 300);
        canvas.grab();
        canvas.replot();
        canvas.resize(460, 340); // the plot follows when events are handled
        const QImage picture = canvas.grab().toImage();
        for (const QPoint corner : {QPoint(5, 5), QPoint(455, 5), QPoint(5, 335), QPoint(455, 335)})
            EXPECT_EQ(picture.pixelColor(corner), theme->plotBackground) << corner.x() << ", " << corner.y();
    }
}

TEST(PlotCanvas, HasItsGroundToTheLastRowAndColumn) {
    PlotCanvas canvas;
    canvas.applyTheme(Theme::light());
    canvas.resize(400, 300);
    canvas.grab();
    canvas.replot();
    const QImage picture = canvas.grab().toImage();
    for (int x = 0; x < picture.width(); ++x)
        ASSERT_EQ(picture.pixelColor(x, picture.height() - 1), Theme::light().plotBackground) << x;
    for (int y = 0; y < picture.height(); ++y)
        ASSERT_EQ(picture.pixelColor(picture.width() - 1, y), Theme::light().plotBackground) << y;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
