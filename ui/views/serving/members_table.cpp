#include "ui/views/serving/members_table.h"

#include "ui/frame/units.h"
#include "ui/views/serving/serving_strip.h"

#include <QAbstractItemView>
#include <QHeaderView>

#include <algorithm>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr int kWideForTable = 500, kTableBelow = 140; // as PlotView: beside the plot from this width, else below it

} // namespace

MembersTable::MembersTable(QWidget* parent) : QTableWidget(0, 5, parent) {
    setObjectName(QStringLiteral("members"));
    setAccessibleName(tr("Whom the iteration served"));
    setToolTip(tr("Whom the chosen iteration served. Click a row to have that request's token explained."));
    setHorizontalHeaderLabels({tr("Request"), tr("Did"), tr("Misses"), tr("Fetched"), tr("Working set")});
    setEditTriggers(QAbstractItemView::NoEditTriggers);
    setSelectionBehavior(QAbstractItemView::SelectRows);
    setSelectionMode(QAbstractItemView::SingleSelection);
    setShowGrid(false);
    verticalHeader()->hide();
    horizontalHeader()->setStretchLastSection(true);
    connect(this, &QTableWidget::cellClicked, this, [this](int row, int) {
        if (row >= 0 && row < int(members_.size())) emit requestClicked(members_[std::size_t(row)].request);
    });
}

void MembersTable::setMembers(std::vector<MemberRow> members) {
    members_ = std::move(members);
    clearContents();
    setRowCount(int(members_.size()));
    for (int row = 0; row < int(members_.size()); ++row) {
        const MemberRow& member = members_[std::size_t(row)];
        const QString did =
            member.prefill
                ? tr("read %1, layers %2–%3").arg(formatCount(member.tokens)).arg(member.layerFrom).arg(member.layerTo)
                : tr("decoded");
        const QStringList texts{formatCount(member.request), did,
                                member.prefill ? QString() : formatCount(member.misses),
                                member.prefill ? QString() : servingBytes(double(member.h2dBytes)),
                                servingBytes(double(member.workingSetBytes))};
        for (int column = 0; column < texts.size(); ++column) {
            auto* item = new QTableWidgetItem(texts[column]);
            if (column != 1) item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
            setItem(row, column, item);
        }
    }
    resizeColumnsToContents();
    resizeRowsToContents();
}

void MembersTable::choose(std::int64_t request) {
    for (int row = 0; row < int(members_.size()); ++row)
        if (members_[std::size_t(row)].request == request) setCurrentCell(row, 0);
}

void MembersTable::fit(QSize view) {
    const bool beside = view.width() >= kWideForTable;
    setMinimumWidth(0);
    setMaximumWidth(beside ? std::clamp(2 * view.width() / 5, 220, 400) : QWIDGETSIZE_MAX);
    if (beside) setMinimumWidth(maximumWidth());
    setMaximumHeight(beside ? QWIDGETSIZE_MAX : kTableBelow);
}

} // namespace kvscope::ui
