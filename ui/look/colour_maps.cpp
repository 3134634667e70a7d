#include "ui/look/colour_maps.h"

#include <QPainter>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

// viridis, inferno and magma are by Smith and van der Walt (CC0). cividis is by Nuñez, Anderton and Renslow (2018), who
// made it for colour-blind readers. Grey is even in CIE L*. Every map is sampled at 17 places.
constexpr std::array kSequential{
    ColourMap{"viridis",
              QT_TRANSLATE_NOOP("ColourMaps", "Viridis"),
              QT_TRANSLATE_NOOP("ColourMaps", "Blue to yellow; the default"),
              {0x440154, 0x48186a, 0x472d7b, 0x424086, 0x3b528b, 0x33638d, 0x2c728e, 0x26828e, 0x21918c, 0x1fa088,
               0x28ae80, 0x3fbc73, 0x5ec962, 0x84d44b, 0xaddc30, 0xd8e219, 0xfde725}},
    ColourMap{"cividis",
              QT_TRANSLATE_NOOP("ColourMaps", "Cividis"),
              QT_TRANSLATE_NOOP("ColourMaps", "Looks the same with and without colour blindness"),
              {0x00224e, 0x002e6a, 0x1a386f, 0x32436d, 0x434e6c, 0x535a6d, 0x61656f, 0x6f7073, 0x7d7c78, 0x8c8878,
               0x9b9476, 0xaba072, 0xbcae6c, 0xcdbb63, 0xdec958, 0xf0d846, 0xfee838}},
    ColourMap{"inferno",
              QT_TRANSLATE_NOOP("ColourMaps", "Inferno"),
              QT_TRANSLATE_NOOP("ColourMaps", "Black to yellow: the widest range of lightness"),
              {0x000004, 0x0b0724, 0x210c4a, 0x3d0965, 0x57106e, 0x71196e, 0x8a226a, 0xa32c61, 0xbc3754, 0xd24644,
               0xe45a31, 0xf1731d, 0xf98e09, 0xfcac11, 0xf9cb35, 0xf2ea69, 0xfcffa4}},
    ColourMap{"magma",
              QT_TRANSLATE_NOOP("ColourMaps", "Magma"),
              QT_TRANSLATE_NOOP("ColourMaps", "Black to cream through purple"),
              {0x000004, 0x0a0822, 0x1d1147, 0x36106b, 0x51127c, 0x6a1c81, 0x832681, 0x9c2e7f, 0xb73779, 0xd0416f,
               0xe75263, 0xf56b5c, 0xfc8961, 0xfea772, 0xfec488, 0xfde2a3, 0xfcfdbf}},
    ColourMap{"grey",
              QT_TRANSLATE_NOOP("ColourMaps", "Grey"),
              QT_TRANSLATE_NOOP("ColourMaps", "For print without colour"),
              {0x1b1b1b, 0x262626, 0x313131, 0x3d3d3d, 0x494949, 0x565656, 0x636363, 0x707070, 0x7e7e7e, 0x8c8c8c,
               0x9a9a9a, 0xa8a8a8, 0xb7b7b7, 0xc6c6c6, 0xd5d5d5, 0xe5e5e5, 0xf5f5f5}},
};

constexpr std::array kDiverging{
    ColourMap{"blue-orange",
              QT_TRANSLATE_NOOP("ColourMaps", "Blue to orange"),
              QT_TRANSLATE_NOOP("ColourMaps", "The default"),
              {0x21509c, 0x3768ad, 0x4d80be, 0x6697cc, 0x83add6, 0xa0c3e1, 0xbbd3e7, 0xd4e0eb, 0xedeeef, 0xf0dcc9,
               0xf2caa4, 0xf1b681, 0xe99e62, 0xe08643, 0xcd702f, 0xb45c1f, 0x9c4710}},
    ColourMap{"purple-green",
              QT_TRANSLATE_NOOP("ColourMaps", "Purple to green"),
              QT_TRANSLATE_NOOP("ColourMaps", "Both arms equally dark"),
              {0x673d78, 0x7d4c91, 0x935da9, 0xa672bb, 0xb889ca, 0xc8a0d6, 0xd6b9df, 0xe2d3e7, 0xeeeeee, 0xc9decd,
               0xa4cdad, 0x81bb90, 0x60a975, 0x41965d, 0x228348, 0x116e39, 0x095a2d}},
};

} // namespace

QRgb ColourMap::at(double t) const {
    t = std::isnan(t) ? 0 : std::clamp(t, 0.0, 1.0) * double(stops.size() - 1);
    const auto i = std::min(std::size_t(t), stops.size() - 2);
    const double f = t - double(i);
    const auto mix = [&](int (*channel)(QRgb)) {
        const int a = channel(stops[i]), b = channel(stops[i + 1]);
        return int(std::lround(a + (b - a) * f));
    };
    return qRgb(mix(qRed), mix(qGreen), mix(qBlue));
}

std::span<const ColourMap> sequentialMaps() { return kSequential; }
std::span<const ColourMap> divergingMaps() { return kDiverging; }

const ColourMap& colourMap(std::span<const ColourMap> maps, const QString& id) {
    const auto found =
        std::find_if(maps.begin(), maps.end(), [&](const ColourMap& m) { return id == QLatin1String(m.id); });
    return found == maps.end() ? maps.front() : *found;
}

QPixmap colourMapBar(const ColourMap& map, QSize size, double pixelRatio) {
    QPixmap bar((QSizeF(size) * pixelRatio).toSize());
    QPainter painter(&bar);
    for (int x = 0; x < bar.width(); ++x)
        painter.fillRect(x, 0, 1, bar.height(), QColor(map.at(double(x) / double(bar.width() - 1))));
    painter.end();
    bar.setDevicePixelRatio(pixelRatio);
    return bar;
}

} // namespace kvscope::ui
