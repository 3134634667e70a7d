// Stands in for the CUDA engine where the program was built without a CUDA compiler.
#include "core/session/canvas_engine.h"
#include "core/session/denoise_engine.h"
#include "core/session/engine.h"
#include "core/session/gpu_bus_id.h"
#include "core/session/products.h"
#include "core/session/row_engine.h"

namespace kvscope {

void requireGpu() {
    throw Error(ErrorKind::Unsupported, "this KVScope was built without CUDA",
                "use --backend cpu, or install the CUDA toolkit and build again");
}

std::string describeGpu() {
    requireGpu();
    return {};
}

std::string gpuBusId() {
    requireGpu();
    return {};
}

int gpuNumber() {
    requireGpu();
    return 0;
}

MeasuredProducts measureProducts(const Model&, const Progress&, const std::stop_token&) {
    requireGpu();
    return {};
}

std::unique_ptr<DecodeEngine> makeCudaEngine(const EngineSetup&) {
    requireGpu();
    return nullptr;
}

std::unique_ptr<DenoiseEngine> makeCudaDenoiser(const DenoiseSetup&) {
    requireGpu();
    return nullptr;
}

std::unique_ptr<CanvasEngine> makeCudaCanvas(const CanvasSetup&) {
    requireGpu();
    return nullptr;
}

std::unique_ptr<RowEngine> makeCudaRowEngine(const RowEngineSetup&) {
    requireGpu();
    return nullptr;
}

} // namespace kvscope
