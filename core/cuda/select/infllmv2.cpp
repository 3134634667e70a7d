// InfLLM-V2 is data on the GPU, with exact log-sum-exps.
#include "core/cuda/device_selector.h"

#include "kernels/base/error.h"

namespace kvscope {

std::unique_ptr<DeviceSelector> infllmV2OnDevice(const ParameterValues& values, const DeviceSelectorContext&) {
    if (values.text("lse") != "exact")
        throw Error(ErrorKind::Unsupported, "the GPU backend has lse=exact only", "use lse=exact, or --backend cpu");
    return nullptr;
}

} // namespace kvscope
