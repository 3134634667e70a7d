// Methods with kernels of their own on the GPU: one line each. Methods that are data (SelectionSpec) need none.
#include "core/cuda/select/arkvale.h"
#include "core/cuda/select/infllm.h"
#include "core/cuda/select/quest.h"
#include "core/cuda/select/shadowkv.h"

#include <array>
#include <utility>

namespace kvscope {

DeviceSelectorMaker findDeviceSelector(std::string_view method) {
    static constexpr std::array<std::pair<std::string_view, DeviceSelectorMaker>, 4> table{{
        {"arkvale", makeDeviceArkVale},
        {"infllm", makeDeviceInfLlm},
        {"quest", makeDeviceQuest},
        {"shadowkv", makeDeviceShadowKv},
    }};
    for (const auto& [name, make] : table)
        if (name == method) return make;
    return nullptr;
}

} // namespace kvscope
