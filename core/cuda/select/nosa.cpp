// NOSA on the GPU with ahead=forecast: the layer before chooses. With ahead=none the method is data and needs no
// selector.
#include "core/cuda/select/forecast.h"
#include "core/select/forecast.h"

namespace kvscope {

std::unique_ptr<DeviceSelector> nosaOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    if (!select::choosesByForecast(values)) return nullptr;
    return forecastOnDevice(context);
}

} // namespace kvscope
