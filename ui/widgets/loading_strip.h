// Shows how far a long read of a trace is, with a button to stop it and to continue it. Reads that end within 0.3 s
// never show the strip.
#pragma once

#include <QWidget>

class QLabel;
class QProgressBar;
class QPushButton;
class QTimer;

namespace kvscope::ui {

class LoadingStrip final : public QWidget {
    Q_OBJECT
public:
    /// `unit`: the plural name of what is counted; empty: "steps".
    explicit LoadingStrip(QWidget* parent = nullptr, const QString& unit = {});
    enum class State { Idle, Loading, Paused };
    void show(State state, int loaded, int total);
    /// Shows how far a read is. Reading has paused(), loading(), loaded() and total().
    template <class Reading> void show(const Reading& reading) {
        const int loaded = reading.loaded(), total = reading.total();
        show(reading.paused()                      ? State::Paused
             : reading.loading() && loaded < total ? State::Loading
                                                   : State::Idle,
             loaded, total);
    }
    /// Connects the button: it calls reading.pause() or reading.resume(), and then told().
    template <class Reading, class Told> void steer(Reading& reading, const Told& told) {
        connect(this, &LoadingStrip::stopped, this, [&reading, told] {
            reading.pause();
            told();
        });
        connect(this, &LoadingStrip::resumed, this, [&reading, told] {
            reading.resume();
            told();
        });
    }

signals:
    void stopped();
    void resumed();

private:
    QString unit_;
    QLabel* text_;
    QProgressBar* bar_;
    QPushButton* button_;
    QTimer* patience_; // runs until a read that goes on is worth showing
    State state_ = State::Idle;
};

} // namespace kvscope::ui
