// What the desktop remembers between two starts.
#pragma once

#include <QByteArray>
#include <QString>
#include <QStringList>
#include <QVariantMap>

namespace kvscope::ui {

struct SavedSession {
    QByteArray geometry, docks;                       // of the window; empty: the default layout
    bool inspectorWaits = false, filterWaits = false; // hidden because the window was small
    int roomyTokens = 0; // height of the tokens before a low window took it; 0: they have it
    QString theme = QStringLiteral("light");
    bool countCold = false;              // rates, shares and means count cold steps
    bool modelPath = true;               // traces say where the model lies
    QString sequentialMap, divergingMap; // ids of colour maps; empty: the defaults
    QString view;                        // id of the view in front
    QVariantMap form;                    // SessionForm::values
    QVariantMap views;                   // by id of the view, what it remembers (views/remembers.h)
    QStringList recentFiles;             // newest first
    QStringList openFiles;               // traces that were open
    bool operator==(const SavedSession&) const = default;
};

/// A file in the user's configuration folder. With `fresh` nothing is read and nothing is written.
class Settings {
public:
    explicit Settings(bool fresh = false, const QString& file = {}); // empty: the user's own
    SavedSession load() const;
    void save(const SavedSession& session) const;
    bool fresh() const { return fresh_; }
    /// Where windows say what they have open, for the case that they crash (session_journal.h).
    QString journalFolder() const;

private:
    bool fresh_;
    QString file_;
};

/// `file` in front, no duplicates, at most ten.
QStringList withRecent(QStringList recent, const QString& file);

} // namespace kvscope::ui
