#include "ui/plots/plot_accessible.h"

#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"

#include <QAccessibleWidget>

namespace kvscope::ui {

namespace {

class PlotAccessible final : public QAccessibleWidget {
public:
    explicit PlotAccessible(PlotCanvas* plot) : QAccessibleWidget(plot, QAccessible::Chart) {}
    QString text(QAccessible::Text kind) const override {
        if (kind == QAccessible::Value)
            for (QWidget* above = widget()->parentWidget(); above; above = above->parentWidget())
                if (auto* view = qobject_cast<PlotView*>(above)) return view->cursorText();
        return QAccessibleWidget::text(kind);
    }
};

QAccessibleInterface* makeInterface(const QString&, QObject* object) {
    auto* plot = qobject_cast<PlotCanvas*>(object);
    return plot ? new PlotAccessible(plot) : nullptr;
}

} // namespace

void makePlotsAccessible() {
    static const bool once = (QAccessible::installFactory(makeInterface), true);
    (void)once;
}

} // namespace kvscope::ui
