// Quest's products with page digests on the GPU; its ranges are data and need no selector.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

/// Null where the method is data.
std::unique_ptr<DeviceSelector> makeDeviceQuest(const ParameterValues& values, const DeviceSelectorContext& context);

} // namespace kvscope
