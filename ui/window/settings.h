// Loads and saves what the desktop remembers between two starts.
#pragma once

#include <QByteArray>
#include <QString>
#include <QStringList>
#include <QVariantMap>

namespace kvscope::ui {

/// In which order the tabs stand, which views have left them, and where these stand.
struct ViewPlaces {
    QStringList apart;      // ids of views
    QByteArray docks;       // QMainWindow::saveState of the ViewArea
    QStringList order = {}; // ids of views, from the left; empty: the order of views()
    bool operator==(const ViewPlaces&) const = default;
};

/// Where the panels around the views stand (panels.h).
struct PanelLayout {
    QByteArray docks = {}; // QMainWindow::saveState; empty: the default layout
    /// Whether the inspector and the filter bar are hidden because the window is small.
    bool inspectorWaits = false, filterWaits = false;
    /// Height of the tokens before the window became too low for it, in pixels; 0: the window is high enough.
    int roomyTokens = 0;
    bool operator==(const PanelLayout&) const = default;
};

struct SavedSession {
    QByteArray geometry; // empty: the default
    PanelLayout panels;
    QString theme = QStringLiteral("light");
    bool countCold = false;              // whether rates, shares and means include cold steps
    bool modelPath = true;               // whether traces record the path of the model
    QString sequentialMap, divergingMap; // ids of colour maps; empty: default
    QString view;                        // id of the view in front of the tabs
    ViewPlaces places;                   // of the views
    QVariantMap form;                    // SessionForm::values
    QVariantMap server;                  // ServeDialog::values; empty: the dialog was never used
    /// By the id of a view, what the view remembers (ui/frame/remembers.h).
    QVariantMap views;
    QStringList recentFiles;    // newest first
    QStringList openFiles;      // the open traces
    QStringList recentCommands; // of the command palette, the last one first
    bool operator==(const SavedSession&) const = default;
};

/// The settings in a file, by default in the user's configuration folder. With `fresh` nothing is read or written.
class Settings {
public:
    /// `file`: empty for the user's own settings.
    explicit Settings(bool fresh = false, const QString& file = {});
    SavedSession load() const;
    /// @return what is wrong, as a sentence for a person, where the file cannot be written; empty: it is saved
    QString save(const SavedSession& session) const;
    bool fresh() const { return fresh_; }
    /// The folder in which the windows keep their journals (session_journal.h).
    QString journalFolder() const;

private:
    bool fresh_;
    QString file_;
};

/// The list with `file` in front, without duplicates, and with at most ten entries.
QStringList withRecent(QStringList recent, const QString& file);

} // namespace kvscope::ui
