#include "ui/models/roofline_curves.h"

#include <QCoreApplication>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

constexpr int kSamples = 240;

QString text(const char* source) { return QCoreApplication::translate("RooflineCurves", source); }

std::vector<double> samplesOf(RooflineAxis axis) {
    const auto [low, high] = rooflineRange(axis);
    std::vector<double> x;
    if (axis == RooflineAxis::Batch) {
        for (int batch = int(low); batch <= int(high); ++batch) x.push_back(batch);
        return x;
    }
    for (int i = 0; i <= kSamples; ++i) {
        const double t = double(i) / kSamples;
        x.push_back(axis == RooflineAxis::Context ? std::round(low * std::pow(high / low, t)) : low + (high - low) * t);
    }
    return x;
}

RooflineCurve curve(const RooflineChoice& choice, const QString& name, Qt::PenStyle style, const SelectionSpec& method,
                    Placement placement, int batch) {
    RooflineCurve result{name, style, {}};
    DecodeScenario scenario;
    scenario.model = choice.shape;
    scenario.gpu = choice.gpu;
    scenario.method = method;
    scenario.placement = placement;
    scenario.context = choice.context;
    scenario.batch = batch;
    scenario.hitRate = choice.hitRate;
    scenario.bytesPerElement = choice.bytesPerElement;
    scenario.kvGib = choice.kvGib;
    for (const double x : samplesOf(choice.axis)) {
        switch (choice.axis) {
        case RooflineAxis::Batch:
            scenario.batch = int(x);
            break;
        case RooflineAxis::Context:
            scenario.context = int(x);
            break;
        case RooflineAxis::HitRate:
            scenario.hitRate = x;
            break;
        case RooflineAxis::QueryShare: // NOSA's bound: a new query changes at most its share
            scenario.hitRate = 1 - x;
            break;
        }
        result.samples.push_back({x, predictStep(scenario)});
    }
    return result;
}

} // namespace

const RooflineSample& RooflineCurve::at(double x) const {
    const auto after = std::lower_bound(samples.begin(), samples.end(), x,
                                        [](const RooflineSample& sample, double wanted) { return sample.x < wanted; });
    if (after == samples.begin()) return samples.front();
    if (after == samples.end()) return samples.back();
    return x - std::prev(after)->x < after->x - x ? *std::prev(after) : *after;
}

std::pair<double, double> rooflineRange(RooflineAxis axis) {
    switch (axis) {
    case RooflineAxis::Batch:
        return {1, 512};
    case RooflineAxis::Context:
        return {1024, 262144};
    default:
        return {0, 1};
    }
}

const std::vector<int>& rooflineBatches() {
    static const std::vector<int> sizes{1, 4, 16, 64, 256};
    return sizes;
}

std::vector<RooflineCurve> rooflineCurves(const RooflineChoice& choice) {
    SelectionSpec full;
    full.dense = true;
    std::vector<RooflineCurve> curves;
    if (!choice.known) return curves;
    if (choice.family == RooflineFamily::Batches && choice.axis != RooflineAxis::Batch) {
        constexpr Qt::PenStyle styles[] = {Qt::SolidLine, Qt::DashLine, Qt::DotLine, Qt::DashDotLine,
                                           Qt::DashDotDotLine};
        int i = 0;
        for (const int batch : rooflineBatches())
            curves.push_back(curve(choice, text("Batch %1").arg(batch), styles[i++ % 5], choice.method,
                                   choice.method.dense ? Placement::Resident : Placement::OnDemand, batch));
        return curves;
    }
    curves.push_back(curve(choice, text("Full attention"), Qt::SolidLine, full, Placement::Resident, choice.batch));
    if (choice.method.dense) return curves;
    const QString& method = choice.methodTitle;
    curves.push_back(curve(choice, text("%1, resident").arg(method), Qt::DashLine, choice.method, Placement::Resident,
                           choice.batch));
    curves.push_back(curve(choice, text("%1, offloaded").arg(method), Qt::DashDotLine, choice.method,
                           Placement::OnDemand, choice.batch));
    curves.push_back(curve(choice, text("%1, lookahead").arg(method), Qt::DotLine, choice.method, Placement::Lookahead,
                           choice.batch));
    return curves;
}

} // namespace kvscope::ui
