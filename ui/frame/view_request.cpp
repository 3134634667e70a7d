#include "ui/frame/view_request.h"

#include "ui/frame/home_window.h"
#include "ui/frame/shows_time.h"
#include "ui/frame/view.h"

#include <QAction>
#include <QComboBox>
#include <QCoreApplication>
#include <QMenu>

namespace kvscope::ui {

View* viewIn(const QWidget& window, const QString& id) {
    for (View* view : window.findChildren<View*>())
        if (view->id() == id) return view;
    return nullptr;
}

bool requestView(const QWidget& from, const QString& id, const QString& metric) {
    const QWidget* window = homeOf(from);
    // The action of the view in the menu, which every view has.
    auto* show = window->findChild<QAction*>(QStringLiteral("view_") + id);
    if (!show) return false;
    show->trigger();
    const View* view = metric.isEmpty() ? nullptr : viewIn(*window, id);
    auto* picker = view ? view->findChild<QComboBox*>(QStringLiteral("metric")) : nullptr;
    if (const int index = picker ? picker->findData(metric) : -1; index >= 0) picker->setCurrentIndex(index);
    return true;
}

bool requestTime(const QWidget& from, const QString& id, double fromNs, double toNs) {
    const QWidget* window = homeOf(from);
    if (!requestView(from, id)) return false;
    if (auto* shows = dynamic_cast<ShowsTime*>(viewIn(*window, id))) shows->showTime(fromNs, toNs);
    return true;
}

void addShowIn(QMenu& menu, QWidget& from, const QString& exceptTitle, std::function<void()> before) {
    QMenu* others = nullptr;
    for (const ViewEntry& entry : views()) {
        const QString id = QString::fromLatin1(entry.id), title = View::tr(entry.title);
        if (entry.withoutRun || title == exceptTitle ||
            !homeOf(from)->findChild<QAction*>(QStringLiteral("view_") + id))
            continue;
        if (!others) {
            menu.addSeparator();
            others = menu.addMenu(QCoreApplication::translate("ViewRequest", "Show this place in"));
            others->setObjectName(QStringLiteral("showIn"));
        }
        others->addAction(title, &from, [&from, before, id] {
            if (before) before();
            requestView(from, id);
        });
    }
}

} // namespace kvscope::ui
