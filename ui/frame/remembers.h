// Interface of views that keep their look from one start of the program to the next, e.g. the widths of columns.
#pragma once

#include <QVariantMap>

namespace kvscope::ui {

/// A View may implement this too. The window saves what remembered() returns under the id of the view.
class Remembers {
public:
    virtual ~Remembers() = default;
    virtual QVariantMap remembered() const = 0;
    /// Takes the state of an earlier start, perhaps of another version of the program. What is missing or has an
    /// unexpected form is ignored.
    virtual void recall(const QVariantMap& state) = 0;
};

} // namespace kvscope::ui
