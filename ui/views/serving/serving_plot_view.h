// What the views of a serving run share: they read it, again while it grows, and say where there is nothing to show.
#pragma once

#include "ui/frame/growth_timer.h"
#include "ui/plots/plot_view.h"
#include "ui/views/serving/serving_data.h"

#include <QString>

namespace kvscope::ui {

class ServingPlotView : public PlotView {
    Q_OBJECT
public:
    /// whatItShows: a sentence for the page that is shown while no run is open.
    ServingPlotView(Workspace& workspace, const QString& title, const QString& whatItShows, QWidget* parent);

protected:
    virtual ServingWish wish() const { return {}; }
    virtual void forget() = 0; // another run is shown, so nothing of the last one may stay
    virtual void fill() = 0;   // draws data(), which is new; the base replots
    /// To be called when wish() has changed: reads the run again.
    void ask();
    const ServingData& data() const { return data_; }
    /// Moves the shared cursor to an iteration. row: of the batch, which is a sequence of the recorded steps; below 0:
    /// the cursor's sequence stays.
    void shareIteration(const IterationRow& iteration, int row);
    /// Whether the cursor moves because of shareIteration. It may be clamped to the recorded steps.
    bool isSharing() const { return sharing_; }

    void runChanged() override;
    void runGrew() override;

private:
    void take(ServingData came);

    const QString whatItShows_;
    ServingData data_;
    bool sharing_ = false;
    GrowthTimer timer_;
};

} // namespace kvscope::ui
