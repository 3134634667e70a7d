// The pickers above a plot in views of all sizes: the plot keeps its height, and every picker can be reached.
#include "tests/ui/view_fixture.h"

#include "ui/plots/tool_strip.h"

#include <QCheckBox>
#include <QComboBox>
#include <QToolButton>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class Tools : public ViewTest {
protected:
    void showLocality(QSize size) {
        if (!workspace.current()) open(recorded("a.kvtrace", {}));
        show("locality", size);
        strip = nullptr;
        for (QWidget* each : view->findChildren<QWidget*>())
            if (auto* found = dynamic_cast<ToolStrip*>(each)) strip = found;
        ASSERT_NE(strip, nullptr);
    }
    QToolButton& more() { return child<QToolButton>("moreTools"); }
    bool inSight(const QWidget& tool) {
        return strip->rect().contains(QRect(tool.mapTo(strip, QPoint()), tool.size()).adjusted(2, 2, -2, -2));
    }
    QList<QWidget*> tools() {
        QList<QWidget*> all;
        for (QComboBox* picker : strip->findChildren<QComboBox*>()) all << picker;
        all << &child<QCheckBox>("margins");
        return all;
    }

    ToolStrip* strip = nullptr;
};

TEST_F(Tools, AllStandInTheOpenWhereThereIsRoom) {
    showLocality({1000, 640});
    EXPECT_FALSE(more().isVisible());
    for (const QWidget* tool : tools()) EXPECT_TRUE(inSight(*tool)) << tool->objectName().toStdString();
}

TEST_F(Tools, FoldToOneRowInASmallViewAndComeBack) {
    showLocality({430, 460});
    ASSERT_TRUE(more().isVisible());
    EXPECT_TRUE(inSight(more()));
    EXPECT_LE(strip->height(), 40);
    EXPECT_GE(canvas().height(), 460 * 60 / 100) << "most of the view is the plot";
    EXPECT_TRUE(inSight(*tools().front())) << "the first one is always there";
    QTest::mouseClick(&more(), Qt::LeftButton);
    QCoreApplication::processEvents();
    for (const QWidget* tool : tools()) EXPECT_TRUE(inSight(*tool)) << tool->objectName().toStdString();
    EXPECT_TRUE(inSight(more()));
    QTest::mouseClick(&more(), Qt::LeftButton);
    QCoreApplication::processEvents();
    EXPECT_LE(strip->height(), 40);
    view->resize(1000, 640);
    QCoreApplication::processEvents();
    EXPECT_FALSE(more().isVisible());
    for (const QWidget* tool : tools()) EXPECT_TRUE(inSight(*tool)) << tool->objectName().toStdString();
}

TEST_F(Tools, APickerThatGetsTheKeyboardIsSeen) {
    showLocality({430, 460});
    view->activateWindow();
    ASSERT_TRUE(QTest::qWaitForWindowActive(view.get()));
    QWidget* last = tools().back();
    ASSERT_FALSE(inSight(*last));
    last->setFocus(Qt::TabFocusReason);
    QCoreApplication::processEvents();
    EXPECT_TRUE(last->hasFocus());
    EXPECT_TRUE(inSight(*last));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
