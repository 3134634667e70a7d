// The list of SQL queries: those that come with the program, and those that the user saved.
#pragma once

#include <QString>

#include <vector>

namespace kvscope::ui {

struct SavedQuery {
    QString name, sql;
    bool builtIn = false;
};

class SqlQueries {
public:
    /// `file`: where the user's queries are kept; empty: kvscope/queries.ini in the user's configuration folder.
    explicit SqlQueries(const QString& file = {});
    /// The queries of the program, then those of the user in the order of their names.
    const std::vector<SavedQuery>& all() const { return queries_; }
    /// Adds a query of the user, or replaces the one of that name. @return what went wrong; empty on success
    QString save(const QString& name, const QString& sql);
    QString remove(const QString& name);

private:
    QString write();
    QString file_;
    std::vector<SavedQuery> queries_;
};

} // namespace kvscope::ui
