#include "ui/widgets/folder_dialog.h"

#include "base/error.h"
#include "base/indexed.h"
#include "profiler/merge/merge.h"
#include "profiler/read/trace_list.h"
#include "ui/frame/as_written.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"

#include <QAbstractTableModel>
#include <QComboBox>
#include <QCryptographicHash>
#include <QDateTime>
#include <QDialogButtonBox>
#include <QDir>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLocale>
#include <QProgressBar>
#include <QPushButton>
#include <QSortFilterProxyModel>
#include <QStandardPaths>
#include <QTimer>
#include <QTreeView>
#include <QVBoxLayout>

#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace kvscope::ui {
namespace {

/// A run, or a file without one that can be read.
struct FolderRow {
    QString file, path, problem;
    std::optional<ListedRun> run;
};

struct FolderColumn {
    const char* title;
    QVariant (*value)(const FolderRow& row); // what rows are sorted by
    QString (*text)(const FolderRow& row);
};

QVariant textOf(const FolderRow& row, std::string ListedRun::*member) {
    return row.run ? QVariant(QString::fromStdString((*row.run).*member)) : QVariant();
}

/// `created_utc` as the person's clock had it.
QString createdText(const FolderRow& row) {
    if (!row.run) return {};
    const QString written = QString::fromStdString(row.run->createdUtc);
    const QDateTime created = QDateTime::fromString(written, Qt::ISODate);
    return created.isValid() ? QLocale::c().toString(created.toLocalTime(), QStringLiteral("yyyy-MM-dd hh:mm:ss"))
                             : written;
}

template <std::string ListedRun::*member> constexpr FolderColumn textColumn(const char* title) {
    return {title, [](const FolderRow& row) { return textOf(row, member); },
            [](const FolderRow& row) { return textOf(row, member).toString(); }};
}

const std::array<FolderColumn, 10>& folderColumns() {
    static const std::array<FolderColumn, 10> all{
        FolderColumn{QT_TRANSLATE_NOOP("FolderDialog", "File"), [](const FolderRow& row) { return QVariant(row.file); },
                     [](const FolderRow& row) { return row.file; }},
        FolderColumn{QT_TRANSLATE_NOOP("FolderDialog", "Run"),
                     [](const FolderRow& row) { return row.run ? QVariant(row.run->runId) : QVariant(); },
                     [](const FolderRow& row) { return row.run ? QString::number(row.run->runId) : QString(); }},
        textColumn<&ListedRun::name>(QT_TRANSLATE_NOOP("FolderDialog", "Name")),
        textColumn<&ListedRun::method>(QT_TRANSLATE_NOOP("FolderDialog", "Method")),
        textColumn<&ListedRun::model>(QT_TRANSLATE_NOOP("FolderDialog", "Model")),
        textColumn<&ListedRun::engine>(QT_TRANSLATE_NOOP("FolderDialog", "Engine")),
        FolderColumn{QT_TRANSLATE_NOOP("FolderDialog", "Created"),
                     [](const FolderRow& row) { return textOf(row, &ListedRun::createdUtc); }, createdText},
        FolderColumn{
            QT_TRANSLATE_NOOP("FolderDialog", "Status"),
            [](const FolderRow& row) { return row.run ? textOf(row, &ListedRun::status) : QVariant(row.problem); },
            [](const FolderRow& row) { return row.run ? QString::fromStdString(row.run->status) : row.problem; }},
        FolderColumn{QT_TRANSLATE_NOOP("FolderDialog", "Steps"),
                     [](const FolderRow& row) {
                         if (!row.run) return QVariant();
                         return QVariant(row.run->iterations > 0 ? row.run->iterations : row.run->decodeSteps());
                     },
                     [](const FolderRow& row) {
                         if (!row.run) return QString();
                         return row.run->iterations > 0
                                    ? FolderDialog::tr("%1 iterations").arg(formatCount(row.run->iterations))
                                    : formatCount(row.run->decodeSteps());
                     }},
        FolderColumn{
            QT_TRANSLATE_NOOP("FolderDialog", "Rank"),
            [](const FolderRow& row) { return row.run && row.run->rank ? QVariant(*row.run->rank) : QVariant(); },
            [](const FolderRow& row) {
                return row.run && row.run->rank ? QString::number(*row.run->rank) : QString();
            }}};
    return all;
}

} // namespace

class FolderDialog::Rows final : public QAbstractTableModel {
public:
    enum Role { SortRole = Qt::UserRole, PathRole };
    using QAbstractTableModel::QAbstractTableModel;

    /// The files with a rank, by name.
    QStringList ranked() const {
        QStringList paths;
        for (const FolderRow& row : rows_)
            if (row.run && row.run->rank && !paths.contains(row.path)) paths << row.path;
        paths.sort();
        return paths;
    }
    void clear() {
        beginResetModel();
        rows_.clear();
        endResetModel();
    }
    void append(std::vector<FolderRow> more) {
        if (more.empty()) return;
        beginInsertRows({}, int(rows_.size()), int(rows_.size() + more.size()) - 1);
        rows_.insert(rows_.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
        endInsertRows();
    }
    int rowCount(const QModelIndex& parent = {}) const override { return parent.isValid() ? 0 : int(rows_.size()); }
    int columnCount(const QModelIndex& parent = {}) const override {
        return parent.isValid() ? 0 : int(folderColumns().size());
    }
    QVariant data(const QModelIndex& index, int role) const override {
        if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
        const FolderRow& row = rows_[index.row()];
        const FolderColumn& column = folderColumns()[std::size_t(index.column())];
        switch (role) {
        case Qt::DisplayRole:
            return column.text(row);
        case Qt::ToolTipRole:
            return asWritten(row.problem.isEmpty() ? QDir::toNativeSeparators(row.path) : row.problem);
        case SortRole:
            return column.value(row);
        case PathRole:
            return row.path;
        default:
            return {};
        }
    }
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override {
        if (orientation != Qt::Horizontal || role != Qt::DisplayRole) return {};
        return FolderDialog::tr(folderColumns()[std::size_t(section)].title);
    }

private:
    Numbered<FolderRow> rows_;
};

/// Reads on a thread of its own; the dialog takes what has come.
class FolderDialog::Reading {
public:
    Reading(std::string folder, int depth)
        : folder_(std::move(folder)), depth_(depth), thread_([this](const std::stop_token& stop) { read(stop); }) {}

    struct State {
        std::vector<FolderRow> rows; // that came since the last call
        std::size_t files = 0, folders = 0, read = 0, runs = 0, unreadable = 0;
        QString problem; // of the folder
        bool done = false;
    };
    State take() {
        const std::lock_guard lock(mutex_);
        State taken = state_;
        state_.rows.clear();
        return taken;
    }
    void stop() { thread_.request_stop(); }

private:
    void read(const std::stop_token& stop) {
        try {
            const std::vector<std::string> paths = tracesOfFolder(folder_, stop, depth_);
            std::set<std::string> folders;
            for (const std::string& path : paths) folders.insert(std::filesystem::path(path).parent_path().string());
            {
                const std::lock_guard lock(mutex_);
                state_.files = paths.size();
                state_.folders = folders.size();
            }
            listTraces(
                paths, [this](std::size_t, ListedTrace trace) { add(std::move(trace)); }, {}, stop);
        } catch (const Error& error) {
            const std::lock_guard lock(mutex_);
            if (error.kind != ErrorKind::Cancelled) state_.problem = QString::fromStdString(oneLine(error));
        } catch (const std::exception& error) {
            const std::lock_guard lock(mutex_);
            state_.problem = QString::fromUtf8(error.what());
        }
        const std::lock_guard lock(mutex_);
        state_.done = true;
    }
    void add(ListedTrace trace) {
        FolderRow row{QString::fromStdString(pathWithin(folder_, trace.path)), QString::fromStdString(trace.path),
                      QString::fromStdString(trace.problem), std::nullopt};
        if (row.problem.isEmpty() && trace.runs.empty()) row.problem = FolderDialog::tr("no run in it yet");
        const std::lock_guard lock(mutex_);
        ++state_.read;
        state_.runs += trace.runs.size();
        if (!trace.problem.empty()) ++state_.unreadable;
        if (trace.runs.empty()) state_.rows.push_back(row);
        for (ListedRun& run : trace.runs) {
            row.run = std::move(run);
            state_.rows.push_back(row);
        }
    }

    const std::string folder_;
    const int depth_;
    std::mutex mutex_;
    State state_;         // guarded by mutex_
    std::jthread thread_; // last: it uses what is above
};

/// Merges the traces of ranks on a thread of its own.
class FolderDialog::Merging {
public:
    Merging(std::vector<std::string> inputs, QString out)
        : out_(std::move(out)), thread_([this, inputs = std::move(inputs)](const std::stop_token& stop) {
              QString problem;
              QStringList remarks;
              try {
                  for (const std::string& remark : mergeTraces(inputs, out_.toStdString(), true, {}, stop).remarks)
                      remarks << QString::fromStdString(remark);
              } catch (const Error& error) {
                  problem = QString::fromStdString(oneLine(error));
              } catch (const std::exception& error) {
                  problem = QString::fromUtf8(error.what());
              }
              const std::lock_guard lock(mutex_);
              problem_ = problem;
              remarks_ = remarks;
              done_ = true;
          }) {}
    struct State {
        bool done = false;
        QString problem;
        QStringList remarks;
    };
    State state() {
        const std::lock_guard lock(mutex_);
        return {done_, problem_, remarks_};
    }
    const QString& out() const { return out_; }

private:
    const QString out_;
    std::mutex mutex_;
    bool done_ = false; // guarded by mutex_, like what follows
    QString problem_;
    QStringList remarks_;
    std::jthread thread_; // last: it uses what is above
};

namespace {

/// Where the merged trace of these files lies; other files, or the same ones changed, have another place.
QString placeOfMerged(const QStringList& paths) {
    QCryptographicHash hash(QCryptographicHash::Sha256);
    for (const QString& path : paths) {
        const QFileInfo info(path);
        hash.addData(QStringLiteral("%1\n%2\n%3\n")
                         .arg(info.absoluteFilePath())
                         .arg(info.size())
                         .arg(info.lastModified().toMSecsSinceEpoch())
                         .toUtf8());
    }
    const QDir folder(QStandardPaths::writableLocation(QStandardPaths::CacheLocation) + QStringLiteral("/merged/") +
                      QString::fromLatin1(hash.result().toHex().first(16)));
    folder.mkpath(QStringLiteral("."));
    return folder.filePath(QFileInfo(paths.front()).dir().dirName() + QStringLiteral("-ranks.kvtrace"));
}

} // namespace

FolderDialog::FolderDialog(const QString& folder, QWidget* parent)
    : QDialog(parent), folder_(folder), rows_(new Rows(this)), table_(new QTreeView), state_(new MutedLabel),
      progress_(new QProgressBar), depth_(new QComboBox), timer_(new QTimer(this)),
      reading_(std::make_unique<Reading>(folder.toStdString(), 0)) {
    setAttribute(Qt::WA_DeleteOnClose);
    setWindowTitle(tr("Traces in %1").arg(QDir::toNativeSeparators(folder)));
    auto* sorted = new QSortFilterProxyModel(this);
    sorted->setSourceModel(rows_);
    sorted->setSortRole(Rows::SortRole);
    sorted->setSortCaseSensitivity(Qt::CaseInsensitive);
    table_->setObjectName(QStringLiteral("folderTraces"));
    table_->setAccessibleName(tr("Traces of the folder"));
    table_->setModel(sorted);
    table_->setRootIsDecorated(false);
    table_->setUniformRowHeights(true); // ten thousand rows are laid out at once
    table_->setAlternatingRowColors(true);
    table_->setSelectionMode(QAbstractItemView::ExtendedSelection);
    table_->setEditTriggers(QAbstractItemView::NoEditTriggers);
    table_->setSortingEnabled(true);
    table_->sortByColumn(0, Qt::AscendingOrder);
    giveTableMenu(*table_);
    const int width = table_->fontMetrics().averageCharWidth();
    const int characters[] = {24, 5, 28, 14, 22, 14, 20, 12, 8, 6};
    for (int column = 0; column < int(std::size(characters)); ++column)
        table_->setColumnWidth(column, characters[column] * width);
    state_->setObjectName(QStringLiteral("folderState"));
    state_->setWordWrap(true);
    progress_->setTextVisible(false);
    progress_->setAccessibleName(tr("Files that were read"));
    auto* buttons = new QDialogButtonBox(QDialogButtonBox::Close);
    stop_ = buttons->addButton(tr("Stop Reading"), QDialogButtonBox::ActionRole);
    stop_->setObjectName(QStringLiteral("folderStop"));
    open_ = buttons->addButton(tr("Open"), QDialogButtonBox::ActionRole);
    open_->setObjectName(QStringLiteral("folderOpen"));
    open_->setEnabled(false);
    ranks_ = buttons->addButton(tr("Open Ranks as One"), QDialogButtonBox::ActionRole);
    ranks_->setObjectName(QStringLiteral("folderRanks"));
    ranks_->setToolTip(
        tr("One trace with a run per rank, on one clock: of the selected files, or else of all that have "
           "a rank. The view Ranks shows them side by side"));
    ranks_->hide();
    connect(ranks_, &QPushButton::clicked, this, &FolderDialog::openRanks);
    connect(stop_, &QPushButton::clicked, this, [this] { reading_->stop(); });
    connect(open_, &QPushButton::clicked, this, &FolderDialog::openSelected);
    connect(buttons, &QDialogButtonBox::rejected, this, &QDialog::close);
    connect(table_, &QTreeView::activated, this, [this](const QModelIndex& index) {
        emit openRequested({index.siblingAtColumn(0).data(Rows::PathRole).toString()});
    });
    connect(table_->selectionModel(), &QItemSelectionModel::selectionChanged, this,
            [this] { open_->setEnabled(table_->selectionModel()->hasSelection()); });
    auto* layout = new QVBoxLayout(this);
    layout->addWidget(table_, 1);
    auto* below = new QHBoxLayout;
    below->addWidget(makeDepthPicker());
    below->addWidget(state_, 1);
    below->addWidget(progress_);
    layout->addLayout(below);
    layout->addWidget(buttons);
    resizeOnScreen(*this, {1040, 560});
    table_->setFocus();
    connect(timer_, &QTimer::timeout, this, &FolderDialog::collect);
    timer_->start(50);
    collect();
}

FolderDialog::~FolderDialog() = default;

QWidget* FolderDialog::makeDepthPicker() {
    depth_->setObjectName(QStringLiteral("folderDepth"));
    depth_->setAccessibleName(tr("Subfolders"));
    depth_->setToolTip(tr("Levels of subfolders whose traces are listed too"));
    depth_->addItem(tr("This folder alone"), 0);
    depth_->addItem(tr("1 level of subfolders"), 1);
    depth_->addItem(tr("2 levels of subfolders"), 2);
    depth_->addItem(tr("3 levels of subfolders"), 3);
    depth_->addItem(tr("All subfolders"), kDeepestFolder);
    connect(depth_, &QComboBox::currentIndexChanged, this, [this] {
        if (merging_ && merging_->state().done) merging_.reset();
        reading_.reset(); // ends its thread
        rows_->clear();
        reading_ = std::make_unique<Reading>(folder_.toStdString(), depth_->currentData().toInt());
        timer_->start(50);
        collect();
    });
    return depth_;
}

bool FolderDialog::isReading() const { return timer_->isActive(); }

void FolderDialog::collect() {
    Reading::State state = reading_->take();
    rows_->append(std::move(state.rows));
    const bool whole = state.done && state.read == state.files;
    progress_->setVisible(!state.done);
    progress_->setRange(0, int(state.files));
    progress_->setValue(int(state.read));
    stop_->setVisible(!state.done);
    QString text = tr("%1 files, %2 runs").arg(formatCount(std::int64_t(state.files))).arg(state.runs);
    if (state.folders > 1) text += tr(" in %1 folders").arg(formatCount(std::int64_t(state.folders)));
    if (state.unreadable > 0) text += tr(", %1 unreadable").arg(formatCount(std::int64_t(state.unreadable)));
    if (!whole) text = tr("%1 of ").arg(formatCount(std::int64_t(state.read))) + text;
    if (state.done && !whole) text = tr("Stopped: ") + text;
    if (whole && state.files == 0)
        text = depth_->currentIndex() == 0 ? tr("There are no traces in this folder. Its subfolders may hold some.")
                                           : tr("There are no traces in this folder and these subfolders.");
    const qsizetype ranks = state.done && !merging_ ? rows_->ranked().size() : 0;
    ranks_->setVisible(ranks > 1);
    if (ranks > 1) text += tr(". %1 files are ranks of a run: open them as one to see them side by side").arg(ranks);
    state_->setText(state.problem.isEmpty() ? text : state.problem);
    if (state.done) timer_->stop();
}

void FolderDialog::openRanks() {
    QStringList paths, ranked = rows_->ranked();
    for (const QModelIndex& index : table_->selectionModel()->selectedRows())
        if (const QString path = index.data(Rows::PathRole).toString(); ranked.contains(path) && !paths.contains(path))
            paths << path;
    if (paths.size() < 2) paths = ranked; // one rank alone is no choice
    paths.sort();
    const QString out = placeOfMerged(paths);
    std::vector<std::string> inputs;
    for (const QString& path : paths) inputs.push_back(path.toStdString());
    merging_ = std::make_unique<Merging>(std::move(inputs), out);
    ranks_->setEnabled(false);
    state_->setText(tr("Merging %1 traces of ranks…").arg(paths.size()));
    auto* timer = new QTimer(this);
    connect(timer, &QTimer::timeout, this, [this, timer] {
        if (!merging_->state().done) return;
        timer->deleteLater();
        timer->stop();
        collectMerged();
    });
    timer->start(50);
}

void FolderDialog::collectMerged() {
    const Merging::State state = merging_->state();
    ranks_->setEnabled(true);
    if (!state.problem.isEmpty()) {
        state_->setText(state.problem);
        return;
    }
    state_->setText(state.remarks.isEmpty() ? tr("The ranks are open as one trace.")
                                            : state.remarks.join(QStringLiteral(". ")) + QLatin1Char('.'));
    emit ranksRequested(merging_->out());
}

void FolderDialog::openSelected() {
    QStringList paths;
    for (const QModelIndex& index : table_->selectionModel()->selectedRows()) {
        const QString path = index.data(Rows::PathRole).toString();
        if (!paths.contains(path)) paths << path;
    }
    if (!paths.isEmpty()) emit openRequested(paths);
}

} // namespace kvscope::ui
