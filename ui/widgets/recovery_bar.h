// What a program that ended without a word has left, above the views: "Recovered: NOSA, 680 steps [Open] [Discard]".
#pragma once

#include <QString>
#include <QWidget>

#include <functional>
#include <vector>

class QVBoxLayout;

namespace kvscope::ui {

/// One line for each offer; hidden while there is none.
class RecoveryBar final : public QWidget {
    Q_OBJECT
public:
    struct Choice {
        QString text, help;
        std::function<bool()> act; // false: the offer stays
    };
    explicit RecoveryBar(QWidget* parent = nullptr);
    /// A line with a button for each choice; it goes when one of them was taken.
    QWidget* offer(const QString& text, const QString& help, const std::vector<Choice>& choices);
    void withdraw(QWidget* line); // the question has answered itself
    int offers() const { return offers_; }

private:
    QVBoxLayout* column_;
    int offers_ = 0;
};

} // namespace kvscope::ui
