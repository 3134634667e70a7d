// The view Serving: lanes, colours, order, what a click on an iteration says.
#include "tests/ui/view_fixture.h"

#include "tests/profiler/synthetic_serving.h"

#include "profiler/read/serving.h"
#include "ui/plots/lane_plottable.h"

#include <QComboBox>
#include <QLabel>
#include <QToolTip>

#include <gmock/gmock.h>

namespace kvscope::ui {
namespace {

class ServingViewTest : public ViewTest {
protected:
    void openServed(int requests = 12) {
        synthetic::recordServing(folder / "served.kvtrace", requests);
        open(file("served.kvtrace"));
        show("serving", {1200, 800});
    }
    QPoint pixel(double ns, double lane, int panel = 0) {
        QCPAxisRect* rect = canvas().panels()[std::size_t(panel)];
        return {int(rect->axis(QCPAxis::atBottom)->coordToPixel(ns)),
                int(rect->axis(QCPAxis::atLeft)->coordToPixel(lane))};
    }
    QColor colourAt(double ns, double lane) {
        canvas().replot();
        const QPixmap picture = canvas().grab();
        const QImage image = picture.toImage();
        return image.pixelColor(pixel(ns, lane) * picture.devicePixelRatio());
    }
    QString chosen() { return view->findChild<QLabel*>(QStringLiteral("chosenIteration"))->text(); }
};

TEST_F(ServingViewTest, DrawsEachRequestInTheColourOfItsState) {
    openServed();
    EXPECT_EQ(plot().emptyText(), QString());
    const Theme& theme = Theme::light();
    const TraceReader reader(file("served.kvtrace").toStdString());
    int seen = 0;
    const QColor colours[] = {theme.undefinedCell, theme.runB, theme.ok, theme.miss};
    for (const RequestSpanRow& span : readServing(reader, 1).spans) {
        if (span.endNs - span.startNs < synthetic::kIterationNs) continue;
        const QColor found = colourAt(double(span.startNs + span.endNs) / 2, double(span.request));
        EXPECT_EQ(found.rgb(), colours[int(span.state)].rgb()) << span.request << " " << nameOf(span.state);
        ++seen;
    }
    EXPECT_GT(seen, 20);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("12 requests")));
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("One token came later")));
    EXPECT_EQ(view->exportCsv().count('\n'), 13);
}

TEST_F(ServingViewTest, SaysWhomAnIterationServed) {
    openServed();
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, pixel(2.4 * double(synthetic::kIterationNs), 5));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("Iteration 2 took"))) << chosen().toStdString();
    EXPECT_TRUE(chosen().contains(QStringLiteral("request 0 decoded (1 miss, 4 KiB)"))) << chosen().toStdString();
    EXPECT_TRUE(chosen().contains(QStringLiteral("request 2 read 120 tokens")));
    canvas().setFocus();
    QTest::keyClick(&canvas(), Qt::Key_Right);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("Iteration 3 took"))) << chosen().toStdString();
}

TEST_F(ServingViewTest, SortsLanesByTheLongestGap) {
    openServed();
    auto* order = view->findChild<QComboBox*>(QStringLiteral("order"));
    ASSERT_NE(order, nullptr);
    order->setCurrentIndex(2);
    // Request 2, which was paused, comes first.
    const TraceReader reader(file("served.kvtrace").toStdString());
    for (const RequestSpanRow& span : readServing(reader, 1).spans)
        if (span.state == ServedState::Paused) {
            EXPECT_EQ(colourAt(double(span.startNs + span.endNs) / 2, 0).rgb(), Theme::light().miss.rgb());
        }
}

TEST_F(ServingViewTest, SaysThatAnOrdinaryRunServedNobody) {
    open(recorded("plain.kvtrace", {}));
    show("serving");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("served no requests")));
}

TEST_F(ServingViewTest, TeachesWhenNoRunIsOpen) {
    show("serving");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("No run is open")));
    EXPECT_TRUE(view->exportCsv().isEmpty());
}

} // namespace
} // namespace kvscope::ui
