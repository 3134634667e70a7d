// SparDA on the GPU: nothing but the Forecast.
#include "core/cuda/select/forecast.h"

namespace kvscope {

std::unique_ptr<DeviceSelector> spardaOnDevice(const ParameterValues&, const DeviceSelectorContext& context) {
    return forecastOnDevice(context);
}

} // namespace kvscope
