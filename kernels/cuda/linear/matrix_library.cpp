#include "kernels/cuda/linear/matrix_library.h"

#include "kernels/product_table.h"

#include <array>
#include <dlfcn.h>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <vector>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define KVSCOPE_HAVE_CUBLASLT_HEADER 1
#endif

namespace kvscope::cuda {

#ifdef KVSCOPE_HAVE_CUBLASLT_HEADER

namespace {

/// A handle of the library, with the function that destroys it.
template <class Handle> using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

struct Plan {
    std::string words; // the product's shape for messages
    Owned<cublasLtMatmulDesc_t> operation;
    Owned<cublasLtMatrixLayout_t> w, x, y;
    cublasLtMatmulAlgo_t algorithm{};
};

/// In the library's order.
using Algorithms = std::vector<cublasLtMatmulAlgo_t>;

/// At most so many are asked for.
constexpr int kMostProposals = 16;

void checkLibrary(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Error(ErrorKind::Device, fmt::format("cuBLASLt failed while {} (status {})", what, int(status)),
                    "set KVSCOPE_NO_CUBLAS=1 to use KVScope's own kernels");
}

/// The algorithms that the library has proposed in this process, by w.rows, w.cols, n, stride and type of y; at least
/// one. It proposes the same to every handle, so that a session need not ask what one before it has asked. Any thread
/// may call this.
class Proposals {
public:
    using Key = std::tuple<int, int, int, int, int>;
    /// ask: makes the proposal where there is none yet. What it throws leaves the proposals as they are.
    template <class Ask> Algorithms of(const Key& key, const Ask& ask) {
        {
            const std::lock_guard lock(mutex_);
            if (const auto known = known_.find(key); known != known_.end()) return known->second;
        }
        const Algorithms proposed = ask(); // without the lock: two threads that ask hear the same
        const std::lock_guard lock(mutex_);
        return known_.emplace(key, proposed).first->second;
    }
    static Proposals& all() {
        static Proposals made;
        return made;
    }

private:
    std::mutex mutex_;
    std::map<Key, Algorithms> known_;
};

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
    decltype(&cublasLtMatmulAlgoCheck) algorithmCheck = nullptr;
    std::byte* workspace = nullptr;
    Owned<cublasLtHandle_t> handle{nullptr, nullptr};
    std::map<std::pair<Proposals::Key, std::pair<int, bool>>, Plan> plans; // and candidate, exact

    const Plan& plan(const Proposals::Key& key, Algorithm wanted);
    Plan made(const Proposals::Key& key, Algorithm wanted) const;
    Plan shaped(const Proposals::Key& key) const;
    Algorithms proposed(const Plan& plan, const Proposals::Key& key) const;
    Algorithms asked(const Plan& plan) const;
    bool takes(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;
    Owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, int rows, int cols, int ld) const;
};

Owned<cublasLtMatrixLayout_t> MatrixLibrary::Calls::layout(cudaDataType_t type, int rows, int cols, int ld) const {
    cublasLtMatrixLayout_t made = nullptr;
    checkLibrary(layoutCreate(&made, type, std::uint64_t(rows), std::uint64_t(cols), ld), "planning a product");
    return {made, layoutDestroy};
}

/// Finds the plan, or makes it and keeps it. Where it cannot be made, `plans` stays as it was.
const Plan& MatrixLibrary::Calls::plan(const Proposals::Key& key, Algorithm wanted) {
    const std::pair whole{key, std::pair{wanted.candidate, wanted.exact}};
    const auto known = plans.find(whole);
    return known != plans.end() ? known->second : plans.emplace(whole, made(key, wanted)).first->second;
}

Plan MatrixLibrary::Calls::made(const Proposals::Key& key, Algorithm wanted) const {
    const auto candidateOf = [&](const Algorithms& algorithms) {
        const auto at = std::size_t(wanted.candidate);
        return algorithms[at < algorithms.size() ? at : 0];
    };
    Plan plan = shaped(key);
    Proposals::Key shared = key;
    int& n = std::get<2>(shared);
    if (!wanted.exact) n = proposedInputs(n);
    if (shared != key) {
        plan.algorithm = candidateOf(proposed(shaped(shared), shared));
        if (takes(plan, plan.algorithm)) return plan;
    }
    plan.algorithm = candidateOf(proposed(plan, key));
    return plan;
}

/// The shapes of a product, without an algorithm.
Plan MatrixLibrary::Calls::shaped(const Proposals::Key& key) const {
    const auto [rows, cols, n, ld, typeNumber] = key;
    const auto type = cudaDataType_t(typeNumber);
    // Column-major for the library: y [rows, n] = w [cols, rows]^T x [cols, n].
    cublasLtMatmulDesc_t operation = nullptr;
    checkLibrary(descCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "planning a product");
    Plan plan{fmt::format("a {} x {} product of {} inputs", rows, cols, n),
              {operation, descDestroy},
              {nullptr, layoutDestroy},
              {nullptr, layoutDestroy},
              {nullptr, layoutDestroy}};
    const cublasOperation_t transpose = CUBLAS_OP_T;
    checkLibrary(descSet(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose), "planning a product");
    plan.w = layout(CUDA_R_16BF, cols, rows, cols);
    plan.x = layout(CUDA_R_16BF, cols, n, cols);
    plan.y = layout(type, rows, n, ld);
    return plan;
}

/// The algorithms that the library proposes for a product.
Algorithms MatrixLibrary::Calls::proposed(const Plan& plan, const Proposals::Key& key) const {
    return Proposals::all().of(key, [&] { return asked(plan); });
}

Algorithms MatrixLibrary::Calls::asked(const Plan& plan) const {
    cublasLtMatmulPreference_t wanted = nullptr;
    checkLibrary(preferenceCreate(&wanted), "planning a product");
    const Owned<cublasLtMatmulPreference_t> preference(wanted, preferenceDestroy);
    checkLibrary(
        preferenceSet(wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes),
        "planning a product");
    std::array<cublasLtMatmulHeuristicResult_t, kMostProposals> results{};
    int found = 0;
    checkLibrary(heuristic(handle.get(), plan.operation.get(), plan.w.get(), plan.x.get(), plan.y.get(), plan.y.get(),
                           wanted, kMostProposals, results.data(), &found),
                 "choosing an algorithm");
    Algorithms out;
    for (int i = 0; i < found; ++i)
        if (const auto& result = results[std::size_t(i)]; result.state == CUBLAS_STATUS_SUCCESS)
            out.push_back(result.algo);
    if (out.empty())
        throw Error(ErrorKind::Device, fmt::format("cuBLASLt has no algorithm for {}", plan.words),
                    "set KVSCOPE_NO_CUBLAS=1 to use KVScope's own kernels");
    return out;
}

/// Whether an algorithm computes a product in the workspace.
bool MatrixLibrary::Calls::takes(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    return algorithmCheck(handle.get(), plan.operation.get(), plan.w.get(), plan.x.get(), plan.y.get(), plan.y.get(),
                          &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
}

MatrixLibrary::MatrixLibrary() : calls_(std::make_unique<Calls>()) {}
/// Does not unload cuBLASLt, which does not work when a process unloads it and loads it again.
MatrixLibrary::~MatrixLibrary() = default;

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
    find(calls.algorithmCheck, "cublasLtMatmulAlgoCheck");
    if (!complete) return nullptr;
    const std::size_t version = calls.version();
    made->version_ = int(version);
    made->description_ = fmt::format("cuBLASLt {}.{}", version / 10000, version / 100 % 100);
    return made;
}

bool MatrixLibrary::open(std::byte* workspace) {
    cublasLtHandle_t handle = nullptr;
    if (calls_->create(&handle) != CUBLAS_STATUS_SUCCESS) return false;
    calls_->handle = {handle, calls_->destroy};
    calls_->workspace = workspace;
    return true;
}

namespace {

Proposals::Key keyOf(const DeviceMatrix& w, int n, const LinearOutput& out, const __nv_bfloat16* half, int halfStride) {
    return {w.rows, w.cols, n, half != nullptr ? halfStride : out.stride,
            int(half != nullptr ? CUDA_R_16BF : CUDA_R_32F)};
}

} // namespace

int MatrixLibrary::proposals(const DeviceMatrix& w, int n, const LinearOutput& out, const __nv_bfloat16* half,
                             int halfStride) {
    const Proposals::Key key = keyOf(w, proposedInputs(n), out, half, halfStride);
    return int(calls_->proposed(calls_->shaped(key), key).size());
}

void MatrixLibrary::multiply(cudaStream_t stream, const DeviceMatrix& w, const __nv_bfloat16* x, int n,
                             const LinearOutput& out, __nv_bfloat16* half, int halfStride, Algorithm algorithm) {
    void* y = half != nullptr ? static_cast<void*>(half) : out.y;
    const Plan& plan = calls_->plan(keyOf(w, n, out, half, halfStride), algorithm);
    const float one = 1.f, beta = out.accumulate && half == nullptr ? 1.f : 0.f;
    checkLibrary(calls_->matmul(calls_->handle.get(), plan.operation.get(), &one, w.data, plan.w.get(), x, plan.x.get(),
                                &beta, y, plan.y.get(), y, plan.y.get(), &plan.algorithm, calls_->workspace,
                                kWorkspaceBytes, stream),
                 "multiplying");
}

#else

struct MatrixLibrary::Calls {};
MatrixLibrary::MatrixLibrary() = default;
MatrixLibrary::~MatrixLibrary() = default;
std::unique_ptr<MatrixLibrary> MatrixLibrary::load() { return nullptr; }
bool MatrixLibrary::open(std::byte*) { return false; }
void MatrixLibrary::multiply(cudaStream_t, const DeviceMatrix&, const __nv_bfloat16*, int, const LinearOutput&,
                             __nv_bfloat16*, int, Algorithm) {}
int MatrixLibrary::proposals(const DeviceMatrix&, int, const LinearOutput&, const __nv_bfloat16*, int) { return 0; }

#endif

} // namespace kvscope::cuda
