// The foot of the session form: what the session takes, why it cannot be run, and the buttons.
#pragma once

#include <QFrame>

class QPushButton;

namespace kvscope::ui {

class InlineMessage;
class MutedLabel;

class SessionFooter final : public QFrame {
    Q_OBJECT
public:
    explicit SessionFooter(QWidget* parent = nullptr);

    void setEstimate(const QString& text);
    void showError(const QString& sentence);
    void showNote(const QString& sentence);
    void clearMessage();
    /// reason: shown above the buttons. problem: why the session cannot be run. requested: why it can neither be run
    /// nor queued. Empty: none.
    void setProblems(const QString& reason, const QString& problem, const QString& requested);
    void focusRun();

signals:
    void run();
    void addToQueue();
    void sweep();

private:
    MutedLabel *estimate_ = nullptr, *reason_ = nullptr;
    InlineMessage* message_ = nullptr;
    QPushButton *run_ = nullptr, *queue_ = nullptr, *sweep_ = nullptr;
};

} // namespace kvscope::ui
