// Pictures of the timeline against kept ones: a whole run, one layer with its arrows, a measured range, an import.
#include "tests/ui/timeline_fixture.h"

#include "tests/ui/picture.h"

#include <fstream>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelinePictures : public TimelineTest, public testing::WithParamInterface<const char*> {
protected:
    TimelinePictures() { Theme::apply(*qApp, Theme::byId(QString::fromLatin1(GetParam()))); }
    ~TimelinePictures() override { Theme::apply(*qApp, Theme::light()); }
    /// Times of a machine are in no picture: the synthetic run gives the same ones everywhere.
    void expect(const char* name) {
        timeline().setGutter(200); // as wide as a font needs elsewhere
        QCoreApplication::processEvents();
        expectPicture(timeline().grab().toImage(),
                      QStringLiteral("timeline-%1-%2").arg(QLatin1String(name), QLatin1String(GetParam())));
    }
};

TEST_P(TimelinePictures, AWholeRun) {
    const RunShape shape{.layers = 4, .decodeSteps = 30};
    const QString path = recorded("run.kvtrace", shape);
    open(path);
    show({1250, 1000});
    expect("run");
}

TEST_P(TimelinePictures, OneLayerWithItsArrows) {
    openAndShow({.layers = 4, .decodeSteps = 30});
    const SpanRef transfer = find(kToDeviceName, 7);
    const TimelineSpan span = index().at(transfer);
    const double margin = 5 * double(span.durationNs);
    timeline().zoomTo({double(span.startNs) - margin, double(span.endNs()) + margin});
    timeline().select(transfer);
    ASSERT_FALSE(scene().flows.empty());
    expect("layer");
}

TEST_P(TimelinePictures, AMeasuredRange) {
    openAndShow({.layers = 4, .decodeSteps = 30});
    std::int64_t from = 0, to = 0, ignored = 0;
    ASSERT_TRUE(data().counters.timesOf(12, from, ignored));
    ASSERT_TRUE(data().counters.timesOf(15, ignored, to));
    const auto length = double(to - from);
    timeline().zoomTo({double(from) - length, double(to) + length / 2});
    timeline().measure(TimeRange{double(from), double(to)});
    expect("range");
}

TEST_P(TimelinePictures, AnImportedRun) {
    std::ofstream json(folder / "torch.json");
    json << R"({"traceEvents":[{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"main"}},
        {"ph":"M","pid":1,"tid":7,"name":"thread_name","args":{"name":"stream 7"}})";
    const char* const names[] = {"aten::mm", "aten::softmax", "aten::add", "aten::layer_norm"};
    for (int i = 0; i < 24; ++i) {
        const int at = i * 100;
        json << ",{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"" << names[i % 4] << "\",\"ts\":" << at
             << ",\"dur\":80},{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"cudaLaunchKernel\",\"ts\":" << at + 10
             << ",\"dur\":25},{\"ph\":\"X\",\"pid\":1,\"tid\":7,\"name\":\"kernel " << char('a' + i % 4)
             << "\",\"ts\":" << at + 60 << ",\"dur\":" << 40 + 10 * (i % 5)
             << "},{\"ph\":\"C\",\"pid\":1,\"name\":\"memory\",\"ts\":" << at
             << ",\"args\":{\"allocated (bytes)\":" << (i % 7) * 1000000 << "}}";
    }
    json << "]}";
    json.close();
    open(file("torch.json"));
    show({1250, 1000});
    expect("imported");
}

INSTANTIATE_TEST_SUITE_P(Themes, TimelinePictures, testing::Values("light", "dark"),
                         [](const auto& p) { return std::string(p.param); });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
