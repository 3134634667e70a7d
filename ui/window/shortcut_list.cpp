#include "ui/window/shortcut_list.h"

#include "ui/plots/plot_canvas.h"
#include "ui/timeline/timeline_canvas.h"
#include "ui/timeline/timeline_panel.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/sql_editor.h"
#include "ui/widgets/token_strip.h"

#include <QAction>
#include <QCoreApplication>
#include <QShortcut>

#include <algorithm>

namespace kvscope::ui {

namespace {

QString plainText(QString text) {
    text.remove(QStringLiteral("…")).remove(QStringLiteral("..."));
    return text.remove(QLatin1Char('&'));
}

} // namespace

std::vector<ShortcutText> shortcutsOf(const QWidget& window) {
    std::vector<ShortcutText> found;
    // The window's own actions come before those of its widgets.
    QList<QAction*> actions = window.findChildren<QAction*>(Qt::FindDirectChildrenOnly);
    for (QAction* action : window.findChildren<QAction*>())
        if (!actions.contains(action)) actions << action;
    for (const QAction* action : actions)
        if (const QString keys = keysOf(*action); !keys.isEmpty())
            found.push_back({shortcutGroupOf(*action), plainText(action->text()), keys});
    for (const QShortcut* shortcut : window.findChildren<QShortcut*>())
        if (!shortcut->whatsThis().isEmpty())
            found.push_back({shortcutGroupOf(*shortcut), shortcut->whatsThis(),
                             shortcut->key().toString(QKeySequence::NativeText)});
    for (const auto& gestures : {PlotCanvas::gestures(), TimelineCanvas::gestures(), TimelinePanel::gestures(),
                                 TokenStrip::gestures(), RunList::gestures(), SqlEditor::gestures()})
        found.insert(found.end(), gestures.begin(), gestures.end());
    // Groups the entries; a group stands where its first entry stood. An action that occurs twice with the same keys is
    // listed once.
    std::vector<ShortcutText> sorted;
    for (const ShortcutText& first : found) {
        if (std::any_of(sorted.begin(), sorted.end(), [&](const ShortcutText& s) { return s.group == first.group; }))
            continue;
        for (const ShortcutText& entry : found)
            if (entry.group == first.group && std::find(sorted.begin(), sorted.end(), entry) == sorted.end())
                sorted.push_back(entry);
    }
    return sorted;
}

} // namespace kvscope::ui
