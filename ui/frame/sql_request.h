// How any part of the window sends a query to the SQL page: "Copy as SQL" beside a plot, "Open in SQL" in a menu.
#pragma once

#include <QString>

class QWidget;

namespace kvscope::ui {

/// Brings the SQL page of the window that `from` is in to the front with this query in its editor, and runs it if
/// `run`. The parameters :run_id, :step, :layer, :seq, :kv_head, :block, :first_step and :last_step have the values of
/// the shared cursor.
/// @return false where there is no SQL page, e.g. while a picture is rendered
bool openInSql(const QWidget& from, const QString& sql, bool run = true);

} // namespace kvscope::ui
