// The queries to begin with on the SQL page, and those that the user keeps under names.
#pragma once

#include "ui/models/sql_queries.h"

#include <QWidget>

#include <functional>

class QComboBox;
class QLineEdit;
class QToolButton;

namespace kvscope::ui {

class SqlQueryBar final : public QWidget {
    Q_OBJECT
public:
    /// `text` returns the query that is saved when the user gives a name.
    explicit SqlQueryBar(std::function<QString()> text, QWidget* parent = nullptr);

    QString firstQuery() const { return queries_.all().front().sql; }
    bool isNaming() const; // the field for a name is shown
    void setNaming(bool naming);

signals:
    void chosen(const QString& sql);
    void named(); // the name was given, or given up
    void saved(const QString& name);
    void failed(const QString& problem);

private:
    void fill();
    void choose(int index);
    void save();
    bool isOwn(int index) const; // of the user

    const std::function<QString()> text_;
    SqlQueries queries_;
    QComboBox* list_;
    QToolButton *save_, *remove_;
    QWidget* naming_;
    QLineEdit* name_;
};

} // namespace kvscope::ui
