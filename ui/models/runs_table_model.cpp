#include "ui/models/runs_table_model.h"

#include "core/trace/run_meta.h"
#include "profiler/compare/common_steps.h"
#include "profiler/read/denoising.h"
#include "profiler/read/run_numbers.h"
#include "ui/frame/as_written.h"
#include "ui/frame/run_checks.h"
#include "ui/frame/run_names.h"
#include "ui/models/format.h"
#include "ui/models/run_list_model.h"
#include "ui/models/run_numbers_feed.h"

#include <QCoreApplication>
#include <QDateTime>
#include <QDir>
#include <QFileInfo>
#include <QFont>
#include <QIcon>
#include <QLocale>
#include <QPainter>
#include <QPixmap>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr double kUnknownNumber = std::numeric_limits<double>::quiet_NaN();

struct TableColumn {
    const char *id, *title, *help;
    bool isNumber = false;
};

const std::array<TableColumn, RunsTableModel::kColumns>& tableColumns() {
    static const std::array<TableColumn, RunsTableModel::kColumns> all{{
        {"name", QT_TRANSLATE_NOOP("RunsTable", "Run"),
         QT_TRANSLATE_NOOP("RunsTable", "The run's own name, or the one that somebody gave it. The colour stays with "
                                        "the run")},
        {"mark", QT_TRANSLATE_NOOP("RunsTable", "Mark"),
         QT_TRANSLATE_NOOP("RunsTable", "A is shown in all views, B and the next ones are compared with it. A click "
                                        "marks a run, or takes its mark away")},
        {"method", QT_TRANSLATE_NOOP("RunsTable", "Method"), QT_TRANSLATE_NOOP("RunsTable", "Attention method")},
        {"model", QT_TRANSLATE_NOOP("RunsTable", "Model"), QT_TRANSLATE_NOOP("RunsTable", "Model that decoded")},
        {"budget_blocks", QT_TRANSLATE_NOOP("RunsTable", "Budget"),
         QT_TRANSLATE_NOOP("RunsTable", "Most blocks that a KV head attends to at once"), true},
        {"differs", QT_TRANSLATE_NOOP("RunsTable", "What differs"),
         QT_TRANSLATE_NOOP("RunsTable", "The settings in which the runs of this table differ, with this run's values")},
        {"steps", QT_TRANSLATE_NOOP("RunsTable", "Steps"), QT_TRANSLATE_NOOP("RunsTable", "Recorded decode steps"),
         true},
        {"tokens_per_s", QT_TRANSLATE_NOOP("RunsTable", "Tokens/s"),
         QT_TRANSLATE_NOOP("RunsTable", "Tokens of all sequences per second of the decode steps' wall time"), true},
        {"hit_rate", QT_TRANSLATE_NOOP("RunsTable", "Hit rate"),
         QT_TRANSLATE_NOOP("RunsTable", "Selected blocks that were resident, of all selected blocks"), true},
        {"h2d_bytes_per_token", QT_TRANSLATE_NOOP("RunsTable", "Bytes/token"),
         QT_TRANSLATE_NOOP("RunsTable", "Bytes from the host to the device for each token that decode steps fed"),
         true},
        {"exposed_ns_per_step", QT_TRANSLATE_NOOP("RunsTable", "Exposed"),
         QT_TRANSLATE_NOOP("RunsTable", "Link time that a decode step waits for, mean"), true},
        {"device_kv_bytes", QT_TRANSLATE_NOOP("RunsTable", "Device KV"),
         QT_TRANSLATE_NOOP("RunsTable", "Device memory for keys and values: of the block slots of all layers, or, "
                                        "of full attention, of all tokens. Without weights and index"),
         true},
        {"answer", QT_TRANSLATE_NOOP("RunsTable", "Answer"),
         QT_TRANSLATE_NOOP("RunsTable", "Whether the fact that the prompt asks for was answered")},
        {"pinned", QT_TRANSLATE_NOOP("RunsTable", "Pin"),
         QT_TRANSLATE_NOOP("RunsTable", "Pinned runs stand first, however the table is sorted")},
        {"tags", QT_TRANSLATE_NOOP("RunsTable", "Tags"), QT_TRANSLATE_NOOP("RunsTable", "What people filed it under")},
        {"note", QT_TRANSLATE_NOOP("RunsTable", "Note"), QT_TRANSLATE_NOOP("RunsTable", "What people say of it")},
        {"started", QT_TRANSLATE_NOOP("RunsTable", "Started"),
         QT_TRANSLATE_NOOP("RunsTable", "When it was recorded, by this computer's clock")},
        {"status", QT_TRANSLATE_NOOP("RunsTable", "Status"), QT_TRANSLATE_NOOP("RunsTable", "How the recording ended")},
        {"file", QT_TRANSLATE_NOOP("RunsTable", "Trace"), QT_TRANSLATE_NOOP("RunsTable", "The file that holds it")},
    }};
    return all;
}

QString inTable(const char* text) { return QCoreApplication::translate("RunsTable", text); }

const TableColumn& tableColumn(int column) { return tableColumns()[std::size_t(column)]; }

/// Settings that have a column of their own, or that say nothing of what was decided.
bool hasOwnColumn(const std::string& key) {
    return key == "model" || key == "method" || key == "device" || key == "name";
}

/// Whether two runs have the same settings without comparing them one by one.
bool areSettingsEqual(const RunRow& a, const RunRow& b) {
    return a.paramsJson == b.paramsJson && a.method == b.method && a.model == b.model &&
           a.deviceSlots == b.deviceSlots && a.link == b.link && a.device == b.device && a.level == b.level;
}

QIcon colourDot(const QColor& colour) {
    constexpr int kSide = 12, kScale = 3;
    QPixmap dot(kSide * kScale, kSide * kScale);
    dot.fill(Qt::transparent);
    QPainter painter(&dot);
    painter.setRenderHint(QPainter::Antialiasing);
    painter.setPen(Qt::NoPen);
    painter.setBrush(colour);
    painter.drawEllipse(QRectF(dot.rect()).adjusted(kScale, kScale, -kScale, -kScale));
    painter.end();
    dot.setDevicePixelRatio(kScale);
    return QIcon(dot);
}

QString inOneLine(const std::string& text) { return QString::fromStdString(text).simplified(); }

} // namespace

RunsTableModel::RunsTableModel(Workspace& workspace, RunNumbersFeed& feed, QObject* parent)
    : QAbstractTableModel(parent), workspace_(workspace), feed_(feed) {
    for (const auto signal :
         {&Workspace::runsChanged, &Workspace::currentChanged, &Workspace::compareChanged, &Workspace::advanced})
        connect(&workspace, signal, this, &RunsTableModel::follow);
    connect(&feed, &RunNumbersFeed::read, this, &RunsTableModel::takeNumbers);
    follow();
}

/// Rows of runs that stay keep their places in the model, and so their selection.
void RunsTableModel::follow() {
    const std::vector<OpenRun>& now = workspace_.runs();
    const auto isOpen = [&](const RunKey& key) {
        return std::any_of(now.begin(), now.end(), [&](const OpenRun& run) { return run.key == key; });
    };
    bool settingsChanged = false;
    const bool sameRuns = std::equal(rows_.begin(), rows_.end(), now.begin(), now.end(),
                                     [](const Row& row, const OpenRun& run) { return row.run.key == run.key; });
    for (int at = sameRuns ? -1 : int(rows_.size()) - 1; at >= 0; --at) {
        if (isOpen(rows_[at].run.key)) continue;
        beginRemoveRows({}, at, at);
        rows_.erase(rows_.begin() + at);
        endRemoveRows();
        settingsChanged = true;
    }
    for (std::size_t at = 0; at < now.size(); ++at) { // the workspace keeps the order of its runs
        if (at < rows_.size() && rows_[at].run.key == now[at].key) {
            settingsChanged |= !areSettingsEqual(rows_[at].run.row, now[at].row);
            rows_[at].run = now[at];
            continue;
        }
        std::size_t end = at + 1; // of the runs that came together
        while (end < now.size() && (at >= rows_.size() || !(now[end].key == rows_[at].run.key))) ++end;
        beginInsertRows({}, int(at), int(end) - 1);
        for (std::size_t i = at; i < end; ++i) {
            Row added;
            added.run = now[i];
            rows_.insert(rows_.begin() + std::ptrdiff_t(i), std::move(added));
        }
        endInsertRows();
        at = end - 1;
        settingsChanged = true;
    }
    if (settingsChanged) tellDifferences();
    const auto sides = workspace_.sides();
    for (Row& row : rows_) {
        row.place.reset();
        for (std::size_t side = 0; side < sides.size(); ++side)
            if (sides[side]->key == row.run.key) row.place = side;
        fill(row);
    }
    if (!rows_.empty()) emit dataChanged(index(0, 0), index(int(rows_.size()) - 1, kColumns - 1));
}

void RunsTableModel::fill(Row& row) const {
    const std::string& labels = row.run.row.metaOr(run_meta::kLabels);
    if (labels != row.labelsJson) {
        row.labelsJson = labels;
        row.labels = parseRunLabels(labels);
    }
    const RunNumbers* numbers = feed_.find(row.run.key);
    row.summary.reset();
    row.answer.clear();
    if (numbers == nullptr) return;
    row.summary = numbers->sums.summary(row.run.row);
    row.answer = QString::fromStdString(numbers->answer);
}

void RunsTableModel::takeNumbers(const RunKey& key) {
    const QModelIndex at = indexOf(key);
    if (!at.isValid()) return;
    fill(rows_[at.row()]);
    emit dataChanged(at, at.siblingAtColumn(kColumns - 1));
}

/// Every run is compared with the first one: a setting that has several values is told of all runs that have it.
void RunsTableModel::tellDifferences() {
    std::vector<std::string> keys; // in the order in which they were found
    std::map<std::string, std::string> ofFirst;
    std::vector<std::map<std::string, std::string>> own(rows_.size());
    for (std::size_t i = 1; i < rows_.size(); ++i) {
        const RunRow &first = rows_.front().run.row, &row = rows_[i].run.row;
        if (areSettingsEqual(first, row)) continue;
        for (const SettingDifference& difference : settingDifferences(first, row)) {
            if (hasOwnColumn(difference.key)) continue;
            if (ofFirst.emplace(difference.key, difference.a).second) keys.push_back(difference.key);
            own[i][difference.key] = difference.b;
        }
    }
    std::erase_if(keys, [&](const std::string& key) { // other methods just have no such setting
        std::set<std::string> values{ofFirst[key]};
        for (const auto& settings : own)
            if (const auto found = settings.find(key); found != settings.end()) values.insert(found->second);
        return values.size() - values.count("-") < 2;
    });
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        QStringList parts;
        for (const std::string& key : keys) {
            const auto found = own[i].find(key);
            const std::string& value = found == own[i].end() ? ofFirst[key] : found->second;
            if (value != "-") // the run has no such setting
                parts << settingText(key, value);
        }
        rows_[i].differs = parts.join(QStringLiteral(", "));
    }
}

int RunsTableModel::rowCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : int(rows_.size()); }
int RunsTableModel::columnCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : int(kColumns); }

QString RunsTableModel::id(int column) { return QLatin1String(tableColumn(column).id); }
QString RunsTableModel::title(int column) { return inTable(tableColumn(column).title); }

std::optional<RunKey> RunsTableModel::keyOf(const QModelIndex& index) const {
    if (!index.isValid() || index.row() >= int(rows_.size())) return std::nullopt;
    return rows_[index.row()].run.key;
}

QModelIndex RunsTableModel::indexOf(const RunKey& key) const {
    for (std::size_t row = 0; row < rows_.size(); ++row)
        if (rows_[row].run.key == key) return index(int(row), 0);
    return {};
}

RunLabels RunsTableModel::labelsOf(const RunKey& key) const {
    const QModelIndex at = indexOf(key);
    return at.isValid() ? rows_[at.row()].labels : RunLabels();
}

double RunsTableModel::number(const Row& row, int column) const {
    const RunRow& run = row.run.row;
    if (column == Budget) // a run without a bound attends to more than any budget
        return run.layers == 0                                     ? kUnknownNumber
               : choosesWithoutBound(run) || run.budgetBlocks == 0 ? std::numeric_limits<double>::infinity()
                                                                   : run.budgetBlocks;
    if (!row.summary) return kUnknownNumber;
    const RunSummary& summary = *row.summary;
    const RunCheck* check = RunChecks::of(workspace_).find(row.run.key);
    switch (column) {
    case Steps:
        return double(summary.decodeSteps);
    case TokenRate: // broken rules may make the tokens worthless, of which `knows` says nothing
        return check && check->concerns(Concern::Tokens) ? kUnknownNumber : summary.tokensPerSecond;
    case HitRate:
        return summary.hitRate;
    case BytesPerToken:
        return check && check->concerns(Concern::Tokens) ? kUnknownNumber : h2dBytesPerToken(summary);
    case Exposed:
        return summary.exposedMsPerStep * 1e6;
    case DeviceKv:
        return deviceKvBytes(run, summary);
    default:
        return kUnknownNumber;
    }
}

QVariant RunsTableModel::value(const Row& row, int column) const {
    if (tableColumn(column).isNumber) {
        const double known = number(row, column);
        return std::isnan(known) || (std::isinf(known) && column != Budget) ? QVariant() : QVariant(known);
    }
    if (column == Mark) return row.place ? QVariant(double(*row.place)) : QVariant();
    if (column == Pinned) return row.labels.pinned ? QVariant(1.0) : QVariant();
    if (column == Started) return QString::fromStdString(row.run.row.createdUtc);
    const QString words = text(row, column);
    return words.isEmpty() ? QVariant() : QVariant(words);
}

QString RunsTableModel::text(const Row& row, int column) const {
    const RunRow& run = row.run.row;
    if (tableColumn(column).isNumber) {
        if (column != Budget && !row.summary) return {};
        const QVariant known = value(row, column);
        if (!known.isValid()) return QStringLiteral("–");
        const double amount = known.toDouble();
        switch (column) {
        case Budget:
            return !std::isinf(amount)        ? formatCount(std::int64_t(amount))
                   : choosesWithoutBound(run) ? inTable("no bound")
                                              : inTable("all");
        case Steps:
            return formatCount(std::int64_t(amount));
        case TokenRate:
            return formatRate(amount);
        case HitRate:
            return formatValue(Unit::Percent, 100 * amount);
        case Exposed:
            return formatValue(Unit::Nanoseconds, amount);
        default:
            return formatValue(Unit::Bytes, amount);
        }
    }
    switch (column) {
    case Run:
        return run.name.empty() ? QFileInfo(row.run.key.path).fileName() : inOneLine(run.name);
    case Mark:
        return row.place ? runLetter(*row.place) : QString();
    case Method:
        return inOneLine(run.method);
    case Model:
        return inOneLine(run.model);
    case Differs:
        return row.differs.simplified();
    case Answer:
        return row.answer;
    case Pinned:
        return row.labels.pinned ? QStringLiteral("★") : QString();
    case Tags: {
        QStringList tags;
        for (const std::string& tag : row.labels.tags) tags << inOneLine(tag);
        return tags.join(QStringLiteral(", "));
    }
    case Note:
        return inOneLine(row.labels.note);
    case Started: {
        const QString written = QString::fromStdString(run.createdUtc);
        const QDateTime created = QDateTime::fromString(written, Qt::ISODate);
        return created.isValid() ? QLocale::c().toString(created.toLocalTime(), QStringLiteral("yyyy-MM-dd hh:mm:ss"))
                                 : written.simplified();
    }
    case Status:
        return row.run.live ? inTable("live") : run.stale ? inTable("interrupted") : inOneLine(run.status.text());
    case File:
        return QFileInfo(row.run.key.path).fileName();
    default:
        return {};
    }
}

QString RunsTableModel::help(const Row& row, int column) const {
    const RunRow& run = row.run.row;
    switch (column) {
    case Run:
    case File:
        return text(row, Run) + QLatin1Char('\n') +
               inTable("Run %1 of %2").arg(row.run.key.runId).arg(QDir::toNativeSeparators(row.run.key.path)) +
               (lossText(run).isEmpty() ? QString() : QLatin1Char('\n') + lossText(run));
    case Method:
    case Differs:
        return settingsText(run).isEmpty() ? text(row, column)
                                           : text(row, Method) + QStringLiteral(": ") + settingsText(run);
    case Note:
        return QString::fromStdString(row.labels.note);
    case TokenRate:
    case HitRate:
    case BytesPerToken:
    case Exposed: {
        if (!row.summary) return inTable("Not read yet");
        const QString counted = QString::fromStdString(row.summary->ratesCount());
        const bool exposed = column == Exposed && value(row, column).isValid();
        return inTable(tableColumn(column).help) +
               (exposed ? QStringLiteral(" (%1)").arg(QString::fromStdString(run.timing.text())) : QString()) +
               QStringLiteral("; ") + counted;
    }
    case Steps:
        return lossText(run);
    default:
        return text(row, column);
    }
}

QVariant RunsTableModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const Row& row = rows_[index.row()];
    const int column = index.column();
    switch (role) {
    case Qt::DisplayRole:
        return text(row, column);
    case SortRole:
        return value(row, column);
    case PlainRole:
        return tableColumn(column).isNumber || column == Started ? value(row, column)
               : column == Note                                  ? QString::fromStdString(row.labels.note)
               : column == Pinned ? QVariant(row.labels.pinned ? QStringLiteral("yes") : QString())
                                  : QVariant(text(row, column));
    case PinnedRole:
        return row.labels.pinned;
    case SearchRole: {
        QStringList all;
        for (const Column of : {Run, Method, Model, Differs, Answer, Tags, Note, Status, File}) all << text(row, of);
        return all.join(QLatin1Char('\n'));
    }
    case Qt::ToolTipRole:
        return asWritten(help(row, column));
    case Qt::DecorationRole:
        return column == Run ? QVariant(colourDot(lastingColour(row.run.key))) : QVariant();
    case Qt::ForegroundRole:
        return column == Mark && row.place ? QVariant(QBrush(runColour(*row.place))) : QVariant();
    case Qt::FontRole: {
        if (!(column == Mark && row.place) && !(column == Run && row.place == 0u)) return {};
        QFont bold;
        bold.setBold(true);
        return bold;
    }
    case Qt::TextAlignmentRole:
        return QVariant(int(Qt::AlignVCenter | (tableColumn(column).isNumber         ? Qt::AlignRight
                                                : column == Mark || column == Pinned ? Qt::AlignHCenter
                                                                                     : Qt::AlignLeft)));
    case Qt::AccessibleTextRole:
        if (column == Pinned) return row.labels.pinned ? inTable("pinned") : inTable("not pinned");
        if (column == Mark && !row.place) return inTable("not marked");
        return text(row, column);
    default:
        return {};
    }
}

QVariant RunsTableModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal || section < 0 || section >= kColumns) return {};
    switch (role) {
    case Qt::DisplayRole:
        return title(section);
    case Qt::ToolTipRole:
        return asWritten(inTable(tableColumn(section).help));
    case Qt::TextAlignmentRole:
        return QVariant(int(Qt::AlignVCenter | (tableColumn(section).isNumber          ? Qt::AlignRight
                                                : section == Mark || section == Pinned ? Qt::AlignHCenter
                                                                                       : Qt::AlignLeft)));
    default:
        return {};
    }
}

} // namespace kvscope::ui
