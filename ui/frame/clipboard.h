// What is copied as a table: tab-separated text, as spreadsheets and chats take it.
#pragma once

#include <QString>

class QAbstractItemView;

namespace kvscope::ui {

/// The same cells with tabs; quotes around CSV fields are undone, tabs and line ends inside a cell become blanks.
QString tableFromCsv(const QString& csv);
/// Header line and rows as shown; only the selected rows if there are any and `selected` is asked for.
QString tableText(const QAbstractItemView& table, bool selected);
/// Ctrl+C copies the selected rows, and the context menu also the whole table. Tables with a menu of their own stay as
/// they are.
void giveTableMenu(QAbstractItemView& table);

} // namespace kvscope::ui
