#include "ui/widgets/colour_map_menu.h"

#include "ui/look/colour_maps.h"

#include <QActionGroup>
#include <QPainter>

#include <algorithm>

namespace kvscope::ui {

namespace {

constexpr QSize kBar(96, 14);
constexpr int kGap = 10;      // pixels between the bar and the name
constexpr int kTextLeft = 24; // left padding of QMenu::item in the style sheet, in pixels

/// The name with blanks in front of it, as wide as the bar that paintEvent draws there. An icon of the entry could only
/// be square.
QString indented(const QString& name, const QFontMetrics& metrics) {
    const QChar space(QChar::Nbsp);
    const int count = (kBar.width() + kGap) / std::max(1, metrics.horizontalAdvance(space)) + 1;
    return QString(count, space) + name;
}

} // namespace

ColourMapMenu::ColourMapMenu(QWidget* parent)
    : QMenu(tr("&Colour Maps"), parent), sequential_(QLatin1String(sequentialMaps().front().id)),
      diverging_(QLatin1String(divergingMaps().front().id)) {
    setToolTipsVisible(true);
    rebuild();
    connect(this, &QMenu::aboutToHide, this, [this] { emit preview(sequential_, diverging_); });
}

void ColourMapMenu::paintEvent(QPaintEvent* event) {
    QMenu::paintEvent(event);
    QPainter painter(this);
    for (const QAction* action : actions()) {
        if (!action->isCheckable()) continue;
        const QString id = action->data().toString();
        const ColourMap& map = QLatin1String(colourMap(sequentialMaps(), id).id) == id ? colourMap(sequentialMaps(), id)
                                                                                       : colourMap(divergingMaps(), id);
        const QRect row = actionGeometry(const_cast<QAction*>(action));
        painter.drawPixmap(row.left() + kTextLeft, row.center().y() - kBar.height() / 2 + 1,
                           colourMapBar(map, kBar, devicePixelRatioF()));
    }
}

void ColourMapMenu::setChosen(const QString& sequential, const QString& diverging) {
    sequential_ = QLatin1String(colourMap(sequentialMaps(), sequential).id);
    diverging_ = QLatin1String(colourMap(divergingMaps(), diverging).id);
    for (QAction* action : actions())
        if (action->isCheckable())
            action->setChecked(action->data().toString() == sequential_ || action->data().toString() == diverging_);
}

void ColourMapMenu::rebuild() {
    const auto add = [this](const QString& heading, std::span<const ColourMap> maps, QString& chosenId) {
        addSeparator();
        addAction(heading)->setEnabled(false);
        auto* group = new QActionGroup(this);
        for (const ColourMap& map : maps) {
            const QString id = QLatin1String(map.id);
            QAction* action = addAction(indented(tr(map.title), fontMetrics()));
            action->setToolTip(tr(map.help));
            action->setData(id);
            action->setCheckable(true);
            action->setChecked(id == chosenId);
            group->addAction(action);
            const auto tried = [this, id, &chosenId] {
                const bool isSequential = &chosenId == &sequential_;
                return std::pair(isSequential ? id : sequential_, isSequential ? diverging_ : id);
            };
            connect(action, &QAction::hovered, this, [this, tried] {
                const auto [sequential, diverging] = tried();
                emit preview(sequential, diverging);
            });
            connect(action, &QAction::triggered, this, [this, id, &chosenId] {
                chosenId = id;
                emit chosen(sequential_, diverging_);
            });
        }
    };
    add(tr("Low to high"), sequentialMaps(), sequential_);
    add(tr("Differences"), divergingMaps(), diverging_);
}

} // namespace kvscope::ui
