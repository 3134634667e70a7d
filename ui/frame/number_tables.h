// Interface of views that have more than one table of numbers behind their picture.
#pragma once

#include <QStringList>

namespace kvscope::ui {

/// A View may implement this too. View::numbers then returns the chosen table.
class NumberTables {
public:
    virtual ~NumberTables() = default;
    /// The names of the tables. The first one is the view's own table.
    virtual QStringList numberTables() const = 0;
    virtual void chooseNumberTable(int table) = 0;
};

} // namespace kvscope::ui
