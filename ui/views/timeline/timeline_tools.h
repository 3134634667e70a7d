// The row above the timeline: search, and buttons for what keys do too.
#pragma once

#include <QWidget>

#include <vector>

class QHBoxLayout;
class QLabel;
class QLineEdit;
class QToolButton;

namespace kvscope::ui {

class TimelineTools final : public QWidget {
    Q_OBJECT
public:
    explicit TimelineTools(QWidget* parent = nullptr);

    QString searched() const;
    void setSearched(const QString& text);
    void editSearch(); // gives the keyboard to the search
    void showHits(const QString& text);
    bool wantsPanel() const;
    void setWantsPanel(bool wanted);
    /// Hides the tools for which a narrow window has no room: keys and menus do the same.
    void fit();

signals:
    void searchChanged();
    void searchLeft();
    void matchRequested(bool forward);
    void cursorMoveRequested(int steps, int layers);
    void decodeRequested(bool whole);
    void fitRequested();
    void allRequested();
    void noteRequested();
    void panelToggled(bool wanted);

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    template <class Pressed>
    QToolButton* addButton(const char* name, const QString& text, const QString& help, const Pressed& pressed);

    QHBoxLayout* row_;
    QLineEdit* search_;
    QLabel* hits_;
    QToolButton* panel_;
    std::vector<QWidget*> optional_; // that a narrow window hides, the first one first
};

} // namespace kvscope::ui
