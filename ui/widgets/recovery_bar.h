// The bar above the views that offers what a program that crashed has left behind: "Recovered: NOSA, 680 steps [Open]
// [Discard]".
#pragma once

#include <QString>
#include <QWidget>

#include <functional>
#include <vector>

class QVBoxLayout;

namespace kvscope::ui {

/// Has a line for each offer and is hidden while there is none.
class RecoveryBar final : public QWidget {
    Q_OBJECT
public:
    struct Choice {
        QString text, help;
        std::function<bool()> act; // returns false if the offer is to stay
    };
    explicit RecoveryBar(QWidget* parent = nullptr);
    /// Adds a line with a button for each choice. The line is removed when a choice was taken and returned true.
    QWidget* offer(const QString& text, const QString& help, const std::vector<Choice>& choices);
    /// Removes the line of an offer that needs no answer any more.
    void withdraw(QWidget* line);
    int offers() const { return offers_; }

private:
    QVBoxLayout* column_;
    int offers_ = 0;
};

} // namespace kvscope::ui
