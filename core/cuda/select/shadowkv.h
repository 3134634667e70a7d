// ShadowKV on the GPU.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

std::unique_ptr<DeviceSelector> makeDeviceShadowKv(const ParameterValues& values, const DeviceSelectorContext& context);

} // namespace kvscope
