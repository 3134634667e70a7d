// Sends a query from any part of the window to the SQL page, for "Copy as SQL" beside a plot and "Open in SQL" in a
// menu.
#pragma once

#include <QString>

class QWidget;

namespace kvscope::ui {

/// Brings the SQL page of the window that contains `from` to the front, puts the query into its editor, and runs it if
/// `run` is set. The parameters :run_id, :step, :layer, :seq, :kv_head, :block, :first_step and :last_step have the
/// values of the shared cursor.
/// @return false if there is no SQL page, e.g. while a picture is rendered
bool openInSql(const QWidget& from, const QString& sql, bool run = true);

} // namespace kvscope::ui
