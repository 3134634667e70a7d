// Computes the curves of the roofline view. Along a curve one number of the scenario varies and the others are fixed;
// the curves differ by the place of the cache or by the batch.
#pragma once

#include "profiler/roofline/cost_model.h"

#include <QString>

#include <vector>

namespace kvscope::ui {

/// The number that varies along the x axis.
enum class RooflineAxis { Batch, Context, HitRate, QueryShare };
/// The difference between the curves: where the cache lies, or the size of the batch.
enum class RooflineFamily { Placements, Batches };

struct RooflineChoice {
    bool known = true; // model and machine are known; if not, there is no roof, and `shape` and `gpu` mean nothing
    ModelShape shape;
    GpuSpec gpu;
    SelectionSpec method;
    QString methodTitle;
    int context = 16384, batch = 16;
    double hitRate = 0.95;
    double kvGib = 0; // as in DecodeScenario
    int bytesPerElement = 2;
    RooflineAxis axis = RooflineAxis::Batch;
    RooflineFamily family = RooflineFamily::Placements;
};

struct RooflineSample {
    double x = 0; // by the axis: sequences, tokens, hit rate or k_q / k
    StepCost cost;
};

struct RooflineCurve {
    QString name;
    Qt::PenStyle style = Qt::SolidLine;
    std::vector<RooflineSample> samples; // in the order of x
    /// The sample nearest to x.
    const RooflineSample& at(double x) const;
};

/// The smallest and the largest x of an axis.
std::pair<double, double> rooflineRange(RooflineAxis axis);
/// The batch sizes whose curves RooflineFamily::Batches shows.
const std::vector<int>& rooflineBatches();
/// Empty where the model or the machine of the choice is not known. @throws Error(BadInput)
std::vector<RooflineCurve> rooflineCurves(const RooflineChoice& choice);

} // namespace kvscope::ui
