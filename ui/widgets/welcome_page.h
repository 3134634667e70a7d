// What the centre shows while no run is open: how to begin.
#pragma once

#include <QStringList>
#include <QWidget>

class QLabel;
class QPushButton;
class QVBoxLayout;

namespace kvscope::ui {

class WelcomePage final : public QWidget {
    Q_OBJECT
public:
    explicit WelcomePage(QWidget* parent = nullptr);
    void setRecent(const QStringList& files);
    /// Empty: Run is possible.
    void setRunProblem(const QString& problem);

signals:
    void runRequested();
    void openRequested();
    void fileRequested(const QString& path);
    void failed(const QString& sentence);
    void shortcutsRequested();
    void definitionsRequested();

protected:
    void changeEvent(QEvent* event) override;

private:
    QPushButton* run_;
    QLabel *runProblem_, *recentTitle_, *links_;
    QStringList files_;
    QVBoxLayout *samples_, *recent_;
};

} // namespace kvscope::ui
