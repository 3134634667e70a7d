// What the centre shows while no run is open: how to begin.
#pragma once

#include "ui/widgets/trace_facts.h"

#include <QStringList>
#include <QWidget>

#include <vector>

class QLabel;
class QPushButton;
class QVBoxLayout;

namespace kvscope::ui {

class WelcomePage final : public QWidget {
    Q_OBJECT
public:
    explicit WelcomePage(QWidget* parent = nullptr);
    void setRecent(const QStringList& files);
    /// Of the folder where sessions are recorded, newest first.
    void setTraces(std::vector<TraceFacts> traces);
    /// Empty: Run is possible.
    void setRunProblem(const QString& problem);

signals:
    void runRequested();
    void openRequested();
    void fileRequested(const QString& path);
    void failed(const QString& sentence);
    void shortcutsRequested();
    void definitionsRequested();
    void tracesWanted(); // the page appears: what it lists may have changed

protected:
    void changeEvent(QEvent* event) override;
    void showEvent(QShowEvent* event) override;

private:
    QPushButton* run_;
    void listTraces();

    QLabel *runProblem_, *recentTitle_, *tracesTitle_, *links_;
    QStringList files_;
    std::vector<TraceFacts> traces_;
    QVBoxLayout *samples_, *recent_, *traceList_;
};

} // namespace kvscope::ui
