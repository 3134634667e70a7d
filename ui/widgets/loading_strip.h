// How far a long reading is, and a button to stop it and to take it up again. Quick readings never show it.
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
    /// `unit`: what is counted, in the plural; empty: steps.
    explicit LoadingStrip(QWidget* parent = nullptr, const QString& unit = {});
    enum class State { Idle, Loading, Paused };
    void show(State state, int loaded, int total);
    /// How far a reading is: something with paused(), loading(), loaded() and total().
    template <class Reading> void show(const Reading& reading) {
        const int loaded = reading.loaded(), total = reading.total();
        show(reading.paused()                      ? State::Paused
             : reading.loading() && loaded < total ? State::Loading
                                                   : State::Idle,
             loaded, total);
    }
    /// The button stops it and takes it up again; `told` follows either.
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
    QTimer* patience_; // from the start of a reading until it is worth showing
    State state_ = State::Idle;
};

} // namespace kvscope::ui
