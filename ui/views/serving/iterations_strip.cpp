// Strip: what iterations took, and what was predicted.
#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/serving/serving_strip.h"

#include <qcustomplot.h>

#include <algorithm>

namespace kvscope::ui {
namespace {

class IterationsStrip final : public ServingStrip {
public:
    void build(QCPAxisRect& panel) override {
        panel_ = &panel;
        predicted_ = curveIn(panel), took_ = curveIn(panel);
    }

    QCPRange fill(const ServingData& data) override {
        QVector<double> at, took, predicted;
        double longest = 1;
        for (const IterationRow& row : data.rows.iterations) {
            at << double(row.startNs);
            took << double(row.durationNs);
            predicted << double(row.predictedNs);
            longest = std::max({longest, took.back(), predicted.back()});
        }
        if (!at.isEmpty()) { // a step reaches to the next point: the last one to the end of its iteration
            at << double(data.rows.iterations.back().endNs());
            for (QVector<double>* values : {&took, &predicted}) values->append(double(values->back()));
        }
        took_->setData(at, took, true), predicted_->setData(at, predicted, true);
        return {0, longest * 1.05};
    }

    void nameAxis() override { setUnitAxis(panel_->axis(QCPAxis::atLeft), View::tr("Iteration"), Unit::Nanoseconds); }
    void themed(const Theme& theme) override {
        took_->setPen(QPen(theme.runA, 1));
        predicted_->setPen(QPen(theme.mutedText, 1, Qt::DashLine));
    }
    QVector<Swatch> swatches(const Theme& theme) const override {
        return {{View::tr("iterations took"), theme.runA, Swatch::Mark::Line, {}},
                {View::tr("predicted"), theme.mutedText, Swatch::Mark::Dashes, {}}};
    }

private:
    QCPAxisRect* panel_ = nullptr;
    QCPGraph *took_ = nullptr, *predicted_ = nullptr;
};

} // namespace

std::unique_ptr<ServingStrip> makeIterationsStrip() { return std::make_unique<IterationsStrip>(); }

} // namespace kvscope::ui
