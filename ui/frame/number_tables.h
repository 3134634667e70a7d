// More than one table of numbers behind a picture.
#pragma once

#include <QStringList>

namespace kvscope::ui {

/// A View may be one too; View::numbers gives the table that is chosen.
class NumberTables {
public:
    virtual ~NumberTables() = default;
    /// What each of them holds; the first one is the view's own.
    virtual QStringList numberTables() const = 0;
    virtual void chooseNumberTable(int table) = 0;
};

} // namespace kvscope::ui
