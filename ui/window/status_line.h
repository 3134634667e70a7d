// The line at the bottom of a window: its last message, and buttons that tell what goes on beside the views.
#pragma once

#include <QStatusBar>

class QLabel;
class QToolButton;

namespace kvscope::ui {

class StatusLine final : public QStatusBar {
    Q_OBJECT
public:
    /// What a message is about, for those that take it back when a person has gone on.
    enum class About { Other, OpenedFiles, Model, Session };

    explicit StatusLine(QWidget* parent);

    /// Shows the message in place of the one before. Empty: hides it.
    void say(const QString& text, bool isError = false, About about = About::Other);
    /// Hides the message if it is still the one about this.
    void forget(About about);
    /// The tooltip of the message, which is plain text; until the next message.
    void explain(const QString& text);
    /// A button that is hidden until its owner shows it.
    QToolButton* addButton(const char* objectName);
    /// Says how many rows of the shown run break rules of the trace format. Empty: none.
    void showBroken(const QString& text, const QString& details);
    void setBusy(bool busy);

signals:
    void brokenClicked();

private:
    QToolButton* makeButton(const char* objectName, const char* role);

    QLabel *message_, *busy_;
    QToolButton *dismiss_, *broken_;
    About about_ = About::Other;
};

} // namespace kvscope::ui
