// The tables, views and columns of the trace beside the editor of the SQL page, with a field that finds them.
#pragma once

#include "profiler/sql/sql_session.h"

#include <QWidget>

#include <vector>

class QLineEdit;
class QTreeWidget;
class QTreeWidgetItem;

namespace kvscope::ui {

class SqlSchema final : public QWidget {
    Q_OBJECT
public:
    explicit SqlSchema(QWidget* parent = nullptr);

    void setTables(const std::vector<SqlTableInfo>& tables);
    bool isEmpty() const; // setTables was not called yet, or the trace has no tables

signals:
    void nameChosen(const QString& name); // as SQL writes it

private:
    void filter(const QString& text);
    void choose(const QTreeWidgetItem* item);

    QLineEdit* filter_;
    QTreeWidget* tree_;
};

} // namespace kvscope::ui
