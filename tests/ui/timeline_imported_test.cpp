// The timeline of a run that another tool recorded: its counters and arrows, and what the inspector says of it.
#include "tests/ui/timeline_fixture.h"

#include "ui/timeline/span_facts.h"

#include <QLabel>

#include <fstream>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineOfAnotherTool : public TimelineTest {};

TEST_F(TimelineOfAnotherTool, AnImportedTimelineHasItsCountersAndArrows) {
    std::ofstream(folder / "torch.json") << R"json({"traceEvents":[
        {"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"main"}},
        {"ph":"M","pid":1,"tid":7,"name":"thread_name","args":{"name":"stream 7"}},
        {"ph":"X","pid":1,"tid":1,"name":"aten::mm","ts":0,"dur":100},
        {"ph":"X","pid":1,"tid":1,"name":"cudaLaunchKernel","ts":10,"dur":8},
        {"ph":"s","pid":1,"tid":1,"name":"ac2g","cat":"ac2g","id":5,"ts":10},
        {"ph":"X","pid":1,"tid":7,"name":"gemm","cat":"kernel","ts":40,"dur":50,"args":{"grid":[132,1,1],"regs":96}},
        {"ph":"f","bp":"e","pid":1,"tid":7,"name":"ac2g","cat":"ac2g","id":5,"ts":40},
        {"ph":"C","pid":1,"name":"memory","ts":0,"args":{"allocated (bytes)":30000000}},
        {"ph":"C","pid":1,"name":"memory","ts":60,"args":{"allocated (bytes)":45000000}}]})json";
    open(file("torch.json"));
    show();
    ASSERT_EQ(workspace.current()->row.backend, RunBackend::Imported);
    EXPECT_EQ(index().size(), 3u);
    ASSERT_EQ(data().gauges.size(), 1u);
    const int curve = StepCounters::kCount;
    EXPECT_EQ(curveText(data(), curve, curveAt(data(), curve, 30'000)), QStringLiteral("28.6 MiB"));
    EXPECT_EQ(curveText(data(), curve, curveLargest(data(), curve)), QStringLiteral("42.9 MiB"));
    EXPECT_EQ(scene().layout.rows.back().curve, curve) << "below the spans";
    EXPECT_EQ(scene().window, data().whole()) << "no steps to open on";
    const SpanRef launch = find("cudaLaunchKernel", -1), kernel = find("gemm", -1);
    click(middleOf(launch));
    ASSERT_TRUE(idle());
    ASSERT_EQ(scene().flows.size(), 1u);
    EXPECT_EQ(scene().flows[0].from, launch);
    EXPECT_EQ(scene().flows[0].to, kernel);
    EXPECT_TRUE(fact(QStringLiteral("Arrows")).contains(QStringLiteral("launches gemm")))
        << fact(QStringLiteral("Arrows")).toStdString();
    press(Qt::Key_BracketRight);
    EXPECT_EQ(scene().selected, kernel);
    ASSERT_TRUE(idle());
    EXPECT_EQ(fact(QStringLiteral("Category")), QStringLiteral("kernel"));
    EXPECT_EQ(fact(QStringLiteral("Arguments")), QStringLiteral("grid: [132,1,1]\nregs: 96"));
    const SpanDetail said = spanDetail(TraceReader(file("torch.json").toStdString()), 1, placeOfSpan(index(), kernel));
    EXPECT_TRUE(tooltipOf(data(), kernel, said).contains(QStringLiteral("kernel<br>grid: [132,1,1]<br>regs: 96")))
        << tooltipOf(data(), kernel, said).toStdString();
    press(Qt::Key_BracketLeft);
    EXPECT_EQ(scene().selected, launch);
    press(Qt::Key_1); // there are no steps: nothing happens
    EXPECT_EQ(scene().window, data().whole());
    EXPECT_TRUE(child<QLabel>("timelineNote").text().contains(QStringLiteral("Imported from trace-event JSON.")))
        << child<QLabel>("timelineNote").text().toStdString();
}

TEST_F(TimelineOfAnotherTool, TheInspectorSaysWhatAnImportedTimelineIs) {
    std::ofstream(folder / "torch.json") << R"([{"ph":"X","pid":1,"tid":1,"name":"aten::mm","ts":0,"dur":100}])";
    open(file("torch.json"));
    Inspector inspector(workspace);
    inspector.show();
    ASSERT_TRUE(idle());
    bool said = false;
    for (const QLabel* label : inspector.findChildren<QLabel*>()) {
        EXPECT_FALSE(label->text().contains(QStringLiteral("No step was recorded yet")));
        said |= label->isVisibleTo(&inspector) && label->text().contains(QStringLiteral("another tool recorded"));
    }
    EXPECT_TRUE(said);
}

TEST(TimelineArrows, BeginAtTheEdgeBehindWhichTheirSpanLies) {
    const QRectF body(100, 50, 400, 200);
    ArrowEnds ends = arrowWithin(body, {-5'000, 80}, {300, 120});
    EXPECT_TRUE(ends.seen && ends.fromOutside && !ends.toOutside);
    EXPECT_EQ(ends.from, QPointF(100, 80));
    EXPECT_EQ(ends.to, QPointF(300, 120));
    ends = arrowWithin(body, {200, 60}, {250, 900}); // its row is scrolled away
    EXPECT_TRUE(ends.seen && ends.toOutside);
    EXPECT_EQ(ends.to, QPointF(250, 250));
    EXPECT_TRUE(arrowWithin(body, {-5'000, 80}, {9'000, 120}).seen) << "it crosses what is shown";
    EXPECT_FALSE(arrowWithin(body, {-5'000, 80}, {20, 120}).seen);
    EXPECT_FALSE(arrowWithin(body, {200, 900}, {300, 800}).seen);
    ends = arrowWithin(body, {150, 100}, {300, 120});
    EXPECT_FALSE(ends.fromOutside || ends.toOutside);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
