// Methods with kernels of their own on the GPU: one line each. Methods that are data (SelectionSpec) need none.
#include "core/cuda/select/methods.h"

#include <array>
#include <utility>

namespace kvscope {

DeviceSelectorMaker findDeviceSelector(std::string_view method) {
    static constexpr std::array table{
        std::pair<std::string_view, DeviceSelectorMaker>{"infinigen", infinigenOnDevice},
        std::pair<std::string_view, DeviceSelectorMaker>{"sparda", spardaOnDevice},
    };
    for (const auto& [name, make] : table)
        if (name == method) return make;
    return nullptr;
}

} // namespace kvscope
