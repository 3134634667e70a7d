#include "ui/widgets/rank_picker.h"

#include "profiler/merge/rank_group.h"
#include "ui/frame/small_widgets.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QSignalBlocker>
#include <QStandardItemModel>

#include <algorithm>
#include <optional>
#include <vector>

namespace kvscope::ui {
namespace {

constexpr int kAll = -1, kMissing = -2; // in place of a run's number

/// The group of the shown run among the open runs of its trace.
std::optional<RankGroup> shownGroup(const Workspace& workspace, std::vector<RunRow>& rows) {
    const OpenRun* current = workspace.current();
    if (!current) return std::nullopt;
    for (const OpenRun& run : workspace.runs())
        if (run.key.path == current->key.path) rows.push_back(run.row);
    for (RankGroup& group : rankGroups(rows))
        if (std::any_of(group.ranks.begin(), group.ranks.end(),
                        [&](const RankedRun& ranked) { return rows[ranked.run].runId == current->key.runId; }))
            return std::move(group);
    return std::nullopt;
}

} // namespace

RankPicker::RankPicker(Workspace& workspace, QWidget* parent)
    : QWidget(parent), workspace_(workspace), ranks_(new QComboBox) {
    ranks_->setObjectName(QStringLiteral("rankPicker"));
    ranks_->setAccessibleName(tr("Rank"));
    ranks_->setToolTip(tr("Which rank of this run all views show"));
    ranks_->setSizeAdjustPolicy(QComboBox::AdjustToContents);
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(8, 0, 4, 0);
    row->setSpacing(5);
    row->addWidget(new MutedLabel(tr("Rank")));
    row->addWidget(ranks_);
    connect(ranks_, &QComboBox::activated, this, &RankPicker::choose);
    for (const auto signal : {&Workspace::currentChanged, &Workspace::runsChanged})
        connect(&workspace_, signal, this, &RankPicker::follow);
    follow();
}

void RankPicker::follow() {
    std::vector<RunRow> rows;
    const auto group = shownGroup(workspace_, rows);
    setVisible(group.has_value());
    if (!group) return;
    struct Item {
        int rank, runId;
    };
    std::vector<Item> items;
    for (const RankedRun& ranked : group->ranks) items.push_back({ranked.rank, rows[ranked.run].runId});
    for (const int rank : group->missing) items.push_back({rank, kMissing});
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.rank < b.rank; });
    const QSignalBlocker quiet(ranks_);
    ranks_->clear();
    for (const Item& item : items) {
        const bool missing = item.runId == kMissing;
        ranks_->addItem(missing ? tr("%1 (missing)").arg(item.rank) : QString::number(item.rank), item.runId);
        auto* model = qobject_cast<QStandardItemModel*>(ranks_->model());
        if (missing && model) model->item(ranks_->count() - 1)->setEnabled(false);
    }
    ranks_->insertSeparator(ranks_->count());
    ranks_->addItem(tr("All side by side"), kAll);
    ranks_->setCurrentIndex(ranks_->findData(workspace_.current()->key.runId));
}

void RankPicker::choose(int index) {
    const OpenRun* current = workspace_.current();
    const int runId = ranks_->itemData(index).toInt();
    if (!current || runId == kMissing) return;
    if (runId != kAll) return workspace_.setCurrent({current->key.path, runId}); // the cursor stays where it is
    follow();                                                                    // the shown rank is still one
    emit allRequested();
}

} // namespace kvscope::ui
