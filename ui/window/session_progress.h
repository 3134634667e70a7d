// How far the loading of a model or the reading of a prompt is, in the tool bar.
#pragma once

#include <QWidget>

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

signals:
    void cancelled();

private:
    QWidget* row_;
    QLabel* text_;
    QProgressBar* bar_;
};

} // namespace kvscope::ui
