#include "ui/views/runs/runs_filter.h"

#include "ui/models/runs_table_model.h"

#include <algorithm>

namespace kvscope::ui {

void RunsFilter::setWords(const QString& text) {
    const QStringList words = text.split(QLatin1Char(' '), Qt::SkipEmptyParts);
    if (words == words_) return;
    words_ = words;
    invalidateFilter();
}

bool RunsFilter::filterAcceptsRow(int row, const QModelIndex& parent) const {
    if (words_.isEmpty()) return true;
    const QString texts = sourceModel()->index(row, 0, parent).data(RunsTableModel::SearchRole).toString();
    return std::all_of(words_.begin(), words_.end(),
                       [&](const QString& word) { return texts.contains(word, Qt::CaseInsensitive); });
}

bool RunsFilter::lessThan(const QModelIndex& left, const QModelIndex& right) const {
    const bool ascending = sortOrder() == Qt::AscendingOrder; // else the rows come in the opposite order
    const bool leftPinned = left.data(RunsTableModel::PinnedRole).toBool(),
               rightPinned = right.data(RunsTableModel::PinnedRole).toBool();
    if (leftPinned != rightPinned) return ascending ? leftPinned : rightPinned;
    const QVariant a = left.data(RunsTableModel::SortRole), b = right.data(RunsTableModel::SortRole);
    if (a.isValid() != b.isValid()) return ascending ? a.isValid() : b.isValid();
    if (a.metaType().id() == QMetaType::Double && b.metaType().id() == QMetaType::Double)
        return a.toDouble() < b.toDouble();
    return a.toString().compare(b.toString(), Qt::CaseInsensitive) < 0;
}

} // namespace kvscope::ui
