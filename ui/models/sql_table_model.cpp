#include "ui/models/sql_table_model.h"

#include "profiler/sql/sql_session.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"

#include <QFont>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr int kShownCharacters = 300; // most characters in a cell; the tooltip shows more, a copy has all
constexpr int kTooltipCharacters = 4000;
constexpr int kRowsForHeader = 20; // whose values say how the header of their column is aligned

/// The text with spaces in place of line ends and tabs, which would split cells of a copied table.
QString oneLineOf(QString text) {
    for (QChar& c : text)
        if (c == QLatin1Char('\t') || c == QLatin1Char('\n') || c == QLatin1Char('\r')) c = QLatin1Char(' ');
    return text;
}
} // namespace

void SqlTableModel::reset(const QStringList& columns) {
    beginResetModel();
    std::vector<std::string> names;
    for (const QString& column : columns) names.push_back(column.toStdString());
    table_.reset(std::move(names));
    order_.clear();
    endResetModel();
}

void SqlTableModel::append(std::shared_ptr<const SqlRows> rows) {
    if (!rows || rows->rows() == 0) return;
    const int first = rowCount();
    beginInsertRows({}, first, first + int(rows->rows()) - 1);
    table_.append(std::move(rows));
    order_.clear();
    endInsertRows();
}

void SqlTableModel::setOrder(std::vector<std::uint32_t> order) {
    emit layoutAboutToBeChanged();
    if (order.size() == table_.rows() || order.empty()) order_ = std::move(order);
    emit layoutChanged();
}

int SqlTableModel::columnOf(const QString& name) const {
    const auto& names = table_.columns();
    for (std::size_t i = 0; i < names.size(); ++i)
        if (QString::fromStdString(names[i]).compare(name, Qt::CaseInsensitive) == 0) return int(i);
    return -1;
}

QString SqlTableModel::tabSeparated(const QItemSelection& selection, bool withHeaders) const {
    std::set<int> columns;
    std::vector<std::pair<int, int>> ranges; // each: first and last row
    for (const QItemSelectionRange& range : selection) {
        for (int column = range.left(); column <= range.right(); ++column) columns.insert(column);
        ranges.emplace_back(range.top(), range.bottom());
    }
    std::sort(ranges.begin(), ranges.end());
    QStringList names;
    QString text;
    for (const int column : columns) names << oneLineOf(headerData(column, Qt::Horizontal, Qt::DisplayRole).toString());
    if (withHeaders) text = names.join(QLatin1Char('\t')) + QLatin1Char('\n');
    int next = 0; // the rows before this one are written
    for (const auto& [top, bottom] : ranges) {
        for (int row = std::max(top, next); row <= bottom; ++row) {
            bool first = true;
            for (const int column : columns) {
                if (!std::exchange(first, false)) text += QLatin1Char('\t');
                text += oneLineOf(QString::fromStdString(table_.text(sourceRow(row), column)));
            }
            text += QLatin1Char('\n');
        }
        next = std::max(next, bottom + 1);
    }
    return text;
}

NumberWriter SqlTableModel::numbers() const {
    if (columnCount() == 0) return {};
    return [table = table(), order = order_](NumberSink& sink) {
        constexpr std::size_t kAtOnce = 1 << 16; // bytes
        std::string out;
        const auto columns = int(table->columns().size());
        const auto field = [&](int column, const std::string& text) {
            if (column > 0) out += ',';
            out += csvField(text);
        };
        for (int column = 0; column < columns; ++column) field(column, table->columns()[std::size_t(column)]);
        out += '\n';
        for (std::size_t row = 0; row < table->rows(); ++row) {
            for (int column = 0; column < columns; ++column)
                field(column, table->text(order.empty() ? row : order[row], column));
            out += '\n';
            if (out.size() < kAtOnce) continue;
            sink.add(out);
            sink.progress(double(row) / double(table->rows()));
            out.clear();
        }
        sink.add(out);
    };
}

int SqlTableModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : int(std::min<std::size_t>(table_.rows(), std::numeric_limits<int>::max()));
}

int SqlTableModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : int(table_.columns().size());
}

QVariant SqlTableModel::data(const QModelIndex& index, int role) const {
    if (!index.isValid()) return {};
    const std::size_t row = sourceRow(index.row());
    const SqlType type = table_.type(row, index.column());
    switch (role) {
    case Qt::DisplayRole: {
        if (type == SqlType::Null) return QStringLiteral("NULL");
        QString text = oneLineOf(QString::fromStdString(table_.text(row, index.column(), true)));
        if (text.size() > kShownCharacters) text = text.left(kShownCharacters) + QStringLiteral("…");
        return text;
    }
    case Qt::ToolTipRole: { // escaped, because a trace may hold text that looks like markup
        QString text = QString::fromStdString(table_.text(row, index.column(), true));
        if (text.size() <= 40) return {};
        if (text.size() > kTooltipCharacters) text = text.left(kTooltipCharacters) + QStringLiteral("…");
        return QStringLiteral("<p>%1</p>").arg(text.toHtmlEscaped());
    }
    case Qt::TextAlignmentRole:
        return int((type == SqlType::Integer || type == SqlType::Real ? Qt::AlignRight : Qt::AlignLeft) |
                   Qt::AlignVCenter);
    case Qt::ForegroundRole:
        return type == SqlType::Null ? QVariant(Theme::current().mutedText) : QVariant();
    default:
        return {};
    }
}

QVariant SqlTableModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (role == Qt::TextAlignmentRole && orientation == Qt::Horizontal) {
        // As the values below it; the first rows may have none.
        for (int row = 0; row < std::min(rowCount(), kRowsForHeader); ++row)
            if (table_.type(sourceRow(row), section) != SqlType::Null)
                return data(index(row, section), Qt::TextAlignmentRole);
        return int(Qt::AlignLeft | Qt::AlignVCenter);
    }
    if (role != Qt::DisplayRole) return {};
    if (orientation == Qt::Vertical) return formatCount(section + 1);
    return section < columnCount() ? QString::fromStdString(table_.columns()[std::size_t(section)]) : QVariant();
}

} // namespace kvscope::ui
