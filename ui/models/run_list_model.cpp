#include "ui/models/run_list_model.h"

#include "profiler/import/import.h"
#include "ui/frame/as_written.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/run_names.h"
#include "ui/models/format.h"

#include <QDateTime>
#include <QDir>
#include <QFileInfo>

#include <algorithm>

namespace kvscope::ui {

QString statusText(const RunRow& row, bool live) {
    QString status = QString::fromStdString(row.status.text());
    if (row.backend == RunBackend::Imported) return QObject::tr("imported timeline");
    if (live)
        status = QObject::tr("live");
    else if (row.stale)
        status = QObject::tr("interrupted");
    else if (status.isEmpty())
        status = QObject::tr("starting");
    if (row.iterations > 0) return QObject::tr("%1 iterations · %2").arg(formatCount(row.iterations), status);
    const int decodes = row.prompts.decodesBelow(row.steps);
    if (decodes == 1) return QObject::tr("1 decode step · %1").arg(status);
    if (decodes > 1) return QObject::tr("%1 decode steps · %2").arg(formatCount(decodes), status);
    return status;
}

QString lossText(const RunRow& row) {
    return row.droppedSteps > 0 ? QObject::tr("%1 steps were dropped while recording: sums are too small")
                                      .arg(formatCount(row.droppedSteps))
                                : QString();
}

RunListModel::RunListModel(Workspace& workspace, QObject* parent) : QAbstractListModel(parent), workspace_(workspace) {
    connect(&workspace, &Workspace::runsChanged, this, &RunListModel::follow);
    for (const auto signal : {&Workspace::currentChanged, &Workspace::compareChanged, &Workspace::advanced})
        connect(&workspace, signal, this, &RunListModel::follow);
    follow();
}

void RunListModel::follow() {
    const std::vector<OpenRun>& now = workspace_.runs();
    const auto named = [](const OpenRun& a, const OpenRun& b) { // whether both give the same name
        return a.key == b.key && a.row.name == b.row.name && a.row.createdUtc == b.row.createdUtc &&
               a.row.paramsJson == b.row.paramsJson && a.row.method == b.row.method && a.row.model == b.row.model &&
               a.row.deviceSlots == b.row.deviceSlots && a.row.link == b.row.link && a.row.device == b.row.device &&
               a.row.level == b.row.level;
    };
    if (!std::equal(now.begin(), now.end(), runs_.begin(), runs_.end(), named)) {
        names_.clear();
        for (const OpenRun& run : now) names_ << runName(run, now);
    }
    const auto sameKeys = [](const OpenRun& a, const OpenRun& b) { return a.key == b.key; };
    if (now.size() == runs_.size() && std::equal(now.begin(), now.end(), runs_.begin(), sameKeys)) {
        runs_ = now;
        if (!runs_.empty()) emit dataChanged(index(0), index(int(runs_.size()) - 1));
        return;
    }
    beginResetModel();
    runs_ = now;
    endResetModel();
}

int RunListModel::rowCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : int(runs_.size()); }

std::optional<RunKey> RunListModel::keyOf(const QModelIndex& index) const {
    if (!index.isValid() || index.row() >= int(runs_.size())) return std::nullopt;
    return runs_[index.row()].key;
}

QModelIndex RunListModel::indexOf(const RunKey& key) const {
    for (std::size_t row = 0; row < runs_.size(); ++row)
        if (runs_[row].key == key) return index(int(row));
    return {};
}

QVariant RunListModel::data(const QModelIndex& index, int role) const {
    if (!index.isValid() || index.row() >= int(runs_.size())) return {};
    const OpenRun& run = runs_[index.row()];
    const RunRow& row = run.row;
    switch (role) {
    case Qt::DisplayRole:
        return names_[index.row()];
    case SubtitleRole: {
        const QDateTime created =
            QDateTime::fromString(QString::fromStdString(row.createdUtc), Qt::ISODate).toLocalTime();
        const QString status = statusText(row, run.live);
        return created.isValid() ? status + QStringLiteral(" · ") + created.toString(QStringLiteral("hh:mm")) : status;
    }
    case StatusRole:
        return QString::fromStdString(row.status.text());
    case LiveRole:
        return run.live;
    case PlaceRole: {
        const auto place = placeOf(workspace_, run.key);
        return place ? QVariant(int(*place)) : QVariant();
    }
    case FreePlaceRole:
        return int(workspace_.sides().size());
    case WarningRole: {
        const QString broken = brokenText(workspace_, run.key);
        return broken.isEmpty() ? lossText(row) : broken;
    }
    case Qt::ToolTipRole: {
        const auto place = placeOf(workspace_, run.key);
        QStringList lines{
            place ? letteredName(*place, workspace_) : names_[index.row()],
            QStringLiteral("%1 · %2").arg(
                QString::fromStdString(row.createdUtc),
                QString::fromStdString(row.backend == RunBackend::Imported ? row.statusMessage : row.model))};
        if (!row.method.empty())
            lines << QStringLiteral("%1: %2").arg(QString::fromStdString(row.method), settingsText(row));
        lines << QDir::toNativeSeparators(run.key.path);
        if (const QString loss = lossText(row); !loss.isEmpty()) lines << loss;
        if (const QString broken = brokenText(workspace_, run.key); !broken.isEmpty())
            lines << QObject::tr("%1 of the trace format: the list of them is in this run's menu").arg(broken);
        return asWritten(lines.join(QLatin1Char('\n')));
    }
    case Qt::AccessibleTextRole: {
        const auto place = placeOf(workspace_, run.key);
        return place ? letteredName(*place, workspace_) : names_[index.row()];
    }
    default:
        return {};
    }
}

} // namespace kvscope::ui
