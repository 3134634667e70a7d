#include "ui/look/theme.h"

#include "ui/frame/run_names.h"

#include <QApplication>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

struct Linear {
    double r, g, b;
};

double linear(int channel) {
    const double c = channel / 255.0;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
}
Linear linear(const QColor& c) { return {linear(c.red()), linear(c.green()), linear(c.blue())}; }

double luminance(const QColor& c) {
    const Linear l = linear(c);
    return 0.2126 * l.r + 0.7152 * l.g + 0.0722 * l.b;
}

/// WCAG 2.1 contrast ratio.
double contrast(const QColor& a, const QColor& b) {
    const double x = luminance(a), y = luminance(b);
    return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

// Machado, Oliveira and Fernandes (2009), severity 1.
enum class Sight { Normal, Protanope, Deuteranope };
Linear seenBy(const Linear& c, Sight sight) {
    if (sight == Sight::Normal) return c;
    const bool p = sight == Sight::Protanope;
    const double m[3][3] = {{p ? 0.152286 : 0.367322, p ? 1.052583 : 0.860646, p ? -0.204868 : -0.227968},
                            {p ? 0.114503 : 0.280085, p ? 0.786281 : 0.672501, p ? 0.099216 : 0.047413},
                            {p ? -0.003882 : -0.011820, p ? -0.048116 : 0.042940, p ? 1.051998 : 0.968881}};
    const auto row = [&](int i) { return std::clamp(m[i][0] * c.r + m[i][1] * c.g + m[i][2] * c.b, 0.0, 1.0); };
    return {row(0), row(1), row(2)};
}

/// CIE76 distance of two colours as seen.
double distance(const QColor& a, const QColor& b, Sight sight) {
    const auto lab = [&](const QColor& colour) {
        const Linear c = seenBy(linear(colour), sight);
        const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
        const double x = f((0.4124 * c.r + 0.3576 * c.g + 0.1805 * c.b) / 0.95047);
        const double y = f(0.2126 * c.r + 0.7152 * c.g + 0.0722 * c.b);
        const double z = f((0.0193 * c.r + 0.1192 * c.g + 0.9505 * c.b) / 1.08883);
        return std::array<double, 3>{116 * y - 16, 500 * (x - y), 200 * (y - z)};
    };
    const auto p = lab(a), q = lab(b);
    return std::hypot(p[0] - q[0], p[1] - q[1], p[2] - q[2]);
}

class Themes : public ::testing::TestWithParam<const char*> {
protected:
    const QString id = QString::fromLatin1(GetParam());
    const Theme& theme = Theme::byId(id);
    static void expectApart(const std::vector<QColor>& colours, double least) {
        for (const Sight sight : {Sight::Normal, Sight::Protanope, Sight::Deuteranope})
            for (std::size_t i = 0; i < colours.size(); ++i)
                for (std::size_t j = 0; j < i; ++j)
                    EXPECT_GE(distance(colours[i], colours[j], sight), least)
                        << i << " and " << j << " for sight " << int(sight);
    }
};

TEST_P(Themes, TextReachesWcagAaOnEverySurface) {
    for (const QColor& surface : {theme.window, theme.base, theme.raised, theme.plotBackground}) {
        for (const QColor& text : {theme.text, theme.mutedText, theme.danger, theme.warning, theme.ok, theme.accent})
            EXPECT_GE(contrast(text, surface), 4.5)
                << text.name().toStdString() << " on " << surface.name().toStdString();
    }
    for (const QColor& line : {theme.runA, theme.runB, theme.cursor, theme.miss, theme.found})
        EXPECT_GE(contrast(line, theme.plotBackground), 3.0);
}

TEST_P(Themes, OriginsAndTheMarksOverThemStayApartForColourBlindReaders) {
    std::vector<QColor> colours(theme.origin.begin(), theme.origin.end());
    for (const QColor& mark : {theme.miss, theme.found, theme.plotBackground}) colours.push_back(mark);
    expectApart(colours, 21);
}

TEST_P(Themes, ComponentsStayApartForColourBlindReaders) {
    expectApart({theme.component.begin(), theme.component.end()}, 14);
}

TEST_P(Themes, ResourcesStayApartForColourBlindReadersAndReadAsLines) {
    expectApart({theme.resource.begin(), theme.resource.end()}, 30);
    for (const QColor& line : theme.resource) EXPECT_GE(contrast(line, theme.plotBackground), 3.0);
}

TEST_P(Themes, CurvesAndLanesOfServingStayApartForColourBlindReaders) {
    expectApart({theme.resource[0], theme.resource[1], theme.miss}, 30);
    expectApart({theme.undefinedCell, theme.runA, theme.runB, theme.miss}, 25);
    for (const QColor& line : {theme.resource[0], theme.resource[1], theme.miss})
        EXPECT_GE(contrast(line, theme.plotBackground), 3.0);
}

TEST_P(Themes, RunsStayApartForColourBlindReaders) { expectApart({theme.runA, theme.runB}, 40); }

/// A fourth run had nearly the blue of the first, and a seventh the orange of the second.
TEST_P(Themes, AllRunsOfAComparisonHaveColoursOfTheirOwn) {
    Theme::apply(*qApp, theme);
    std::vector<QColor> colours;
    for (std::size_t place = 0; place < 10; ++place) colours.push_back(runColour(place));
    Theme::apply(*qApp, Theme::light());
    for (std::size_t i = 0; i < colours.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
            EXPECT_GT(distance(colours[i], colours[j], Sight::Normal), i < 5 ? 27 : 17) << i << " and " << j;
    colours.resize(5);
    expectApart(colours, 14);
}

INSTANTIATE_TEST_SUITE_P(All, Themes, ::testing::Values("light", "dark"),
                         [](const auto& row) { return std::string(row.param); });

TEST(ColourMaps, GetBrighterAllTheWay) {
    double last = -1;
    for (int i = 0; i <= 100; ++i) {
        const double now = luminance(QColor(Theme::sequential(i / 100.0)));
        EXPECT_GT(now, last);
        last = now;
    }
    EXPECT_EQ(Theme::sequential(-1), Theme::sequential(0));
    EXPECT_EQ(Theme::sequential(2), Theme::sequential(1));
}

TEST(ColourMaps, DivergeFromANeutralMiddle) {
    const QColor middle(Theme::diverging(0.5));
    EXPECT_LT(middle.saturationF(), 0.05);
    EXPECT_GT(distance(QColor(Theme::diverging(0)), QColor(Theme::diverging(1)), Sight::Deuteranope), 40);
}

TEST(ThemeById, FallsBackToLight) {
    EXPECT_EQ(Theme::byId(QStringLiteral("dark")).id, QStringLiteral("dark"));
    EXPECT_EQ(Theme::byId(QStringLiteral("neon")).id, QStringLiteral("light"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
