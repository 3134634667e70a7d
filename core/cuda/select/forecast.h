// Choosing by the Forecast on the GPU, for SparDA and for methods with ahead=forecast (core/select/forecast.h).
#pragma once

#include "core/cuda/device_selector.h"

#include <memory>

namespace kvscope {

/// A selector whose blocks the layer before chooses by its Forecast heads, which the model on the GPU has.
std::unique_ptr<DeviceSelector> forecastOnDevice(const DeviceSelectorContext& context);

} // namespace kvscope
