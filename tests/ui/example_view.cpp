// The example of docs/adding-a-view.md: how many blocks each decode step missed.
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kvscope::ui {
namespace {

class MissesView final : public PlotView {
public:
    MissesView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Misses"), parent) {
        QCPAxisRect* panel = canvas().addPanel(false); // false: the view fits the values, the user zooms the steps
        curve_ = new QCPGraph(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
        setIntegerAxis(panel->axis(QCPAxis::atBottom), tr("Decode step"));
        panel->axis(QCPAxis::atLeft)->setLabel(tr("Missed blocks"));
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (steps_.empty()) return {};
        QString text = QStringLiteral("step,misses\n");
        for (const StepRow& row : steps_) text += QStringLiteral("%1,%2\n").arg(row.step).arg(row.misses);
        return text;
    }

protected:
    void runChanged() override {
        steps_.clear();
        if (showEmptyWithoutRun(tr("This view shows how many selected blocks each decode step missed."))) return;
        showReading();
        read();
    }
    void runGrew() override { read(); }
    void cursorMoved() override { showMark(stepMark(), canvas().panels()); }
    void themed(const Theme& theme) override { curve_->setPen(QPen(theme.miss)); }
    void clickedAt(int, QPointF at) override { // all views follow the shared cursor
        Cursor cursor = workspace().cursor();
        cursor.step = int(std::lround(at.x()));
        workspace().setCursor(cursor);
    }
    QString tooltipAt(int, QPointF at) override {
        for (const StepRow& row : steps_)
            if (row.step == int(std::lround(at.x()))) return tr("Step %1: %2 missed").arg(row.step).arg(row.misses);
        return {};
    }
    QString note() const override { return {}; }

private:
    void read() { // on a worker; the answer comes on the GUI's thread, unless the view has asked again or is gone
        const RunKey key = run()->key;
        workspace().query<std::vector<StepRow>>(
            this, "misses", key, [id = key.runId](TraceReader& reader) { return reader.steps(id); },
            [this](std::vector<StepRow> steps) {
                std::erase_if(steps, [](const StepRow& row) { return row.phase != Phase::Decode; });
                steps_ = std::move(steps);
                present();
            });
    }
    void present() {
        if (steps_.empty()) return showEmpty(tr("No decode step"), tr("The run has none yet."));
        QVector<double> x, y;
        for (const StepRow& row : steps_) x << row.step, y << double(row.misses);
        curve_->setData(x, y, true);
        canvas().setFullX({x.first() - 0.5, x.last() + 0.5});
        canvas().setFullY(0, {0, std::max(1.0, *std::max_element(y.begin(), y.end()) * 1.05)});
        showEmpty({}, {});
        updateNote();
        replot();
    }

    QCPGraph* curve_;
    std::vector<StepRow> steps_; // decode steps
};

} // namespace

View* makeMissesView(Workspace& workspace, QWidget* parent) { return new MissesView(workspace, parent); }

} // namespace kvscope::ui
