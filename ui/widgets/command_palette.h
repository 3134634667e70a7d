// A field over the window in which a few letters find everything that can be done: actions, views, layers, settings,
// spans. The keyboard alone is enough.
#pragma once

#include "base/indexed.h"

#include <QPointer>
#include <QString>
#include <QStringList>
#include <QWidget>

#include <functional>
#include <vector>

class QLineEdit;
class QListWidget;

namespace kvscope::ui {

struct PaletteEntry {
    QString id;    // stays the same between two starts
    QString group; // "View", "Layer", "Setting", ...
    QString text;
    QString keys;         // its shortcut; may be empty
    bool enabled = true;  // false: listed, and not done
    bool checked = false; // a switch that is on
    std::function<void()> run;
};

class CommandPalette final : public QWidget {
    Q_OBJECT
public:
    /// What can be done now; asked whenever the palette opens.
    using Entries = std::function<std::vector<PaletteEntry>()>;
    /// Entries that are made of what is typed, listed behind the others; may be null.
    using Typed = std::function<std::vector<PaletteEntry>(const QString& typed)>;
    CommandPalette(QWidget* parent, Entries entries, Typed typed);

    void open();
    void leave(); // gives the keyboard back to where it was
    /// Ids of what was used, the last one first; such entries come first.
    void setRecent(const QStringList& ids) { recent_ = ids; }
    const QStringList& recent() const { return recent_; }
    /// The names that are listed, for tests and screen readers.
    QStringList listed() const;

signals:
    void used(const QString& id);

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;
    void paintEvent(QPaintEvent* event) override;

private:
    void fill();
    void runChosen();
    void place();

    Entries entries_;
    Typed typed_;
    Numbered<PaletteEntry> all_, shown_;
    QStringList recent_;
    QLineEdit* field_;
    QListWidget* list_;
    QPointer<QWidget> before_;
};

} // namespace kvscope::ui
