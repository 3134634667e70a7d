// The curves of the roofline view: one number of a scenario varied, the others held, for several ways to keep the
// cache.
#pragma once

#include "profiler/roofline/cost_model.h"

#include <QString>

#include <vector>

namespace kvscope::ui {

/// What is varied along the chart.
enum class RooflineAxis { Batch, Context, HitRate, QueryShare };
/// What differs from curve to curve.
enum class RooflineFamily { Placements, Batches };

struct RooflineChoice {
    bool known = true; // model and machine are; else there is no roof, and `shape` and `gpu` mean nothing
    ModelShape shape;
    GpuSpec gpu;
    SelectionSpec method;
    QString methodTitle;
    int context = 16384, batch = 16;
    double hitRate = 0.95;
    double kvGib = 0; // see DecodeScenario
    int bytesPerElement = 2;
    RooflineAxis axis = RooflineAxis::Batch;
    RooflineFamily family = RooflineFamily::Placements;
};

struct RooflineSample {
    double x = 0; // batch, tokens, hit rate or k_q / k
    StepCost cost;
};

struct RooflineCurve {
    QString name;
    Qt::PenStyle style = Qt::SolidLine;
    std::vector<RooflineSample> samples; // ascending x
    /// The sample nearest to x.
    const RooflineSample& at(double x) const;
};

/// Smallest and largest x of an axis.
std::pair<double, double> rooflineRange(RooflineAxis axis);
/// Batch sizes that the family of batches compares.
const std::vector<int>& rooflineBatches();
/// None where the choice is not known. @throws Error(BadInput)
std::vector<RooflineCurve> rooflineCurves(const RooflineChoice& choice);

} // namespace kvscope::ui
