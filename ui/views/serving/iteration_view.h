// A view of strips below each other that share the time axis of a serving run, each with its legend above it. A click
// chooses an iteration.
#pragma once

#include "base/indexed.h"
#include "ui/views/serving/serving_plot_view.h"
#include "ui/views/serving/serving_strip.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvscope::ui {

class LegendStrip;

class IterationView : public ServingPlotView {
    Q_OBJECT
public:
    using ServingPlotView::ServingPlotView;

protected:
    /// Adds a strip below those that are there. zoomsValues: the user can zoom its value axis. share: of the height,
    /// beside that of the other strips
    void addStrip(std::unique_ptr<ServingStrip> strip, bool zoomsValues = false, double share = 1);
    /// To be called once all strips are added.
    void finishStrips();
    /// Whether strips and their legends are as low as they may be, so that all of them are in sight.
    void setLow(bool low);
    /// Draws one strip again from the same data.
    void refill(int strip);
    /// The request at a place of a strip; below 0: none.
    virtual std::int64_t requestAt(int /*strip*/, QPointF /*at*/) const { return -1; }
    /// Called when another iteration, or none, was chosen; chosenIteration() tells which.
    virtual void chose() {}
    const IterationRow* chosenIteration() const { return data().iterationOf(chosenIteration_); }
    std::int64_t chosenRequest() const { return chosenRequest_; } // below 0: none
    /// Chooses another request of the chosen iteration.
    void setChosenRequest(std::int64_t request) { chosenRequest_ = request; }

    void forget() override;
    void fill() override;
    void cursorMoved() override;
    void themed(const Theme& theme) override;
    void clickedAt(int panel, QPointF at) override;
    QString tooltipAt(int panel, QPointF at) override;
    void moveCursor(int steps, int layers) override; // to another iteration
    void jumpCursor(bool toEnd) override;

private:
    void choose(const IterationRow& iteration, std::int64_t request, double atNs);
    void chooseAndShare(const IterationRow& iteration, std::int64_t request, double atNs);
    void chooseNothing();
    void showLegends(const Theme& theme);

    Numbered<std::unique_ptr<ServingStrip>> strips_; // by panel
    std::vector<LegendStrip*> legends_;              // by panel
    bool low_ = false;
    int chosenIteration_ = -1; // its number; below 0: none
    std::int64_t chosenRequest_ = -1;
};

} // namespace kvscope::ui
