// What stands where a plot would be while there is nothing to plot: why, what to do next, and buttons that do it.
#pragma once

#include <QString>
#include <QWidget>

#include <functional>
#include <vector>

class QHBoxLayout;
class QLabel;

namespace kvscope::ui {

/// A way on. Without `act` it is left out, so that what a window cannot do is not offered.
struct EmptyAction {
    QString text;
    std::function<void()> act;
};

class EmptyPage final : public QWidget {
    Q_OBJECT
public:
    explicit EmptyPage(QWidget* parent = nullptr);
    void setTexts(const QString& title, const QString& text, const std::vector<EmptyAction>& actions);
    QString text() const; // both

private:
    QLabel *title_, *text_;
    QWidget* actions_;
    QHBoxLayout* row_;
};

/// Triggers the action of that name of the window that `from` is in; without an act where there is none.
EmptyAction windowAction(const QWidget& from, const char* name, const QString& text);

} // namespace kvscope::ui
