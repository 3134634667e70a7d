#include "ui/widgets/colour_map_menu.h"

#include "ui/colour_maps.h"

#include <QActionGroup>
#include <QProxyStyle>

namespace kvscope::ui {

namespace {

/// Bars as wide as they are: a menu's icons are small squares otherwise.
class WideIcons final : public QProxyStyle {
public:
    using QProxyStyle::QProxyStyle;
    int pixelMetric(PixelMetric metric, const QStyleOption* option, const QWidget* widget) const override {
        return metric == PM_SmallIconSize ? 96 : QProxyStyle::pixelMetric(metric, option, widget);
    }
};

} // namespace

ColourMapMenu::ColourMapMenu(QWidget* parent)
    : QMenu(tr("&Colour Maps"), parent), sequential_(QLatin1String(sequentialMaps().front().id)),
      diverging_(QLatin1String(divergingMaps().front().id)) {
    setToolTipsVisible(true);
    auto* style = new WideIcons(QStringLiteral("Fusion"));
    style->setParent(this);
    setStyle(style);
    rebuild();
    connect(this, &QMenu::aboutToHide, this, [this] { emit preview(sequential_, diverging_); });
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
        addSection(heading);
        auto* group = new QActionGroup(this);
        for (const ColourMap& map : maps) {
            const QString id = QLatin1String(map.id);
            QAction* action = addAction(colourMapIcon(map, devicePixelRatioF()), tr(map.title));
            action->setToolTip(tr(map.help));
            action->setData(id);
            action->setCheckable(true);
            action->setChecked(id == chosenId);
            action->setIconVisibleInMenu(true);
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
