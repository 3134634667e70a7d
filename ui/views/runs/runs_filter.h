// Sorts and filters the table of runs.
#pragma once

#include <QSortFilterProxyModel>
#include <QStringList>

namespace kvscope::ui {

/// Pinned runs stand first and unknown values last, in either direction.
class RunsFilter final : public QSortFilterProxyModel {
    Q_OBJECT
public:
    using QSortFilterProxyModel::QSortFilterProxyModel;
    /// A run is shown if each of the words stands somewhere in its texts, in capitals or not.
    void setWords(const QString& text);
    const QStringList& words() const { return words_; }

protected:
    bool filterAcceptsRow(int row, const QModelIndex& parent) const override;
    bool lessThan(const QModelIndex& left, const QModelIndex& right) const override;

private:
    QStringList words_;
};

} // namespace kvscope::ui
