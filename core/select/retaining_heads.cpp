#include "core/select/retaining_heads.h"

#include "base/error.h"
#include "core/model/bundled_models.h"
#include "core/model/safetensors.h"
#include "core/model/safetensors_writer.h"
#include "kernels/half.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <utility>

namespace kvscope::select {
namespace {

std::string layerTensor(int layer, const char* what) {
    return fmt::format("model.layers.{}.self_attn.{}.weight", layer, what);
}

/// float32 numbers of a matrix of any plain type.
void append(const TensorView& view, DType type, std::vector<float>& to) {
    for (std::int64_t i = 0; i < view.shape[0] * view.shape[1]; ++i)
        to.push_back(elementAt(view.bytes.data(), type, i));
}

RetainingHeads parse(std::span<const std::byte> bytes, const std::string& origin, const ModelConfig& config) {
    const SafetensorsFile tensors(bytes, origin);
    RetainingHeads heads{config.layers, RetainingHeads::inputsOf(config), 0, config.kvHeads, {}, {}};
    if (const TensorView* first = tensors.find(layerTensor(0, "fc1")); first != nullptr && first->shape.size() == 2)
        heads.width = int(first->shape[0]);
    for (int layer = 0; layer < config.layers; ++layer)
        for (const auto& [what, values] : {std::pair{"fc1", &heads.in}, std::pair{"fc2", &heads.out}}) {
            const bool in = values == &heads.in;
            const std::vector<std::int64_t> shape{in ? heads.width : heads.kvHeads, in ? heads.inputs : heads.width};
            const TensorView* view = tensors.find(layerTensor(layer, what));
            const auto type = view != nullptr ? weightType(view->dtype) : std::nullopt;
            const bool plain = type && *type <= DType::BF16; // not a block format
            if (!plain || view->shape != shape)
                throw Error(ErrorKind::BadInput,
                            fmt::format("{} lacks the tensor {} of shape [{}, {}]", origin, layerTensor(layer, what),
                                        in && heads.width == 0 ? "width" : std::to_string(shape[0]), shape[1]),
                            "calibrate it for this model, or remove the file");
            append(*view, *type, *values);
        }
    return heads;
}

std::string pathBeside(const Model& model) {
    const std::string folder =
        model.folder().empty() && model.embedded() ? bundledModelFolder(model.name()).string() : model.folder();
    if (folder.empty()) return {};
    const auto path = std::filesystem::path(folder) / kRetainingFile;
    std::error_code ignored;
    return std::filesystem::exists(path, ignored) ? path.string() : std::string();
}

} // namespace

float silu(float x) { return x / (1 + std::exp(-x)); }

void RetainingHeads::score(Kernels& kernels, LayerId layer, const float* rows, int n, std::vector<float>& hidden,
                           float* scores) const {
    hidden.resize(Elements(n, width));
    const LinearTarget up{{inOf(layer).data(), DType::F32, width, inputs}, nullptr, hidden.data(), width, false};
    kernels.linear({rows, n, inputs, nullptr, 0.f, {&up, 1}});
    for (float& x : hidden) x = silu(x);
    const LinearTarget down{{outOf(layer).data(), DType::F32, kvHeads, width}, nullptr, scores, kvHeads, false};
    kernels.linear({hidden.data(), n, width, nullptr, 0.f, {&down, 1}});
}

RetainingHeads readRetainingHeads(const std::string& path, const ModelConfig& config) {
    const MappedFile file(path);
    return parse(file.bytes(), path, config);
}

std::optional<RetainingHeads> findRetainingHeads(const Model& model) {
    if (const std::string path = pathBeside(model); !path.empty()) return readRetainingHeads(path, model.config());
    return {};
}

bool hasRetainingHeads(const Model& model) { return !pathBeside(model).empty(); }

void writeRetainingHeads(const std::string& path, const RetainingHeads& heads) {
    std::vector<NamedTensor> tensors;
    for (int layer = 0; layer < heads.layers; ++layer) {
        tensors.push_back({layerTensor(layer, "fc1"), {heads.width, heads.inputs}, heads.inOf(LayerId{layer})});
        tensors.push_back({layerTensor(layer, "fc2"), {heads.kvHeads, heads.width}, heads.outOf(LayerId{layer})});
    }
    writeSafetensors(path, tensors, {{"format", "kvscope.locret"}});
}

} // namespace kvscope::select
