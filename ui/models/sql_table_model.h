// The rows of a query as a table model for Qt's views. It grows while rows arrive, and can then show them in another
// order.
#pragma once

#include "profiler/sql/sql_rows.h"
#include "ui/frame/numbers.h"

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
    /// Shows the rows in this order; empty: in the order in which they arrived.
    void setOrder(std::vector<std::uint32_t> order);

    /// A copy of the current table, which another thread may read. Copies share the memory of the rows.
    std::shared_ptr<const SqlTable> table() const { return std::make_shared<const SqlTable>(table_); }
    const SqlTable& rows() const { return table_; }
    std::size_t sourceRow(int row) const { return order_.empty() ? std::size_t(row) : order_[std::size_t(row)]; }
    int columnOf(const QString& name) const; // -1: no column has that name

    /// The selection as tab-separated text: every row that a selected range touches, with every column that any range
    /// touches.
    QString tabSeparated(const QItemSelection& selection, bool withHeaders) const;
    /// Writes all rows in the order shown. It works on a copy, so that it may run on any thread while the model
    /// changes.
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
