#include "ui/frame/run_names.h"

#include "profiler/compare/common_steps.h"
#include "profiler/read/setting_words.h"
#include "ui/look/theme.h"

#include <QCoreApplication>
#include <QDateTime>
#include <QFileInfo>
#include <QJsonDocument>
#include <QJsonObject>
#include <QStringList>

#include <algorithm>
#include <array>
#include <string_view>

namespace kvscope::ui {

namespace {

constexpr qsizetype kMostSettings = 3;       // as many as fit a legend; the run list's tooltip shows all
constexpr std::string_view kNoSetting = "-"; // of settingDifferences, where a run has no such setting

QString plainName(const OpenRun& run) {
    return run.row.name.empty() ? QFileInfo(run.key.path).fileName() : QString::fromStdString(run.row.name);
}

/// The settings of `run` in which at least one of `others` differs, each as "12 total blocks".
QStringList settingsApart(const OpenRun& run, const std::vector<const OpenRun*>& others) {
    QStringList apart;
    for (const OpenRun* other : others)
        for (const SettingDifference& difference : settingDifferences(run.row, other->row)) {
            if (difference.a == kNoSetting) continue; // the other run's name says what it has
            const QString own = QString::fromStdString(difference.a);
            const QString text = difference.key == "method" || difference.key == "model"
                                     ? own
                                     : settingText(difference.key, difference.a);
            if (!apart.contains(text)) apart << text;
        }
    return apart;
}

/// One of the colours beside those of A and B.
QColor furtherColour(std::size_t number) {
    // Those that differ most from each other and from A's and B's, in both themes.
    static constexpr std::array<std::size_t, 8> kOrder{6, 3, 9, 10, 7, 11, 2, 1};
    return Theme::current().component[kOrder[number % kOrder.size()]];
}

QString recordedAt(const OpenRun& run) {
    return QDateTime::fromString(QString::fromStdString(run.row.createdUtc), Qt::ISODate)
        .toLocalTime()
        .toString(QStringLiteral("hh:mm:ss"));
}

} // namespace

QString settingText(const std::string& key, const std::string& value) {
    return QString::fromStdString(settingWords(key, value));
}

QString runLetter(std::size_t place) {
    return place < 26 ? QString(QChar(char16_t(u'A' + place))) : QStringLiteral("#%1").arg(place + 1);
}

QColor runColour(std::size_t place) {
    const Theme& theme = Theme::current();
    if (place < 2) return place == 0 ? theme.runA : theme.runB;
    return furtherColour(place - 2);
}

QColor lastingColour(const RunKey& key) {
    std::size_t sum = 0;
    for (const QChar c : QFileInfo(key.path).fileName()) sum = sum * 31 + c.unicode(); // the same in every process
    return furtherColour(sum + std::size_t(key.runId));
}

std::optional<std::size_t> placeOf(const Workspace& workspace, const RunKey& key) {
    const auto sides = workspace.sides();
    const auto found = std::find_if(sides.begin(), sides.end(), [&](const OpenRun* run) { return run->key == key; });
    return found == sides.end() ? std::nullopt : std::optional(std::size_t(found - sides.begin()));
}

QString runName(const OpenRun& run, const std::vector<OpenRun>& open) {
    const QString name = plainName(run);
    std::vector<const OpenRun*> namesakes;
    for (const OpenRun& other : open)
        if (!(other.key == run.key) && plainName(other) == name) namesakes.push_back(&other);
    if (namesakes.empty()) return name;
    const QStringList settings = settingsApart(run, namesakes).mid(0, kMostSettings);
    QStringList parts = settings;
    // Whether a namesake has the same settings as `run` and is also the same by `same`. The time of recording tells
    // repeated runs apart, the file tells copies of a trace apart, and the number tells runs of one file apart.
    const auto alike = [&](auto&& same) {
        return std::any_of(namesakes.begin(), namesakes.end(), [&](const OpenRun* other) {
            return settingsApart(*other, {&run}).isEmpty() && settingsApart(run, {other}).isEmpty() && same(*other);
        });
    };
    if (alike([](const OpenRun&) { return true; })) {
        const QString at = recordedAt(run);
        if (!at.isEmpty()) parts << at;
        if (at.isEmpty() || alike([&](const OpenRun& other) { return recordedAt(other) == at; })) {
            parts << QFileInfo(run.key.path).fileName();
            if (alike([&](const OpenRun& other) { return other.key.path == run.key.path; }))
                parts << QCoreApplication::translate("RunNames", "run %1").arg(run.key.runId);
        }
    }
    return parts.isEmpty() ? name : name + QStringLiteral(" · ") + parts.join(QStringLiteral(", "));
}

QString settingsText(const RunRow& row) {
    QStringList parts;
    const QJsonObject settings = QJsonDocument::fromJson(QByteArray::fromStdString(row.paramsJson)).object();
    for (auto it = settings.begin(); it != settings.end(); ++it)
        parts << settingText(it.key().toStdString(), it.value().toVariant().toString().toStdString());
    return parts.join(QStringLiteral(", "));
}

QString letteredName(std::size_t place, const Workspace& workspace) {
    const auto sides = workspace.sides();
    return place < sides.size()
               ? QStringLiteral("%1: %2").arg(runLetter(place), runName(*sides[place], workspace.runs()))
               : QString();
}

bool isGrowing(const OpenRun& run) { return run.live || (run.row.status == RunStatus::Running && !run.row.stale); }

} // namespace kvscope::ui
