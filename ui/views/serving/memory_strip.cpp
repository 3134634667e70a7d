// Strip: the device's memory over time. What is reserved (index and newest blocks), the working sets on it and the room
// for them make up the device's budget; the scratch memory of prompts, which has a budget of its own, stands on that.
#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/serving/serving_strip.h"

#include <qcustomplot.h>

#include <algorithm>

namespace kvscope::ui {
namespace {

QColor reservedColour(const Theme& theme) { return faint(theme.mutedText, 0.35); }

class MemoryStrip final : public ServingStrip {
public:
    void build(QCPAxisRect& panel) override {
        panel_ = &panel;
        paused_ = curveIn(panel), reserved_ = curveIn(panel), workingSets_ = curveIn(panel);
        available_ = curveIn(panel), scratch_ = curveIn(panel), scratchBudget_ = curveIn(panel);
        base_ = curveIn(panel);
        base_->setPen(Qt::NoPen);
        workingSets_->setChannelFillGraph(reserved_); // working sets stand on what is reserved
        scratch_->setChannelFillGraph(base_);
    }

    QCPRange fill(const ServingData& data) override {
        QVector<double> at, sets, room, reserved, paused, base, scratch;
        double most = 1;
        for (const IterationRow& row : data.rows.iterations) {
            at << double(row.startNs);
            reserved << double(row.deviceBytes);
            sets << reserved.back() + double(row.workingSetBytes);
            room << reserved.back() + double(row.availableBytes);
            base << std::max(room.back(), sets.back()); // working sets may exceed their room
            scratch << base.back() + double(row.scratchBytes);
            most = std::max({most, sets.back(), scratch.back()});
        }
        most *= 1.05;
        for (const IterationRow& row : data.rows.iterations) paused << (row.paused > 0 ? most : 0);
        if (!at.isEmpty()) { // a step reaches to the next point: the last one to the end of its iteration
            at << double(data.rows.iterations.back().endNs());
            for (QVector<double>* values : {&sets, &room, &reserved, &paused, &base, &scratch})
                values->append(double(values->back()));
        }
        workingSets_->setData(at, sets, true), available_->setData(at, room, true);
        reserved_->setData(at, reserved, true), paused_->setData(at, paused, true);
        base_->setData(at, base, true), scratch_->setData(at, scratch, true);
        // The budget is drawn where it lies near what is used: a large one that nobody uses would flatten all curves.
        const double top = data.budgets.device + data.budgets.scratch;
        const bool near = data.budgets.scratch > 0 && top <= 1.5 * most;
        scratchBudget_->setVisible(near);
        scratchBudget_->setData({0, data.end()}, {top, top}, true);
        return {0, near ? std::max(most, top * 1.05) : most};
    }

    void nameAxis() override { setUnitAxis(panel_->axis(QCPAxis::atLeft), View::tr("Device"), Unit::Bytes); }
    void themed(const Theme& theme) override {
        available_->setPen(QPen(theme.danger, 1, Qt::DashLine));
        scratchBudget_->setPen(QPen(theme.danger, 1, Qt::DotLine));
        paused_->setPen(Qt::NoPen), paused_->setBrush(faint(theme.miss, 0.25));
        reserved_->setPen(QPen(theme.mutedText, 1)), reserved_->setBrush(reservedColour(theme));
        workingSets_->setPen(QPen(theme.runA, 1.5)), workingSets_->setBrush(faint(theme.runA, 0.45));
        scratch_->setPen(QPen(theme.runB, 1)), scratch_->setBrush(faint(theme.runB, 0.35));
    }
    QVector<Swatch> swatches(const Theme& theme) const override {
        return {{View::tr("reserved"), reservedColour(theme), Swatch::Mark::Fill, {}},
                {View::tr("working sets"), faint(theme.runA, 0.45), Swatch::Mark::Fill, {}},
                {View::tr("room for them"), theme.danger, Swatch::Mark::Dashes, {}},
                {View::tr("scratch"), faint(theme.runB, 0.35), Swatch::Mark::Fill, {}},
                {View::tr("pauses"), faint(theme.miss, 0.25), Swatch::Mark::Fill, {}}};
    }

    void addFacts(const ServingData& data, double ns, double, const Add& add) const override {
        const IterationRow* row = data.iterationAt(ns);
        if (!row) return;
        const auto of = [](std::int64_t used, double budget) {
            return budget > 0 ? View::tr("%1 of %2").arg(servingBytes(double(used)), servingBytes(budget))
                              : servingBytes(double(used));
        };
        add(View::tr("Reserved"), of(row->deviceBytes, data.budgets.device));
        add(View::tr("Scratch, for prompts"), of(row->scratchBytes, data.budgets.scratch));
        add(View::tr("Host"), of(row->hostBytes, data.budgets.host));
    }

private:
    QCPAxisRect* panel_ = nullptr;
    QCPGraph *paused_ = nullptr, *reserved_ = nullptr, *workingSets_ = nullptr, *available_ = nullptr,
             *scratch_ = nullptr, *scratchBudget_ = nullptr, *base_ = nullptr; // base_: what scratch stands on
};

} // namespace

std::unique_ptr<ServingStrip> makeMemoryStrip() { return std::make_unique<MemoryStrip>(); }

} // namespace kvscope::ui
