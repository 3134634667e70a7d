#include "ui/frame/clipboard.h"

#include "ui/frame/shortcuts.h"

#include <QAbstractItemView>
#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QCoreApplication>
#include <QHeaderView>
#include <QListView>
#include <QStringList>
#include <QTableView>
#include <QTreeView>

#include <algorithm>

namespace kvscope::ui {

namespace {

QString cellText(QString text) { return text.replace(QLatin1Char('\t'), QLatin1Char(' ')).simplified(); }

const QHeaderView* headerOf(const QAbstractItemView& table) {
    if (const auto* grid = qobject_cast<const QTableView*>(&table)) return grid->horizontalHeader();
    if (const auto* tree = qobject_cast<const QTreeView*>(&table)) return tree->header();
    return nullptr;
}

bool rowHidden(const QAbstractItemView& table, int row) {
    if (const auto* grid = qobject_cast<const QTableView*>(&table)) return grid->isRowHidden(row);
    if (const auto* list = qobject_cast<const QListView*>(&table)) return list->isRowHidden(row);
    return false;
}

} // namespace

QString tableFromCsv(const QString& csv) {
    QString table, cell;
    bool quoted = false;
    const auto endCell = [&](QChar end) {
        table += cellText(cell) + end;
        cell.clear();
    };
    for (qsizetype i = 0; i < csv.size(); ++i) {
        const QChar c = csv[i];
        if (c == QLatin1Char('"')) {
            if (quoted && i + 1 < csv.size() && csv[i + 1] == QLatin1Char('"')) {
                cell += c;
                ++i;
            } else {
                quoted = !quoted;
            }
        } else if (!quoted && c == QLatin1Char(',')) {
            endCell(QLatin1Char('\t'));
        } else if (!quoted && c == QLatin1Char('\n')) {
            endCell(QLatin1Char('\n'));
        } else {
            cell += c;
        }
    }
    if (!cell.isEmpty() || table.endsWith(QLatin1Char('\t'))) endCell(QLatin1Char('\n'));
    return table;
}

QString tableText(const QAbstractItemView& table, bool selected) {
    const QAbstractItemModel* model = table.model();
    if (!model) return {};
    const QHeaderView* header = headerOf(table);
    std::vector<int> columns;
    for (int visual = 0; visual < model->columnCount(); ++visual) {
        const int column = header ? header->logicalIndex(visual) : visual; // in the order of the user
        if (!header || !header->isSectionHidden(column)) columns.push_back(column);
    }
    std::vector<int> rows;
    if (selected && table.selectionModel())
        for (const QModelIndex& index : table.selectionModel()->selectedIndexes())
            if (index.parent() == table.rootIndex()) rows.push_back(index.row());
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    if (rows.empty())
        for (int row = 0; row < model->rowCount(table.rootIndex()); ++row)
            if (!rowHidden(table, row)) rows.push_back(row);

    QString text;
    const auto line = [&](auto&& cell) {
        QStringList cells;
        for (const int column : columns) cells << cellText(cell(column));
        text += cells.join(QLatin1Char('\t')) + QLatin1Char('\n');
    };
    if (header) line([&](int column) { return model->headerData(column, Qt::Horizontal).toString(); });
    for (const int row : rows)
        line([&](int column) { return model->index(row, column, table.rootIndex()).data().toString(); });
    return text;
}

void giveTableMenu(QAbstractItemView& table) {
    if (table.contextMenuPolicy() != Qt::DefaultContextMenu) return;
    const auto add = [&](const QString& text, bool selected) {
        auto* action = new QAction(text, &table);
        action->setShortcutContext(Qt::WidgetShortcut);
        QObject::connect(action, &QAction::triggered, &table,
                         [&table, selected] { QApplication::clipboard()->setText(tableText(table, selected)); });
        table.addAction(action);
        return action;
    };
    QAction* rows = add(QCoreApplication::translate("Clipboard", "Copy the chosen rows"), true);
    rows->setShortcut(QKeySequence::Copy);
    setShortcutGroup(rows, QCoreApplication::translate("Clipboard", "Tables"));
    add(QCoreApplication::translate("Clipboard", "Copy the whole table"), false);
    table.setContextMenuPolicy(Qt::ActionsContextMenu);
}

} // namespace kvscope::ui
