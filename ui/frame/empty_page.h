// A page that stands in the place of a plot while there is nothing to plot. It says why, and what to do next, and has
// buttons for that.
#pragma once

#include <QString>
#include <QWidget>

#include <functional>
#include <vector>

class QHBoxLayout;
class QLabel;

namespace kvscope::ui {

/// A button of the page. If `act` is empty, because the window cannot do it, the button is left out.
struct EmptyAction {
    QString text;
    std::function<void()> act;
};

class EmptyPage final : public QWidget {
    Q_OBJECT
public:
    explicit EmptyPage(QWidget* parent = nullptr);
    void setTexts(const QString& title, const QString& text, const std::vector<EmptyAction>& actions);
    QString text() const; // title and text

private:
    QLabel *title_, *text_;
    QWidget* actions_;
    QHBoxLayout* row_;
};

/// A button that triggers the action `name` of the window that contains `from`. `act` is empty if the window has no
/// such action.
EmptyAction windowAction(const QWidget& from, const char* name, const QString& text);

} // namespace kvscope::ui
