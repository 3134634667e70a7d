// The methods of registry.cpp.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

std::unique_ptr<DeviceSelector> infinigenOnDevice(const ParameterValues& values, const DeviceSelectorContext& context);
std::unique_ptr<DeviceSelector> spardaOnDevice(const ParameterValues& values, const DeviceSelectorContext& context);

} // namespace kvscope
