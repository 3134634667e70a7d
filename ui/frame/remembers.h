// A view that looks the next time as it was left: how wide its columns are, what it hides.
#pragma once

#include <QVariantMap>

namespace kvscope::ui {

/// A View may be one too; the window keeps what it says under the view's id.
class Remembers {
public:
    virtual ~Remembers() = default;
    virtual QVariantMap remembered() const = 0;
    /// Of an earlier start, perhaps by another version: what is missing or odd is ignored.
    virtual void recall(const QVariantMap& state) = 0;
};

} // namespace kvscope::ui
