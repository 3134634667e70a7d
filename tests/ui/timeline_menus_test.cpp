// The menus of the timeline: what they offer for a span, a track, the ruler and a note, and what their entries do.
#include "tests/ui/timeline_fixture.h"

#include "tests/profiler/sql_rows.h"
#include "ui/views/timeline/timeline_view.h"

#include <QClipboard>
#include <QContextMenuEvent>
#include <QLineEdit>
#include <QMenu>
#include <QTableWidget>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineMenus : public TimelineTest {
protected:
    TimelineView& timelineView() { return dynamic_cast<TimelineView&>(*view); }
    QAction* action(QMenu& menu, const QString& start) {
        for (QAction* each : menu.actions()) {
            if (each->text().startsWith(start)) return each;
            if (each->menu())
                if (QAction* below = action(*each->menu(), start)) return below;
        }
        return nullptr;
    }
    /// Opens the menu of a place as a person does and triggers the entry; false: there is none, or it is disabled.
    bool choose(QPoint where, const QString& entry) {
        const auto menu = timelineView().menuOf(timeline().placeAt(where));
        QAction* found = action(*menu, entry);
        if (!found || !found->isEnabled()) return false;
        found->trigger();
        return true;
    }
};

TEST_F(TimelineMenus, MenusOfASpan) {
    open(measured("run.kvtrace"));
    show();
    const SpanRef kernel = find("ffn: linearKernel", 5);
    timeline().reveal(kernel);
    const QPoint at = middleOf(kernel);
    const TimelineSpan span = index().at(kernel);
    ASSERT_TRUE(choose(at, QStringLiteral("Zoom to the span")));
    EXPECT_EQ(scene().selected, kernel);
    EXPECT_NEAR(scene().window.size(), double(span.durationNs) * 1.2, 2);
    ASSERT_TRUE(choose(middleOf(kernel), QStringLiteral("Measure its time")));
    ASSERT_TRUE(scene().range);
    EXPECT_EQ(scene().range->from, double(span.startNs));
    EXPECT_EQ(scene().range->to, double(span.endNs()));
    EXPECT_GT(child<QTableWidget>("selfTimes").rowCount(), 0);
    ASSERT_TRUE(choose(middleOf(kernel), QStringLiteral("Search for this name")));
    EXPECT_EQ(child<QLineEdit>("search").text(), QStringLiteral("ffn: linearKernel"));
    ASSERT_TRUE(idle());
    ASSERT_TRUE(choose(middleOf(kernel), QStringLiteral("Copy its facts as table")));
    EXPECT_TRUE(QApplication::clipboard()->text().startsWith(QStringLiteral("Span\tffn: linearKernel\n")));
    EXPECT_TRUE(QApplication::clipboard()->text().contains(QStringLiteral("Lasts\t")));
    ASSERT_TRUE(choose(middleOf(kernel), QStringLiteral("Copy SQL of this span")));
    const std::string path = workspace.current()->key.path.toStdString();
    const auto rows = test::sql(path, QApplication::clipboard()->text().toStdString()).rows;
    ASSERT_EQ(rows.size(), 1u) << "the statement finds this span and no other";
    EXPECT_EQ(rows[0][2], "ffn: linearKernel");
    EXPECT_EQ(rows[0][5], std::to_string(span.startNs));
    ASSERT_TRUE(choose(middleOf(kernel), QStringLiteral("Filter all views: component ffn")));
    EXPECT_EQ(workspace.filter().component, QStringLiteral("ffn"));
    workspace.setFilter({});
    ASSERT_TRUE(choose(middleOf(kernel), QStringLiteral("Filter all views: layer")));
    EXPECT_TRUE(workspace.filter().hasLayer(span.layer));
    EXPECT_FALSE(workspace.filter().hasLayer(span.layer + 1));
    workspace.setFilter({});
    ASSERT_TRUE(choose(middleOf(kernel), QStringLiteral("Go to its launch: ffn")));
    ASSERT_TRUE(scene().selected);
    EXPECT_EQ(index().names()[std::size_t(index().at(*scene().selected).name)], "ffn");
    timeline().zoomTo({double(index().at(find("decode", 5)).startNs), double(index().at(find("decode", 5)).endNs())});
    ASSERT_TRUE(choose(middleOf(*scene().selected), QStringLiteral("Go to what it launched: ffn: linearKernel")));
    EXPECT_EQ(scene().selected, kernel);
}

TEST_F(TimelineMenus, MenusOfTracksFoldHideAndBringBack) {
    open(measured("run.kvtrace"));
    show();
    const QString host = QString::fromLatin1(kHostTrack);
    const std::size_t rows = scene().layout.rows.size();
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Fold this track")));
    EXPECT_EQ(scene().layout.rows.size(), rows - 2);
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Unfold this track")));
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Hide this track")));
    EXPECT_FALSE(hasRow(host));
    timeline().reveal(find("ffn", 3)); // what is gone to comes back
    EXPECT_TRUE(hasRow(host));
    ASSERT_TRUE(choose(labelOf(QStringLiteral("hit rate")), QStringLiteral("Hide this track")));
    EXPECT_FALSE(hasRow(QStringLiteral("hit rate")));
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("hit rate"))) << "the list of tracks brings it back";
    EXPECT_TRUE(hasRow(QStringLiteral("hit rate")));
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Show only this track")));
    for (const TimelineRow& each : scene().layout.rows) EXPECT_EQ(trackTitle(data(), each), host);
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Show all tracks")));
    EXPECT_EQ(scene().layout.rows.size(), rows);
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Fold all")));
    EXPECT_EQ(scene().layout.rows.size(), rows - 2);
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Unfold all")));
    const std::string path = workspace.current()->key.path.toStdString();
    ASSERT_TRUE(choose(labelOf(host), QStringLiteral("Copy SQL of this track")));
    EXPECT_GT(test::sql(path, QApplication::clipboard()->text().toStdString()).rows.size(), 5u);
    ASSERT_TRUE(choose(labelOf(QStringLiteral("PCIe to device")), QStringLiteral("Copy SQL of these values")));
    EXPECT_EQ(test::sql(path, QApplication::clipboard()->text().toStdString()).rows.size(), 10u);
    ASSERT_TRUE(choose(labelOf(QStringLiteral("hit rate")), QStringLiteral("Copy SQL of these values")));
    EXPECT_EQ(test::sql(path, QApplication::clipboard()->text().toStdString()).rows.size(), 13u);
}

TEST_F(TimelineMenus, MenusOfTheRulerAndOfNotes) {
    open(measured("run.kvtrace"));
    show();
    const auto onRuler = [&](double ns) {
        return QPoint(int(timeline().areas().xOf(ns, scene().window)), timeline().areas().ruler.center().y());
    };
    const TimelineSpan sixth = index().at(find("decode", 6));
    const double middle = double(sixth.startNs) + double(sixth.durationNs) / 2;
    ASSERT_TRUE(choose(onRuler(middle), QStringLiteral("Measure what is shown")));
    EXPECT_EQ(scene().range, scene().window);
    ASSERT_TRUE(choose(onRuler(middle), QStringLiteral("Give up the measured range")));
    EXPECT_FALSE(scene().range);
    ASSERT_TRUE(choose(onRuler(middle), QStringLiteral("Zoom to step 6")));
    EXPECT_NEAR(scene().window.size(), double(sixth.durationNs) * 1.1, 4);
    ASSERT_TRUE(choose(onRuler(middle), QStringLiteral("Show everything")));
    EXPECT_EQ(scene().window, data().whole());
    ASSERT_TRUE(choose(emptySpot(), QStringLiteral("Show all decode steps")));
    const std::string path = workspace.current()->key.path.toStdString();
    ASSERT_TRUE(choose(emptySpot(), QStringLiteral("Copy SQL of what is shown")));
    EXPECT_EQ(QApplication::clipboard()->text(), view->sql());
    EXPECT_GT(test::sql(path, view->sql().toStdString()).rows.size(), 100u);
    ASSERT_TRUE(choose(emptySpot(), QStringLiteral("Copy self times as table")));
    EXPECT_TRUE(QApplication::clipboard()->text().startsWith(QStringLiteral("name\ttrack\t")));
    ASSERT_TRUE(choose(emptySpot(), QStringLiteral("Copy image")));
    EXPECT_GT(QApplication::clipboard()->image().width(), timeline().width());

    answer(QStringLiteral("look here"));
    ASSERT_TRUE(choose(onRuler(middle), QStringLiteral("Leave a note here")));
    ASSERT_TRUE(idle());
    ASSERT_EQ(data().notes.size(), 1u);
    EXPECT_NEAR(double(data().notes[0].startNs), middle, scene().window.size() / 500) << "a pixel or two";
    const QPoint flag = onRuler(double(data().notes[0].startNs)) + QPoint(3, 0);
    EXPECT_EQ(timeline().placeAt(flag).kind, TimelinePlace::Kind::Note);
    ASSERT_TRUE(choose(flag, QStringLiteral("Copy its text")));
    EXPECT_EQ(QApplication::clipboard()->text(), QStringLiteral("look here"));
    answer(QStringLiteral("and there"));
    ASSERT_TRUE(choose(flag, QStringLiteral("Edit")));
    ASSERT_TRUE(idle());
    EXPECT_EQ(data().notes.at(0).text, "and there");
    const double size = scene().window.size();
    ASSERT_TRUE(choose(flag, QStringLiteral("Zoom to the note")));
    EXPECT_LT(scene().window.size(), size);
    ASSERT_TRUE(choose(onRuler(double(data().notes[0].startNs)) + QPoint(3, 0), QStringLiteral("Remove")));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(data().notes.empty());
}

TEST_F(TimelineMenus, ARightClickOpensTheMenu) {
    open(measured("run.kvtrace"));
    show();
    bool opened = false;
    QTimer::singleShot(0, [&] {
        auto* menu = qobject_cast<QMenu*>(QApplication::activePopupWidget());
        opened = menu && action(*menu, QStringLiteral("Show everything"));
        if (menu) menu->close();
    });
    QContextMenuEvent event(QContextMenuEvent::Mouse, emptySpot(), timeline().mapToGlobal(emptySpot()));
    QApplication::sendEvent(&timeline(), &event);
    EXPECT_TRUE(opened);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
