// What makes a map fit for reading numbers: lightness rises evenly, for colour-blind readers too.
#include "ui/look/colour_maps.h"

#include "ui/look/theme.h"
#include "ui/widgets/colour_map_menu.h"

#include <QColor>
#include <QSignalSpy>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

double linear(int channel) {
    const double c = channel / 255.0;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
}

enum class Sight { Normal, Protanope, Deuteranope };

/// CIE L* as seen; Machado, Oliveira and Fernandes (2009), severity 1.
double lightness(QRgb colour, Sight sight) {
    double c[3] = {linear(qRed(colour)), linear(qGreen(colour)), linear(qBlue(colour))};
    if (sight != Sight::Normal) {
        const bool p = sight == Sight::Protanope;
        const double m[3][3] = {{p ? 0.152286 : 0.367322, p ? 1.052583 : 0.860646, p ? -0.204868 : -0.227968},
                                {p ? 0.114503 : 0.280085, p ? 0.786281 : 0.672501, p ? 0.099216 : 0.047413},
                                {p ? -0.003882 : -0.011820, p ? -0.048116 : 0.042940, p ? 1.051998 : 0.968881}};
        double seen[3];
        for (int i = 0; i < 3; ++i) seen[i] = std::clamp(m[i][0] * c[0] + m[i][1] * c[1] + m[i][2] * c[2], 0.0, 1.0);
        std::copy(seen, seen + 3, c);
    }
    const double y = 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
    return y > 0.008856 ? 116 * std::cbrt(y) - 16 : 903.3 * y;
}

class SequentialMaps : public ::testing::TestWithParam<int> {
protected:
    const ColourMap& map = sequentialMaps()[std::size_t(GetParam())];
};

TEST_P(SequentialMaps, RiseEvenlyInLightnessForEverySight) {
    for (const Sight sight : {Sight::Normal, Sight::Protanope, Sight::Deuteranope}) {
        const double low = lightness(map.at(0), sight), high = lightness(map.at(1), sight);
        EXPECT_GT(high - low, 65) << "a wide range of lightness";
        const double mean = (high - low) / 16;
        for (int i = 0; i < 16; ++i) {
            const double step = lightness(map.at((i + 1) / 16.0), sight) - lightness(map.at(i / 16.0), sight);
            EXPECT_GT(step, 0.25 * mean) << "stop " << i << " for sight " << int(sight);
            EXPECT_LT(step, 2 * mean) << "stop " << i << " for sight " << int(sight);
        }
    }
}

TEST_P(SequentialMaps, ClampWhatIsOutside) {
    EXPECT_EQ(map.at(-1), map.at(0));
    EXPECT_EQ(map.at(7), map.at(1));
    EXPECT_EQ(map.at(std::nan("")), map.at(0));
}

INSTANTIATE_TEST_SUITE_P(All, SequentialMaps, ::testing::Range(0, int(sequentialMaps().size())),
                         [](const auto& row) { return std::string(sequentialMaps()[std::size_t(row.param)].id); });

class DivergingMaps : public ::testing::TestWithParam<int> {};

TEST_P(DivergingMaps, DarkenEvenlyFromANeutralMiddle) {
    const ColourMap& map = divergingMaps()[std::size_t(GetParam())];
    EXPECT_LT(QColor(map.at(0.5)).saturationF(), 0.05);
    for (const Sight sight : {Sight::Normal, Sight::Protanope, Sight::Deuteranope})
        for (int i = 0; i < 8; ++i) {
            EXPECT_LT(lightness(map.at(i / 16.0), sight), lightness(map.at((i + 1) / 16.0), sight)) << i;
            EXPECT_LT(lightness(map.at(1 - i / 16.0), sight), lightness(map.at(1 - (i + 1) / 16.0), sight)) << i;
        }
    EXPECT_NEAR(lightness(map.at(0), Sight::Normal), lightness(map.at(1), Sight::Normal), 12)
        << "neither sign looks larger";
}

INSTANTIATE_TEST_SUITE_P(All, DivergingMaps, ::testing::Range(0, int(divergingMaps().size())));

TEST(ColourMapChoice, UnknownIdsGiveTheDefault) {
    EXPECT_STREQ(colourMap(sequentialMaps(), "magma").id, "magma");
    EXPECT_STREQ(colourMap(sequentialMaps(), "jet").id, "viridis");
    Theme::chooseMaps("cividis", "jet");
    EXPECT_EQ(Theme::sequential(0.3), colourMap(sequentialMaps(), "cividis").at(0.3));
    EXPECT_STREQ(Theme::divergingMap().id, "blue-orange");
    Theme::chooseMaps({}, {});
    EXPECT_STREQ(Theme::sequentialMap().id, "viridis");
}

TEST(ColourMapChoice, RestingOnAMapTriesItAndLeavingTakesItBack) {
    ColourMapMenu menu;
    QSignalSpy preview(&menu, &ColourMapMenu::preview), chosen(&menu, &ColourMapMenu::chosen);
    QAction* magma = nullptr;
    for (QAction* action : menu.actions())
        if (action->data() == "magma") magma = action;
    ASSERT_NE(magma, nullptr);
    EXPECT_TRUE(magma->text().endsWith("Magma"));
    menu.popup({});
    const QImage image = menu.grab().toImage();
    menu.hide();
    const QRect row = menu.actionGeometry(magma);
    std::set<QRgb> colours;
    for (int x = row.left(); x < row.right(); ++x)
        colours.insert(image.pixel(QPoint(x, row.center().y()) * image.devicePixelRatio()));
    EXPECT_GT(colours.size(), 60U) << "its bar";
    preview.clear();
    magma->hover();
    ASSERT_EQ(preview.count(), 1);
    EXPECT_EQ(preview[0][0].toString(), "magma");
    EXPECT_EQ(menu.sequential(), "viridis");
    emit menu.aboutToHide();
    EXPECT_EQ(preview.last()[0].toString(), "viridis");
    EXPECT_TRUE(chosen.isEmpty());
    magma->trigger();
    ASSERT_EQ(chosen.count(), 1);
    EXPECT_EQ(menu.sequential(), "magma");
    EXPECT_EQ(menu.diverging(), "blue-orange");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
