#include "profiler/read/recorded_oracle.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

bool recordedOracle(const TraceReader& reader, int runId) {
    constexpr int kLastStep = 64;
    const StepMatrix mass = reader.layerMatrix(runId, Metric::Mass, {}, 0, kLastStep);
    return std::any_of(mass.values.begin(), mass.values.end(), [](float value) { return !std::isnan(value); });
}

} // namespace kvscope
