// What the Selection view says of the facts that a prompt hides: a lane per fact over the mask, and frames around their
// blocks in it.
#pragma once

#include "base/indexed.h"
#include "profiler/read/needle_evidence.h"
#include "ui/frame/workspace.h"
#include "ui/plots/legend_strip.h"

#include <qcustomplot.h>

#include <QObject>

#include <vector>

namespace kvscope::ui {

class NeedlePlottable;
class PlotCanvas;
struct Theme;

class NeedleLanes final : public QObject {
    Q_OBJECT
public:
    /// main: the panel of the mask, whose row of the layout gets the lanes above it; call it when the margins are made.
    NeedleLanes(Workspace& workspace, PlotCanvas& plot, QCPAxisRect* main, int mainRow, QObject* parent);

    /// Shows the facts of a sequence of the current run, and reads what is new.
    void show(const OpenRun* run, int sequence);
    /// To be called when the run has grown.
    void advance();
    void applyTheme(const Theme& theme);
    int panel() const { return panel_; }
    bool shown() const { return !needles_.empty(); }
    const std::vector<NeedlePlace>& needles() const { return needles_; }
    int knownSteps() const { return known_; } // up to which all is read
    /// HTML of the lane at a place; empty where there is none.
    QString tooltip(double step, double lane) const;
    /// HTML lines of the facts in a block; empty: none.
    QString blockText(int block) const;
    QVector<Swatch> swatches(const Theme& theme) const;
    /// A sentence about what was answered and what has no lane; empty without facts.
    QString note() const;

signals:
    void changed(); // more was read

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    int laneCount() const; // for which there is room
    void place();
    void frame();
    void ask();

    Workspace& workspace_;
    PlotCanvas& plot_;
    QCPAxisRect *main_, *rect_ = nullptr;
    const int mainRow_; // of the plot's layout, without the lanes
    NeedlePlottable* plottable_ = nullptr;
    std::vector<QCPItemRect*> frames_;
    Numbered<NeedlePlace> needles_;             // with a lane, the one that is asked for first
    Numbered<std::vector<NeedleSight>> sights_; // [needle]: its steps, ascending
    std::vector<NeedleAnswer> answers_;
    RunRow row_;
    RunKey key_;
    int panel_ = 0, placed_ = -1, sequence_ = 0, known_ = 0,
        hidden_ = 0; // known_: steps before it are read; hidden_: facts without a lane
    bool reading_ = false;
};

} // namespace kvscope::ui
