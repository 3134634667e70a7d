// Methods with kernels of their own on the GPU: a name and a line each. Methods that are data (SelectionSpec) need
// none.
#include "core/cuda/device_selector.h"

#include <array>
#include <utility>

namespace kvscope {

using DeviceSelectorOf = std::unique_ptr<DeviceSelector>(const ParameterValues&, const DeviceSelectorContext&);
DeviceSelectorOf arkvaleOnDevice, asyncTlsOnDevice, dmaTokenOnDevice, doubleSparsityOnDevice, h2oOnDevice,
    infinigenOnDevice, infinigenTokenOnDevice, infllmOnDevice, infllmV2OnDevice, locretOnDevice, questOnDevice,
    shadowKvOnDevice, snapKvOnDevice, spardaOnDevice;

DeviceSelectorMaker findDeviceSelector(std::string_view method) {
    static constexpr std::array<std::pair<std::string_view, DeviceSelectorMaker>, 14> table{{
        {"arkvale", arkvaleOnDevice},
        {"asynctls", asyncTlsOnDevice},
        {"dma-token", dmaTokenOnDevice},
        {"double-sparsity", doubleSparsityOnDevice},
        {"h2o", h2oOnDevice},
        {"infinigen", infinigenOnDevice},
        {"infinigen-token", infinigenTokenOnDevice},
        {"infllm", infllmOnDevice},
        {"infllmv2", infllmV2OnDevice},
        {"locret", locretOnDevice},
        {"quest", questOnDevice},
        {"shadowkv", shadowKvOnDevice},
        {"snapkv", snapKvOnDevice},
        {"sparda", spardaOnDevice},
    }};
    for (const auto& [name, make] : table)
        if (name == method) return make;
    return nullptr;
}

} // namespace kvscope
