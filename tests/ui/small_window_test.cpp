// The window on a small screen, such as a laptop's at 200 %: 900 x 600 logical pixels are enough for everything.
#include "tests/ui/window_fixture.h"

#include "ui/widgets/session_form.h"

#include <QLayout>
#include <QScrollArea>

namespace kvscope::ui {
namespace {

class SmallWindow : public WindowTest {
protected:
    /// Widgets that a layout has put over each other, or outside their parent.
    static QStringList collisions(const QWidget& parent) {
        QStringList found;
        QList<const QWidget*> laid;
        for (const QWidget* child : parent.findChildren<QWidget*>(QString(), Qt::FindDirectChildrenOnly))
            if (child->isVisible() && !child->isWindow() && parent.layout() &&
                parent.layout()->indexOf(const_cast<QWidget*>(child)) >= 0)
                laid << child;
        const auto name = [](const QWidget* widget) {
            return QLatin1String(widget->metaObject()->className()) + QLatin1Char(' ') + widget->objectName();
        };
        for (int i = 0; i < laid.size(); ++i) {
            if (!parent.rect().adjusted(-1, -1, 1, 1).contains(laid[i]->geometry()))
                found << name(laid[i]) + QStringLiteral(" reaches out of ") + name(&parent);
            for (int j = i + 1; j < laid.size(); ++j)
                if (laid[i]->geometry().intersects(laid[j]->geometry()))
                    found << name(laid[i]) + QStringLiteral(" lies over ") + name(laid[j]);
        }
        for (const QWidget* child : parent.findChildren<QWidget*>(QString(), Qt::FindDirectChildrenOnly))
            if (child->isVisible() && !child->isWindow()) found << collisions(*child);
        return found;
    }
};

TEST_F(SmallWindow, BecomesAsSmallAsItIsAskedTo) {
    const auto window = windowOnTrace();
    window->resize(900, 600);
    settle(*window);
    EXPECT_EQ(window->size(), QSize(900, 600)) << "what the panels need is " << window->minimumSizeHint().width()
                                               << " x " << window->minimumSizeHint().height();
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        settle(*window);
        EXPECT_EQ(window->size(), QSize(900, 600)) << entry.id << " needs " << window->minimumSizeHint().width()
                                                   << " x " << window->minimumSizeHint().height();
    }
}

TEST_F(SmallWindow, LaysNothingOfTheSessionOverEachOther) {
    const auto window = windowOnTrace();
    for (const QSize size : {QSize(1600, 1000), QSize(960, 600), QSize(900, 600)}) {
        window->resize(size);
        settle(*window);
        EXPECT_EQ(collisions(window->form()).join(QStringLiteral("; ")).toStdString(), "")
            << size.width() << " x " << size.height();
        const auto* scroll = window->form().findChild<QScrollArea*>(QStringLiteral("sessionScroll"));
        EXPECT_LE(scroll->widget()->width(), scroll->viewport()->width()) << "nothing is cut at the side";
        EXPECT_TRUE(window->form().findChild<QWidget*>(QStringLiteral("runButton"))->isVisible());
    }
}

} // namespace
} // namespace kvscope::ui
