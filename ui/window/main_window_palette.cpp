// What the command palette lists, and where Ctrl+F leads.
#include "ui/frame/small_widgets.h"
#include "ui/frame/view.h"
#include "ui/widgets/command_palette.h"
#include "ui/widgets/filter_bar.h"
#include "ui/widgets/session_form.h"
#include "ui/window/main_window.h"

#include <QAbstractButton>
#include <QAction>
#include <QDockWidget>
#include <QFormLayout>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QMenuBar>

namespace kvscope::ui {
namespace {

QString withoutMarks(QString text) { return text.remove(QStringLiteral("…")).remove(QLatin1Char('&')); }

PaletteEntry entryOf(QAction* action, const QString& id, const QString& group) {
    PaletteEntry entry;
    entry.id = id;
    entry.group = group;
    entry.text = withoutMarks(action->text());
    entry.keys = action->shortcut().toString(QKeySequence::NativeText);
    entry.enabled = action->isEnabled();
    entry.checked = action->isCheckable() && action->isChecked();
    entry.run = [action] { action->trigger(); };
    return entry;
}

/// Adds the entries of a menu and of the menus in it. Entries that a menu makes anew each time it opens have the menu's
/// name before their own.
void addMenu(const QMenu& menu, const QString& group, std::vector<PaletteEntry>& entries) {
    for (QAction* action : menu.actions()) {
        if (action->isSeparator() || action->text().isEmpty()) continue;
        if (const QMenu* inner = action->menu()) {
            addMenu(*inner, group + QStringLiteral(" › ") + withoutMarks(inner->title()), entries);
            continue;
        }
        const QString name = action->objectName();
        entries.push_back(entryOf(action, name.isEmpty() ? group + QLatin1Char('/') + action->text() : name, group));
    }
}

/// Brings a field of the form to the eye and gives it the keyboard.
void showField(QWidget* field) {
    for (QWidget* above = field->parentWidget(); above != nullptr; above = above->parentWidget()) {
        if (auto* section = qobject_cast<Section*>(above)) section->setExpanded(true);
        if (auto* dock = qobject_cast<QDockWidget*>(above)) {
            dock->show();
            dock->raise();
        }
    }
    field->setFocus(Qt::ShortcutFocusReason);
}

/// The first widget of a row of a form that takes the keyboard.
QWidget* editorIn(QLayoutItem* item) {
    if (item == nullptr) return nullptr;
    if (QWidget* widget = item->widget()) return widget->focusPolicy() != Qt::NoFocus ? widget : nullptr;
    if (QLayout* layout = item->layout())
        for (int i = 0; i < layout->count(); ++i)
            if (QWidget* found = editorIn(layout->itemAt(i))) return found;
    return nullptr;
}

/// The words of a row of a form: those of its label, or of the box that fills it.
QString rowText(const QFormLayout& layout, int row, QWidget*& editor) {
    if (const QLayoutItem* whole = layout.itemAt(row, QFormLayout::SpanningRole)) {
        auto* box = qobject_cast<QAbstractButton*>(whole->widget());
        editor = box;
        return box ? box->text() : QString();
    }
    const QLayoutItem* label = layout.itemAt(row, QFormLayout::LabelRole);
    const auto* words = label ? qobject_cast<QLabel*>(label->widget()) : nullptr;
    editor = editorIn(layout.itemAt(row, QFormLayout::FieldRole));
    return words ? words->text() : QString();
}

/// The rows of the session form, by their labels.
void addFields(const QWidget& form, std::vector<PaletteEntry>& entries) {
    for (const QFormLayout* layout : form.findChildren<QFormLayout*>())
        for (int row = 0; row < layout->rowCount(); ++row) {
            QWidget* editor = nullptr;
            PaletteEntry entry;
            entry.text = withoutMarks(rowText(*layout, row, editor));
            if (entry.text.isEmpty() || editor == nullptr) continue;
            entry.id = QStringLiteral("field/") + entry.text;
            entry.group = MainWindow::tr("Setting of the session");
            entry.enabled = editor->isEnabled();
            entry.run = [field = QPointer<QWidget>(editor)] {
                if (field) showField(field);
            };
            entries.push_back(std::move(entry));
        }
}

} // namespace

std::vector<PaletteEntry> MainWindow::paletteEntries() {
    std::vector<PaletteEntry> entries;
    for (QAction* top : menuBar()->actions())
        if (top->menu() != nullptr) addMenu(*top->menu(), withoutMarks(top->text()), entries);
    addFields(*form_, entries);
    if (const OpenRun* run = workspace_->current())
        for (int layer = 0; layer < run->row.layers; ++layer) {
            PaletteEntry entry;
            entry.id = QStringLiteral("layer/%1").arg(layer);
            entry.group = tr("Layer");
            entry.text = tr("Layer %1").arg(layer);
            entry.run = [this, layer] {
                Cursor cursor = workspace_->cursor();
                cursor.layer = layer;
                workspace_->setCursor(cursor);
            };
            entries.push_back(std::move(entry));
        }
    for (const OpenRun& run : workspace_->runs()) {
        PaletteEntry entry;
        entry.id = QStringLiteral("run/%1/%2").arg(run.key.path).arg(run.key.runId);
        entry.group = tr("Run");
        entry.text = QString::fromStdString(run.row.name);
        entry.run = [this, key = run.key] { workspace_->setCurrent(key); };
        entries.push_back(std::move(entry));
    }
    return entries;
}

std::vector<PaletteEntry> MainWindow::paletteSearches(const QString& typed) {
    PaletteEntry spans;
    spans.id = QStringLiteral("spans");
    spans.group = tr("Timeline");
    spans.text = tr("Spans named “%1”").arg(typed);
    spans.enabled = workspace_->current() != nullptr;
    spans.run = [this, typed] {
        showView(QStringLiteral("timeline"));
        View* view = currentView();
        auto* field = view ? view->findChild<QLineEdit*>(QStringLiteral("search")) : nullptr;
        if (field == nullptr) return;
        field->setText(typed);
        field->setFocus(Qt::ShortcutFocusReason);
    };
    return {spans};
}

void MainWindow::showPalette() {
    if (palette_ == nullptr) {
        palette_ = new CommandPalette(
            this, [this] { return paletteEntries(); }, [this](const QString& typed) { return paletteSearches(typed); });
        palette_->setRecent(saved_.recentCommands);
        connect(palette_, &CommandPalette::used, this, [this] { saved_.recentCommands = palette_->recent(); });
    }
    if (palette_->isVisible())
        palette_->leave();
    else
        palette_->open();
}

/// The field in which the view in front is searched; where it has none, the filter's text.
void MainWindow::findInView() {
    View* view = currentView();
    QLineEdit* field = view ? view->findChild<QLineEdit*>(QStringLiteral("search")) : nullptr;
    if (field == nullptr || !field->isVisible()) {
        filter_->show();
        field = filter_->findChild<QLineEdit*>(QStringLiteral("filterText"));
    }
    if (field == nullptr) return filter_->edit();
    field->setFocus(Qt::ShortcutFocusReason);
    field->selectAll();
}

} // namespace kvscope::ui
