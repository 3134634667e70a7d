// The start page in the centre of the window while no run is open. It offers ways to begin.
#pragma once

#include "ui/widgets/trace_facts.h"

#include <QStringList>
#include <QWidget>

#include <cstddef>
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
    /// Lists the traces of the folder in which sessions are recorded, newest first.
    void setTraces(std::vector<TraceFacts> traces);
    /// The titles of the sample traces in the order of their indices.
    static QStringList sampleTitles();
    /// Unpacks a sample trace, if it is not there yet, and emits sampleRequested and fileRequested, or failed.
    void openSample(std::size_t index);
    /// Why no session can be started; empty: one can.
    void setRunProblem(const QString& problem);

signals:
    void runRequested();
    void openRequested();
    void fileRequested(const QString& path);
    /// Before fileRequested for the same file. `view`: id of the view that the sample opens with.
    void sampleRequested(const QString& path, const QString& view);
    void failed(const QString& sentence);
    void shortcutsRequested();
    void definitionsRequested();
    void tracesWanted(); // the page appears, and its list of traces may be outdated

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
