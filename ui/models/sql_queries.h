// The queries that come with the program and those a person saved.
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
    /// empty: the user's own file, beside the settings of the desktop
    explicit SqlQueries(const QString& file = {});
    /// Those that come with the program, then the person's in the order of their names.
    const std::vector<SavedQuery>& all() const { return queries_; }
    /// Adds or replaces one of the person's. @return what went wrong, empty on success
    QString save(const QString& name, const QString& sql);
    QString remove(const QString& name);

private:
    QString write();
    QString file_;
    std::vector<SavedQuery> queries_;
};

} // namespace kvscope::ui
