#include "ui/window/settings.h"

#include <QCoreApplication>
#include <QDir>
#include <QFileInfo>
#include <QSettings>
#include <QStandardPaths>

namespace kvscope::ui {
namespace {

// The number of the dock layout. A saved layout with another number is ignored, because it would hide docks that are
// new.
constexpr int kLayoutVersion = 1;

} // namespace

Settings::Settings(bool fresh, const QString& file)
    : fresh_(fresh),
      file_(file.isEmpty() ? QDir(QStandardPaths::writableLocation(QStandardPaths::GenericConfigLocation))
                                 .filePath("kvscope/desktop.ini")
                           : file) {}

SavedSession Settings::load() const {
    SavedSession session;
    if (fresh_) return session;
    const QSettings settings(file_, QSettings::IniFormat);
    if (settings.value("window/layoutVersion").toInt() == kLayoutVersion) {
        session.geometry = settings.value("window/geometry").toByteArray();
        session.panels.docks = settings.value("window/docks").toByteArray();
        session.panels.inspectorWaits = settings.value("window/inspectorWaits").toBool();
        session.panels.filterWaits = settings.value("window/filterWaits").toBool();
        session.panels.roomyTokens = settings.value("window/roomyTokens").toInt();
    }
    session.theme = settings.value("window/theme", session.theme).toString();
    session.countCold = settings.value("numbers/countCold", session.countCold).toBool();
    session.modelPath = settings.value("traces/modelPath", session.modelPath).toBool();
    session.sequentialMap = settings.value("window/sequentialMap").toString();
    session.divergingMap = settings.value("window/divergingMap").toString();
    session.view = settings.value("window/view").toString();
    session.places.apart = settings.value("window/viewsApart").toStringList();
    session.places.docks = settings.value("window/viewDocks").toByteArray();
    session.places.order = settings.value("window/viewOrder").toStringList();
    session.form = settings.value("form/values").toMap();
    session.server = settings.value("server/values").toMap();
    session.views = settings.value("views/remembered").toMap();
    session.recentFiles = settings.value("files/recent").toStringList();
    session.recentCommands = settings.value("palette/recent").toStringList();
    session.openFiles = settings.value("files/open").toStringList();
    return session;
}

QString Settings::save(const SavedSession& session) const {
    if (fresh_) return {};
    QSettings settings(file_, QSettings::IniFormat);
    settings.setValue("window/layoutVersion", kLayoutVersion);
    settings.setValue("window/geometry", session.geometry);
    settings.setValue("window/docks", session.panels.docks);
    settings.setValue("window/inspectorWaits", session.panels.inspectorWaits);
    settings.setValue("window/filterWaits", session.panels.filterWaits);
    settings.setValue("window/roomyTokens", session.panels.roomyTokens);
    settings.setValue("window/theme", session.theme);
    settings.setValue("numbers/countCold", session.countCold);
    settings.setValue("traces/modelPath", session.modelPath);
    settings.setValue("window/sequentialMap", session.sequentialMap);
    settings.setValue("window/divergingMap", session.divergingMap);
    settings.setValue("window/view", session.view);
    settings.setValue("window/viewsApart", session.places.apart);
    settings.setValue("window/viewDocks", session.places.docks);
    settings.setValue("window/viewOrder", session.places.order);
    settings.setValue("form/values", session.form);
    settings.setValue("server/values", session.server);
    settings.setValue("views/remembered", session.views);
    settings.setValue("files/recent", session.recentFiles);
    settings.setValue("palette/recent", session.recentCommands);
    settings.setValue("files/open", session.openFiles);
    settings.sync();
    if (settings.status() != QSettings::AccessError) return {};
    return QCoreApplication::translate("kvscope::ui::Settings",
                                       "The settings are not kept for the next start: %1 could not be written; is its "
                                       "folder writable, and is there room?")
        .arg(QDir::toNativeSeparators(file_));
}

QString Settings::journalFolder() const {
    return QFileInfo(file_).absoluteDir().filePath(QStringLiteral("open-windows"));
}

QStringList withRecent(QStringList recent, const QString& file) {
    recent.removeAll(file);
    recent.prepend(file);
    while (recent.size() > 10) recent.removeLast();
    return recent;
}

} // namespace kvscope::ui
