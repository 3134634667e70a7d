#include "ui/look/icons.h"

#include "ui/look/theme.h"

#include <QPainter>
#include <QPixmap>
#include <QSvgRenderer>

namespace kvscope::ui {
namespace {

/// The SVG shapes of an icon in a square of 24 x 24. Shapes are drawn as lines, except those with a `fill` of their
/// own.
const char* shapeOf(Icon icon) {
    switch (icon) {
    case Icon::Run:
        return "<path d='M7 4.5v15l12-7.5z' fill='COLOR' stroke-linejoin='round'/>";
    case Icon::Pause:
        return "<rect x='6' y='5' width='4' height='14' rx='1' fill='COLOR'/><rect x='14' y='5' width='4' height='14' "
               "rx='1' "
               "fill='COLOR'/>";
    case Icon::Step:
        return "<path d='M5 5v14l10-7z' fill='COLOR'/><path d='M18.5 5v14'/>";
    case Icon::Stop:
        return "<rect x='6' y='6' width='12' height='12' rx='1.5' fill='COLOR'/>";
    case Icon::Open:
        return "<path d='M3.5 18V6.5h5.5l2 2.5h8V11M3.5 18l3-7h14.5l-3 7z'/>";
    case Icon::Folder:
        return "<path d='M3.5 18.5V6h6l2 2.5h9v10z'/>";
    case Icon::Close:
        return "<path d='M6.5 6.5l11 11M17.5 6.5l-11 11'/>";
    case Icon::Reset:
        return "<path d='M5 12a7 7 0 1 0 2.3-5.2'/><path d='M4.5 4.5v4h4'/>";
    case Icon::Back:
        return "<path d='M19 12H5.5M11 6l-6 6 6 6'/>";
    case Icon::Forward:
        return "<path d='M5 12h13.5M13 6l6 6-6 6'/>";
    case Icon::Up:
        return "<path d='M12 19V5.5M6 11l6-6 6 6'/>";
    case Icon::Down:
        return "<path d='M12 5v13.5M6 13l6 6 6-6'/>";
    case Icon::Help:
        return "<circle cx='12' cy='12' r='8.5'/><path d='M9.6 9.6a2.5 2.5 0 1 1 3.7 2.2c-.9.5-1.3 1-1.3 2'/><circle "
               "cx='12' "
               "cy='16.7' r='.6' fill='COLOR'/>";
    case Icon::Export:
        return "<path d='M12 15V4M8 7.5L12 4l4 3.5M5 13v6.5h14V13'/>";
    case Icon::Report:
        return "<path d='M6 3.5h8.5L18.5 8v12.5H6z'/><path d='M9.5 17v-3M12.3 17v-6M15 17v-4.5'/>";
    case Icon::Moon:
        return "<path d='M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z'/>";
    case Icon::Sun:
        return "<circle cx='12' cy='12' r='4'/><path d='M12 3v2.2M12 18.8V21M3 12h2.2M18.8 12H21M5.6 5.6l1.6 1.6M16.8 "
               "16.8l1.6 1.6M18.4 5.6l-1.6 1.6M7.2 16.8l-1.6 1.6'/>";
    case Icon::Undo:
        return "<path d='M8.5 5L4.5 9l4 4'/><path d='M5 9h9a5 5 0 0 1 0 10H9'/>";
    case Icon::Redo:
        return "<path d='M15.5 5l4 4-4 4'/><path d='M19 9h-9a5 5 0 0 0 0 10h5'/>";
    case Icon::Fit:
        return "<path d='M4.5 9V4.5H9M15 4.5h4.5V9M19.5 15v4.5H15M9 19.5H4.5V15'/>";
    case Icon::Add:
        return "<path d='M12 5v14M5 12h14'/>";
    case Icon::Live:
        return "<circle cx='12' cy='12' r='4.5' fill='COLOR'/>";
    case Icon::Float:
        return "<path d='M9 4.5h10.5v10.5H9z'/><path d='M5.5 9.5H4.5v10h10v-1'/>";
    case Icon::Beside:
        return "<path d='M4 5.5h16v13H4z'/><path d='M12.5 5.5v13'/>";
    }
    return "";
}

QPixmap render(Icon icon, const QColor& color, int size, double ratio) {
    QByteArray svg = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24'><g fill='none' stroke='COLOR' "
                     "stroke-width='1.7' stroke-linecap='round' stroke-linejoin='round'>";
    svg += shapeOf(icon);
    svg += "</g></svg>";
    svg.replace("COLOR", color.name().toLatin1());
    QSvgRenderer renderer(svg);
    QPixmap pixmap(QSize(size, size) * ratio);
    pixmap.fill(Qt::transparent);
    QPainter painter(&pixmap);
    renderer.render(&painter);
    painter.end();
    pixmap.setDevicePixelRatio(ratio);
    return pixmap;
}

} // namespace

QIcon makeIcon(Icon icon, const QColor& color, const QColor& disabled) {
    QIcon result;
    for (const int size : {16, 20, 24})
        for (const double ratio : {1.0, 2.0}) {
            result.addPixmap(render(icon, color, size, ratio), QIcon::Normal);
            result.addPixmap(render(icon, disabled, size, ratio), QIcon::Disabled);
        }
    return result;
}

QIcon makeIcon(Icon icon, const Theme& theme) {
    QColor disabled = theme.mutedText;
    disabled =
        QColor::fromRgbF((disabled.redF() + theme.window.redF()) / 2, (disabled.greenF() + theme.window.greenF()) / 2,
                         (disabled.blueF() + theme.window.blueF()) / 2);
    return makeIcon(icon, theme.text, disabled);
}

} // namespace kvscope::ui
