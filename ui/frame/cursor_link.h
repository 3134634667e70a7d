// Links the cursors of several windows that show the same run.
#pragma once

#include "ui/frame/workspace.h"

#include <QObject>

namespace kvscope::ui {

/// When the user moves the cursor in one workspace, moves it in all linked workspaces that show the same run. Each
/// window follows a live run on its own.
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
