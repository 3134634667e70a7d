// How far the loading of a model or the reading of a prompt is, in the tool bar.
#pragma once

#include <QWidget>

class QAction;
class QLabel;
class QProgressBar;

namespace kvscope::ui {

/// A tool bar shows and hides its widgets through actions. This one is always shown, and shows and hides what is in it.
class SessionProgress final : public QWidget {
    Q_OBJECT
public:
    explicit SessionProgress(QWidget* parent = nullptr);

    void setWorking(bool working); // false: there is nothing to show; the next work begins at 0
    void advance(double fraction, const QString& what);
    /// In a narrow window the widget of `other` is hidden while there is something to show; without that the tool bar
    /// would hide its last buttons.
    void takeRoomOf(QAction* other);

signals:
    void cancelled();

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    void share();

    QWidget* row_;
    QAction* other_ = nullptr; // the action whose widget is hidden in a narrow window
    QLabel* text_;
    QProgressBar* bar_;
};

} // namespace kvscope::ui
