// The timeline in the window: what it tells the inspector and the SQL page, and what is remembered.
#include "tests/ui/window_fixture.h"

#include "ui/timeline/timeline_canvas.h"
#include "ui/views/timeline/timeline_view.h"
#include "ui/widgets/inspector.h"

#include <QFileInfo>
#include <QMenu>
#include <QPlainTextEdit>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineWindow : public WindowTest {
protected:
    TimelineView& timeline(MainWindow& window) {
        trigger(window, "view_timeline");
        settle(window);
        auto* view = window.findChild<TimelineView*>();
        if (!view) throw std::runtime_error("the window has no timeline");
        return *view;
    }
    static TimelineCanvas& canvas(TimelineView& view) { return *view.findChild<TimelineCanvas*>(); }
    /// The middle of the first span with this name at a step.
    static QPoint spanAt(TimelineCanvas& canvas, const std::string& name, int step) {
        const SpanIndex& index = canvas.data().index;
        for (int lane = 0; lane < index.laneCount(); ++lane)
            for (std::uint32_t i = 0; i < index.lane(lane).spans; ++i) {
                const TimelineSpan span = index.at({lane, i});
                if (span.step != step || index.names()[std::size_t(span.name)] != name) continue;
                canvas.reveal({lane, i});
                const TimelineRow* row = canvas.scene().layout.rowOf(lane);
                const double middle = double(span.startNs) + double(span.durationNs) / 2;
                return {int(canvas.areas().xOf(middle, canvas.scene().window)),
                        canvas.areas().body.top() + row->y - canvas.scene().scroll + row->height / 2};
            }
        ADD_FAILURE() << "no span " << name;
        return {};
    }
};

TEST_F(TimelineWindow, TheInspectorShowsTheSpanAndForgetsItWithItsRun) {
    auto window = windowOnTrace();
    TimelineView& view = timeline(*window);
    auto& inspector = *window->findChild<Inspector*>();
    EXPECT_TRUE(inspector.spanFacts()->value(QStringLiteral("Span")).isEmpty());
    QTest::mouseClick(&canvas(view), Qt::LeftButton, {}, spanAt(canvas(view), "ffn", 3));
    settle(*window);
    EXPECT_EQ(inspector.spanFacts()->value(QStringLiteral("Span")), QStringLiteral("ffn"));
    EXPECT_TRUE(inspector.spanFacts()->isVisible());
    EXPECT_TRUE(inspector.spanFacts()->value(QStringLiteral("Belongs to")).startsWith(QStringLiteral("step 3, layer")));
    EXPECT_EQ(window->workspace().cursor().step, 3);
    if (qEnvironmentVariableIsSet("KVSCOPE_KEEP_PICTURES"))
        for (const QSize size : {QSize(1600, 1000), QSize(1100, 700)}) {
            window->resize(size);
            QCoreApplication::processEvents();
            window->grab().save(qEnvironmentVariable("KVSCOPE_KEEP_PICTURES") +
                                QStringLiteral("/window-%1.png").arg(size.width()));
        }
    window->workspace().close(window->workspace().current()->key);
    QCoreApplication::processEvents();
    EXPECT_TRUE(inspector.spanFacts()->value(QStringLiteral("Span")).isEmpty());
}

TEST_F(TimelineWindow, ASpanOpensOnTheSqlPage) {
    auto window = windowOnTrace();
    TimelineView& view = timeline(*window);
    const QPoint at = spanAt(canvas(view), "ffn", 2);
    const auto menu = view.menuOf(canvas(view).placeAt(at));
    QAction* open = nullptr;
    for (QAction* each : menu->actions())
        if (each->text() == QStringLiteral("Open this span in SQL")) open = each;
    ASSERT_TRUE(open);
    open->trigger();
    settle(*window);
    bool found = false;
    for (const QPlainTextEdit* editor : window->findChildren<QPlainTextEdit*>())
        found = found || (editor->isVisible() && editor->toPlainText().contains(QStringLiteral("name = 'ffn'")));
    EXPECT_TRUE(found);
}

TEST_F(TimelineWindow, TheWidthOfTheLabelsIsRemembered) {
    {
        auto window = windowOnTrace(false);
        canvas(timeline(*window)).setGutter(251);
        window->close(); // which saves
    }
    auto window = windowOnTrace(false);
    EXPECT_EQ(canvas(timeline(*window)).areas().gutter.width(), 251);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
