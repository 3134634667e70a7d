// Several windows on one trace share one cursor while they are linked.
#pragma once

#include "ui/frame/workspace.h"

#include <QObject>

namespace kvscope::ui {

/// A person's move in one workspace is made in all linked ones that show the same run. Following a live run is left to
/// each window.
class CursorLink final : public QObject {
    Q_OBJECT
public:
    explicit CursorLink(Workspace& workspace, QObject* parent = nullptr);
    ~CursorLink() override;
    void setEnabled(bool enabled) { enabled_ = enabled; }
    bool isEnabled() const { return enabled_; }

private:
    void relay();

    Workspace& workspace_;
    bool enabled_ = true;
};

} // namespace kvscope::ui
