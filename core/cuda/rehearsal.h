// Loads the code of kernels while the weights are copied, so that the first prompt of a process does not wait for it. A
// rehearsal makes an engine with the options of the session and reads a short prompt with it, on another thread. It
// launches the kernels that the session will launch, so nobody has to keep a list of them.
//
// The driver loads a kernel's code at the kernel's first launch, and cuBLASLt chooses the algorithm of a product and
// loads its kernel at the first product of that shape. Weights that have not been copied yet are zero (DeviceArena), so
// the rehearsal computes with finite numbers, and nobody reads its results.
#pragma once

#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/device_model.h"

#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace kvscope {

/// The options of a rehearsal of a session with these options: the first layers of the model, up to the one behind
/// layersOfEveryKind(), and as many rows, the first with the longest of rehearsedLengths(), the others with one token.
/// A method with a selector is replaced by full attention, because a selector learns from what it sees, and the weights
/// may be zero. Nothing is recorded, and tokens are not drawn.
CudaEngineOptions rehearsalOptions(const CudaEngineOptions& session, const DeviceModel& model);

/// The lengths of the prompts that a rehearsal reads, in tokens, the longest first: the numbers of tokens that the
/// prompts' pieces have, up to four of them.
std::vector<int> rehearsedLengths(const CudaEngineOptions& session);

/// The least number of layers, from the first one on, among which there is a layer of every kind: those of a kind
/// launch the same kernels and multiply by matrices of the same shapes.
int layersOfEveryKind(const DeviceModel& model, const LayerPlans& plans);

class Rehearsal {
public:
    /// Begins. The memory of the model has been taken, its contents may still be on their way.
    Rehearsal(std::shared_ptr<const DeviceModel> model, CudaEngineOptions session);
    /// Gives the rehearsal up and waits.
    ~Rehearsal();
    Rehearsal(const Rehearsal&) = delete;
    Rehearsal& operator=(const Rehearsal&) = delete;

    /// Returns when the rehearsal has ended and has given its memory back.
    void finish();
    /// Milliseconds from the beginning to the end. Call this after finish().
    double ms() const { return ms_; }
    /// Why the rehearsal ended early, so that the first prompt loads the other kernels; empty: it did not. Call this
    /// after finish().
    const std::string& problem() const { return problem_; }

private:
    void run() noexcept;
    void read();

    const std::shared_ptr<const DeviceModel> model_;
    const CudaEngineOptions session_;
    std::stop_source givenUp_;
    double ms_ = 0;
    std::string problem_;
    std::thread thread_; // the last member: it uses the others
};

/// What uploadRehearsing() took, in milliseconds.
struct UploadTimes {
    double upload = 0;    // of the weights
    double rehearsal = 0; // beside the upload and, if it is longer, after it; 0: there was none
    double waited = 0;    // for the rehearsal, after the upload
    std::string problem;  // Rehearsal::problem()
};

/// DeviceModel::of, with a rehearsal of the session beside the upload. There is none where the model is on the GPU
/// already, or with KVSCOPE_NO_REHEARSAL in the environment. The recorder of options.trace drops what it saw so far.
/// @throws as DeviceModel::of
std::shared_ptr<const DeviceModel> uploadRehearsing(const std::shared_ptr<const Model>& model,
                                                    const CudaEngineOptions& options, UploadTimes* times = nullptr);

} // namespace kvscope
