// Writes tables as tab-separated text for the clipboard, because spreadsheets and chats accept that.
#pragma once

#include <QString>

class QAbstractItemView;

namespace kvscope::ui {

/// The cells of a CSV text, separated by tabs. Quotes around CSV fields are removed, and tabs and line ends inside a
/// cell become blanks.
QString tableFromCsv(const QString& csv);
/// The header line and the rows of a table as they are shown. With `selected`, only the selected rows if any row is
/// selected.
QString tableText(const QAbstractItemView& table, bool selected);
/// Gives a table Ctrl+C to copy the selected rows, and a context menu that also copies the whole table. A table that
/// has a menu of its own stays as it is.
void giveTableMenu(QAbstractItemView& table);

} // namespace kvscope::ui
