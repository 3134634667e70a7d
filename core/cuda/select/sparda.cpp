// SparDA on the GPU: its whole choice is the Forecast.
#include "core/cuda/select/forecast.h"

namespace kvscope {

std::unique_ptr<DeviceSelector> spardaOnDevice(const ParameterValues&, const DeviceSelectorContext& context) {
    return forecastOnDevice(context);
}

} // namespace kvscope
