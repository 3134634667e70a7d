// The rows of a query as Qt shows them; grows while they come, and shows them in the order of a column afterwards.
#pragma once

#include "profiler/sql/sql_rows.h"
#include "ui/output/numbers.h"

#include <QAbstractTableModel>
#include <QItemSelection>

#include <memory>
#include <vector>

namespace kvscope::ui {

class SqlTableModel final : public QAbstractTableModel {
    Q_OBJECT
public:
    using QAbstractTableModel::QAbstractTableModel;
    void reset(const QStringList& columns);
    void append(std::shared_ptr<const SqlRows> rows);
    /// Shows the rows in this order; empty: as they came.
    void setOrder(std::vector<std::uint32_t> order);

    /// What is shown now; a copy shares the rows, so another thread may read it.
    std::shared_ptr<const SqlTable> table() const { return std::make_shared<const SqlTable>(table_); }
    const SqlTable& rows() const { return table_; }
    std::size_t sourceRow(int row) const { return order_.empty() ? std::size_t(row) : order_[std::size_t(row)]; }
    int columnOf(const QString& name) const; // -1: there is none

    /// Selected cells as tab-separated text; what is selected in several ranges is put out as their bounding rows.
    QString tabSeparated(const QItemSelection& selection, bool withHeaders) const;
    /// All rows, in the order shown; written on any thread, whatever happens to the model meanwhile.
    NumberWriter numbers() const;

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

private:
    SqlTable table_;
    std::vector<std::uint32_t> order_;
};

} // namespace kvscope::ui
