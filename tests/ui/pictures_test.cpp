// A picture of every view and of the whole window, in both themes, against kept ones (docs/user-guide.md says how they
// are made again), and whether the comparison sees what it should and nothing else.
#include "tests/ui/view_fixture.h"

#include "tests/profiler/synthetic_denoise.h"
#include "tests/ui/picture.h"
#include "tests/ui/window_fixture.h"
#include "ui/plots/legend_strip.h"
#include "ui/session/session_controller.h"

#include <QComboBox>
#include <QPainter>
#include <QTabWidget>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

struct Shown {
    const char *name, *view;
    const char *picker = nullptr, *choice = nullptr; // of the view, before the picture is taken
    bool compared = false;
    enum { Decoded, Blocks, TileRows, Canvas } run = Decoded; // token by token, or what is denoised and chosen
};

const std::vector<Shown> kShown{
    {"locality", "locality"},
    {"locality-heads", "locality", "rows", "KV heads of cursor's layer"},
    {"locality-data-range", "locality", "colourRange", "Lowest to highest"},
    {"selection", "selection"},
    {"selection-hits", "selection", "colouring", "Hits and misses"},
    {"transfers", "transfers"},
    {"transfers-all", "transfers", "valueRange", "All"},
    {"transfers-compared", "transfers", nullptr, nullptr, true},
    {"breakdown", "breakdown"},
    {"breakdown-layers", "breakdown", "mode", "Per layer"},
    {"breakdown-total", "breakdown", "mode", "Total", true},
    {"what-if", "cache"},
    {"roofline", "roofline"},
    {"insights", "insights"},
    {"denoising", "denoising", nullptr, nullptr, false, Shown::Blocks},
    {"denoising-blocks", "denoising", "rows", "Block", false, Shown::Blocks},
    {"denoising-active", "denoising", "colouring", "Active tokens", false, Shown::Blocks},
    {"denoising-rows", "denoising", nullptr, nullptr, false, Shown::TileRows},
    {"denoising-canvas", "denoising", nullptr, nullptr, false, Shown::Canvas},
};

class ViewPicture : public ViewTest, public ::testing::WithParamInterface<std::tuple<Shown, const char*>> {
protected:
    ~ViewPicture() override { Theme::apply(*qApp, Theme::light()); }
    QImage drawn(const Shown& shown, const char* theme, QSize size = {1000, 640}) {
        Theme::apply(*qApp, Theme::byId(QLatin1String(theme)));
        std::optional<RunKey> other;
        if (shown.compared) {
            open(recorded("b.kvtrace", {.layers = 8, .decodeSteps = 60, .queryAware = 2, .seed = 6}));
            other = workspace.current()->key;
        }
        // Denoising writes tokens more slowly than decoding: in 54 steps the selections stay within the tokens that are
        // there.
        const synthetic::RunShape shape{.layers = 8, .decodeSteps = shown.run == Shown::Decoded ? 60 : 54, .seed = 5};
        if (shown.run == Shown::Decoded)
            recorded("a.kvtrace", shape);
        else
            synthetic::recordDenoising(folder / "a.kvtrace", shape, 8, RecordLevel::Full,
                                       shown.run == Shown::TileRows ? 2 : 0);
        if (shown.run == Shown::Canvas) synthetic::makeCanvas((folder / "a.kvtrace").string());
        open(file("a.kvtrace"));
        if (other) workspace.setCompare(*other);
        show(shown.view);
        if (shown.picker) {
            child<QComboBox>(shown.picker).setCurrentText(QLatin1String(shown.choice));
            EXPECT_EQ(child<QComboBox>(shown.picker).currentText(), QLatin1String(shown.choice));
            EXPECT_TRUE(idle());
            canvas().replot();
        }
        EXPECT_EQ(plot().emptyText(), QString());
        return exported(size);
    }
    QImage exported(QSize size) {
        const QString picture = file("picture.png");
        EXPECT_TRUE(view->exportImage(picture, size));
        return QImage(picture);
    }
};

TEST_P(ViewPicture, IsTheKeptOne) {
    const auto& [shown, theme] = GetParam();
    expectPicture(drawn(shown, theme), QStringLiteral("%1-%2").arg(QLatin1String(shown.name), QLatin1String(theme)));
}

INSTANTIATE_TEST_SUITE_P(Views, ViewPicture,
                         ::testing::Combine(::testing::ValuesIn(kShown), ::testing::Values("light", "dark")),
                         [](const auto& test) {
                             std::string name = std::get<0>(test.param).name;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name + "_" + std::get<1>(test.param);
                         });

class Comparison : public ViewPicture {
protected:
    static PictureDifference between(const QImage& a, const QImage& b) {
        return pictureDifference(stampOf(a), stampOf(b));
    }
    static bool fails(const PictureDifference& d) { return d.mean > kMeanTolerance || d.worst > kPlaceTolerance; }
};

TEST_F(Comparison, SeesALostLegendAndAWrongColour) {
    const QImage whole = drawn({"", "transfers", nullptr, nullptr, true}, "light");
    EXPECT_FALSE(fails(between(whole, whole)));
    QImage lost = whole;
    QPainter(&lost).fillRect(QRect(0, 36, 1000, 40), Theme::light().plotBackground); // the strip with the runs' names
    EXPECT_TRUE(fails(between(whole, lost))) << between(whole, lost).worst;

    const QImage bars = drawn({"", "breakdown", "mode", "Per layer"}, "light");
    const QRgb from = Theme::light().component[std::size_t(Stage::Ffn)].rgb();
    const QRgb to = Theme::light().component[std::size_t(Stage::Rope)].rgb();
    QImage wrong = bars;
    int changed = 0;
    for (int y = 0; y < wrong.height(); ++y)
        for (int x = 0; x < wrong.width(); ++x)
            if ((wrong.pixel(x, y) | 0xff000000) == (from | 0xff000000)) wrong.setPixel(x, y, to), ++changed;
    ASSERT_GT(changed, 1000);
    EXPECT_TRUE(fails(between(bars, wrong))) << between(bars, wrong).worst;
}

TEST_F(Comparison, TakesSmoothingAndSmallerLettersAsTheSame) {
    const Shown shown{"", "transfers", nullptr, nullptr, true};
    const QImage one = drawn(shown, "light"), smaller = exported({1020, 652}); // letters 2 % smaller
    EXPECT_FALSE(fails(between(one, smaller))) << between(one, smaller).mean << ", " << between(one, smaller).worst;
    // Softer edges everywhere.
    const QImage soft = one.scaled(one.size() * 0.7, Qt::IgnoreAspectRatio, Qt::SmoothTransformation)
                            .scaled(one.size(), Qt::IgnoreAspectRatio, Qt::SmoothTransformation);
    EXPECT_FALSE(fails(between(one, soft))) << between(one, soft).worst;
}

class WindowPicture : public WindowTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(WindowPicture, IsTheKeptOne) {
    const QString path = folder.filePath(QStringLiteral("run.kvtrace"));
    synthetic::recordFile(path.toStdString(), {.layers = 8, .decodeSteps = 60, .seed = 5});
    const auto window = makeWindow(true, {1280, 800});
    window->setTheme(QLatin1String(GetParam()));
    ASSERT_TRUE(until([&] { return window->controller().model() != nullptr; }));
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    window->showView(QStringLiteral("selection"));
    settle(*window);
    window->workspace().setCursor({.step = 20, .layer = 2, .kvHead = 1, .block = 3});
    settle(*window);
    QApplication::processEvents();
    expectPicture(window->grab().toImage(), QStringLiteral("window-%1").arg(QLatin1String(GetParam())));
    window->setTheme(QStringLiteral("light"));
}

INSTANTIATE_TEST_SUITE_P(Themes, WindowPicture, ::testing::Values("light", "dark"),
                         [](const auto& test) { return std::string(test.param); });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
