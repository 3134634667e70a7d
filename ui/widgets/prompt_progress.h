// A card in the middle of the window while a session reads its prompt: which layer it is at, how much is done, and how
// long it still takes.
#pragma once

#include <QElapsedTimer>
#include <QWidget>

class QLabel;
class QProgressBar;

namespace kvscope::ui {

class MutedLabel;

class PromptProgress final : public QWidget {
    Q_OBJECT
public:
    /// A card over `parent`, in whose middle it stays. Hidden until something is read; clicks go through it.
    explicit PromptProgress(QWidget* parent);
    /// fraction: 0..1 of all prompts. layers, sequences: of the run; 0: not known.
    void showReading(double fraction, int layers, int sequences);
    void end();
    /// "Reading the prompt: layer 3 of 8, 41 %".
    static QString textOf(double fraction, int layers, int sequences);
    /// "about 4 s left"; empty as long as too little was read to tell.
    static QString leftOf(double fraction, qint64 elapsedMs);

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;
    void paintEvent(QPaintEvent* event) override;

private:
    void place();
    QLabel* title_;
    QProgressBar* bar_;
    MutedLabel* detail_;
    QElapsedTimer since_; // invalid: nothing is read
    double first_ = 0;    // fraction when the clock started
};

} // namespace kvscope::ui
