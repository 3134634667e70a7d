// Methods with kernels of their own on the GPU: one line each. Methods that are data (SelectionSpec) need none.
#include "core/cuda/device_selector.h"

#include <array>
#include <utility>

namespace kvscope {

using DeviceSelectorOf = std::unique_ptr<DeviceSelector>(const ParameterValues&, const DeviceSelectorContext&);
DeviceSelectorOf makeDmaTokenOnDevice, makeDoubleSparsityOnDevice, makeH2oOnDevice, makeLocretOnDevice,
    makeSnapKvOnDevice;

DeviceSelectorMaker findDeviceSelector(std::string_view method) {
    static constexpr std::array<std::pair<std::string_view, DeviceSelectorMaker>, 5> table{{
        {"dma-token", makeDmaTokenOnDevice},
        {"double-sparsity", makeDoubleSparsityOnDevice},
        {"h2o", makeH2oOnDevice},
        {"locret", makeLocretOnDevice},
        {"snapkv", makeSnapKvOnDevice},
    }};
    for (const auto& [name, make] : table)
        if (name == method) return make;
    return nullptr;
}

} // namespace kvscope
