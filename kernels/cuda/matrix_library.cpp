#include "kernels/cuda/matrix_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <map>
#include <tuple>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define KVSCOPE_HAVE_CUBLASLT_HEADER 1
#endif

namespace kvscope::cuda {

#ifdef KVSCOPE_HAVE_CUBLASLT_HEADER

namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t(32) << 20;

struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
};

void checkLibrary(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Error(ErrorKind::Device, fmt::format("cuBLASLt failed while {} (status {})", what, int(status)),
                    "set KVSCOPE_NO_CUBLAS=1 to use KVScope's own kernels");
}

} // namespace

struct MatrixLibrary::Calls {
    void* library = nullptr;
    decltype(&cublasLtCreate) create = nullptr;
    decltype(&cublasLtDestroy) destroy = nullptr;
    decltype(&cublasLtGetVersion) version = nullptr;
    decltype(&cublasLtMatmul) matmul = nullptr;
    decltype(&cublasLtMatmulDescCreate) descCreate = nullptr;
    decltype(&cublasLtMatmulDescSetAttribute) descSet = nullptr;
    decltype(&cublasLtMatmulDescDestroy) descDestroy = nullptr;
    decltype(&cublasLtMatrixLayoutCreate) layoutCreate = nullptr;
    decltype(&cublasLtMatrixLayoutDestroy) layoutDestroy = nullptr;
    decltype(&cublasLtMatmulPreferenceCreate) preferenceCreate = nullptr;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preferenceSet = nullptr;
    decltype(&cublasLtMatmulPreferenceDestroy) preferenceDestroy = nullptr;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    std::map<std::tuple<int, int, int, int, int>, Plan> plans; // rows, cols, n, ld, output type

    const Plan& plan(int rows, int cols, int n, int ld, cudaDataType_t type);
};

const Plan& MatrixLibrary::Calls::plan(int rows, int cols, int n, int ld, cudaDataType_t type) {
    const auto [place, fresh] = plans.try_emplace({rows, cols, n, ld, int(type)});
    Plan& plan = place->second;
    if (!fresh) return plan;
    // Column-major for the library: y [rows, n] = w [cols, rows]^T x [cols, n].
    checkLibrary(descCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "planning a product");
    const cublasOperation_t transpose = CUBLAS_OP_T;
    checkLibrary(descSet(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
                 "planning a product");
    checkLibrary(layoutCreate(&plan.w, CUDA_R_16BF, std::uint64_t(cols), std::uint64_t(rows), cols),
                 "planning a product");
    checkLibrary(layoutCreate(&plan.x, CUDA_R_16BF, std::uint64_t(cols), std::uint64_t(n), cols), "planning a product");
    checkLibrary(layoutCreate(&plan.y, type, std::uint64_t(rows), std::uint64_t(n), ld), "planning a product");
    cublasLtMatmulPreference_t preference = nullptr;
    checkLibrary(preferenceCreate(&preference), "planning a product");
    checkLibrary(
        preferenceSet(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes),
        "planning a product");
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    checkLibrary(heuristic(handle, plan.operation, plan.w, plan.x, plan.y, plan.y, preference, 1, &result, &found),
                 "choosing an algorithm");
    preferenceDestroy(preference);
    if (found == 0)
        throw Error(ErrorKind::Device,
                    fmt::format("cuBLASLt has no algorithm for a {} x {} product of {} inputs", rows, cols, n),
                    "set KVSCOPE_NO_CUBLAS=1 to use KVScope's own kernels");
    plan.algorithm = result.algo;
    return plan;
}

MatrixLibrary::MatrixLibrary() : calls_(std::make_unique<Calls>()) {}

MatrixLibrary::~MatrixLibrary() {
    for (auto& [shape, plan] : calls_->plans) {
        calls_->descDestroy(plan.operation);
        for (const auto layout : {plan.w, plan.x, plan.y}) calls_->layoutDestroy(layout);
    }
    if (calls_->handle != nullptr) calls_->destroy(calls_->handle);
    cudaFree(calls_->workspace);
    // The library stays loaded: it does not survive being unloaded and loaded again.
}

std::unique_ptr<MatrixLibrary> MatrixLibrary::load() {
    if (std::getenv("KVSCOPE_NO_CUBLAS") != nullptr) return nullptr;
    void* library = nullptr;
    for (const char* name : {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"})
        if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    auto made = std::unique_ptr<MatrixLibrary>(new MatrixLibrary());
    Calls& calls = *made->calls_;
    calls.library = library;
    bool complete = true;
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        complete &= function != nullptr;
    };
    find(calls.create, "cublasLtCreate");
    find(calls.destroy, "cublasLtDestroy");
    find(calls.version, "cublasLtGetVersion");
    find(calls.matmul, "cublasLtMatmul");
    find(calls.descCreate, "cublasLtMatmulDescCreate");
    find(calls.descSet, "cublasLtMatmulDescSetAttribute");
    find(calls.descDestroy, "cublasLtMatmulDescDestroy");
    find(calls.layoutCreate, "cublasLtMatrixLayoutCreate");
    find(calls.layoutDestroy, "cublasLtMatrixLayoutDestroy");
    find(calls.preferenceCreate, "cublasLtMatmulPreferenceCreate");
    find(calls.preferenceSet, "cublasLtMatmulPreferenceSetAttribute");
    find(calls.preferenceDestroy, "cublasLtMatmulPreferenceDestroy");
    find(calls.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    if (!complete || calls.create(&calls.handle) != CUBLAS_STATUS_SUCCESS) return nullptr;
    check(cudaMalloc(&calls.workspace, kWorkspaceBytes), "allocating cuBLASLt's work space");
    const std::size_t version = calls.version();
    made->description_ = fmt::format("cuBLASLt {}.{}", version / 10000, version / 100 % 100);
    return made;
}

void MatrixLibrary::multiply(cudaStream_t stream, const DeviceMatrix& w, const __nv_bfloat16* x, int n,
                             const LinearOutput& out, __nv_bfloat16* half, int halfStride) {
    void* y = half != nullptr ? static_cast<void*>(half) : out.y;
    const Plan& plan = calls_->plan(w.rows, w.cols, n, half != nullptr ? halfStride : out.stride,
                                    half != nullptr ? CUDA_R_16BF : CUDA_R_32F);
    const float one = 1.f, beta = out.accumulate && half == nullptr ? 1.f : 0.f;
    checkLibrary(calls_->matmul(calls_->handle, plan.operation, &one, w.data, plan.w, x, plan.x, &beta, y, plan.y, y,
                                plan.y, &plan.algorithm, calls_->workspace, kWorkspaceBytes, stream),
                 "multiplying");
}

#else

struct MatrixLibrary::Calls {};
MatrixLibrary::MatrixLibrary() = default;
MatrixLibrary::~MatrixLibrary() = default;
std::unique_ptr<MatrixLibrary> MatrixLibrary::load() { return nullptr; }
void MatrixLibrary::multiply(cudaStream_t, const DeviceMatrix&, const __nv_bfloat16*, int, const LinearOutput&,
                             __nv_bfloat16*, int) {}

#endif

} // namespace kvscope::cuda
