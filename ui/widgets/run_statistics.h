// The part of the tool bar with numbers of the run that the window shows: tokens/s, hit rate and locality.
#pragma once

#include "profiler/read/summary.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/workspace.h"

#include <QWidget>

#include <string>

class QLabel;

namespace kvscope::ui {

/// Hidden while no run is shown, and for imported runs. The numbers are those of RunSummary. They are read piece by
/// piece, and of a run that grows only the new steps are read. "–" stands for a number that is not known or not read
/// yet.
class RunStatistics final : public QWidget {
    Q_OBJECT
public:
    explicit RunStatistics(Workspace& workspace, QWidget* parent = nullptr);

private:
    struct Answer;
    void follow(); // called when another run is shown, or none
    void forget();
    void ask();
    void take(Answer answer);
    void show(const RunRow& run);

    Workspace& workspace_;
    RunKey key_; // the run to which the numbers belong
    std::string created_;
    /// Sums over the rows of the steps. They are read quickly and give all numbers but the locality.
    SummarySums rows_;
    SummarySums all_;                // sums that need the selections too: the locality
    int rowsRead_ = 0, allRead_ = 0; // steps that `rows_` and `all_` contain
    unsigned epoch_ = 0;
    GrowthTimer again_;
    QLabel *rate_ = nullptr, *hitRate_ = nullptr, *locality_ = nullptr;
};

} // namespace kvscope::ui
