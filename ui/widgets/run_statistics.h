// The part of the tool bar with numbers of the run that the window shows: tokens/s, hit rate and locality.
#pragma once

#include "profiler/read/summary.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/workspace.h"

#include <QWidget>

#include <optional>
#include <string>

class QLabel;

namespace kvscope::ui {

/// Hidden while no run is shown, and for imported runs. The numbers are those of RunSummary. They are read piece by
/// piece, and of a run that grows only the new steps are read. "–" stands for a number that is not known or not read
/// yet. Where the time between steps changes tokens/s by more than 5 %, both rates are shown. Beside the numbers stands
/// whether they count cold steps.
class RunStatistics final : public QWidget {
    Q_OBJECT
public:
    explicit RunStatistics(Workspace& workspace, QWidget* parent = nullptr);

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;
    void showEvent(QShowEvent* event) override;

private:
    struct Answer;
    void follow(); // called when another run is shown, or none
    void forget();
    void ask();
    void take(Answer answer);
    void show();
    void tellWhatCounts(const RunSummary& summary);
    void fitWindow();

    Workspace& workspace_;
    RunKey key_; // the run to which the numbers belong
    std::string created_;
    SummarySums rows_;               // of the steps' own rows: quickly read, they give all but the locality
    SummarySums all_;                // of everything
    int rowsRead_ = 0, allRead_ = 0; // steps
    std::optional<RunRow> run_;      // when its numbers were shown last
    unsigned epoch_ = 0;
    GrowthTimer again_;
    /// clockRate_: tokens/s with the time between steps; used only where it is another number.
    QLabel *rate_ = nullptr, *clockRate_ = nullptr, *hitRate_ = nullptr, *locality_ = nullptr;
    QLabel *rateCaption_ = nullptr, *counted_ = nullptr;
    bool showsClock_ = false;
    QWidget* watched_ = nullptr; // the window whose width decides what there is room for
};

} // namespace kvscope::ui
