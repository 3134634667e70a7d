// What runs of models that denoise have in common: a step is one forward of every unfinished sequence, after which some
// masks become tokens. They go block by block (denoise_session.cpp) or over a canvas (canvas_session.cpp).
#pragma once

#include "base/ids.h"
#include "base/indexed.h"
#include "core/diffusion/unmasking.h"
#include "core/session/sampler.h"
#include "core/session/session_run.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope {

struct DiffusionRun : SessionRun {
    /// Checks prompts, options and method, and resolves the method's parameters. The constructor of the derived run
    /// then replaces values that stand for others (0 steps: as many as the block has tokens), calls makeSpec, makes the
    /// engine and calls beginRun.
    /// @throws Error(BadInput | Unsupported)
    DiffusionRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                 SessionOptions sessionOptions, TraceSink& traceSink);

    void prefill(const Progress& progress, const std::stop_token& stop) final;
    bool step() final;
    const float* logits(int sequence) const final;
    void forceNextTokens(const std::vector<std::int32_t>& ids) final;
    void endGpuTrace() noexcept final;

protected:
    /// Waits until the device is idle. @throws Error(Device)
    virtual void settle() = 0;
    /// Reads the part of the prompts that is read before the first forward.
    virtual void readPrompts(StepRecord& record, const Progress& progress, const std::stop_token& stop) = 0;
    /// Lists the rows of the next step, one for each unfinished sequence. @return how many
    virtual int listRows() = 0;
    /// Runs the forward of the listed rows.
    virtual void forward(StepRecord& record) = 0;
    /// Chooses and writes a row's tokens, between beginForward and endForward.
    virtual void writeRow(int row, StepRecord& record) = 0;

    /// Makes `spec`, and refuses what the method cannot do with it. @throws Error(Unsupported)
    void makeSpec();
    /// Fills what RunInfo says of the run, and begins the run in the sink. block: tokens that are written together
    void beginRun(const std::string& device, Timing linkTiming, int block);
    /// The ids that end a sequence; none where the options say so.
    std::vector<std::int32_t> endIds() const;
    CandidateSampling candidateSampling() const;
    /// Who records kernels; null: nobody.
    GpuTrace* gpuTrace() const { return options.backend == Backend::Cuda ? options.gpuTrace : nullptr; }

    /// Begins the record of a sequence's forward: adds a token for each of `ids`, which the forward read from position
    /// `first` on. @return the forward, whose counts of masks and written tokens are still 0
    static DenoiseForward beginForward(RowId sequence, int first, std::span<const std::int32_t> ids,
                                       StepRecord& record);
    /// What the sequence would write at a masked position, by its own random stream.
    Candidate chooseAt(RowId sequence, int position, std::span<const float> logits);
    /// Sets the position of a candidate. @throws Error(BadInput) where its logits were not all finite
    Candidate placed(Candidate candidate, RowId sequence, int position) const;
    /// Notes that a position, the place-th of the forward's, was masked and what would be written there.
    static void noteCandidate(DenoiseForward& forward, int place, const Candidate& candidate, StepRecord& record);
    /// Notes that the candidate of a place was written. @return its id
    static std::int32_t noteWritten(DenoiseForward& forward, int place, StepRecord& record);
    /// Adds the forward to the record. all: what the sequence has generated; those of its tokens that were not there
    /// after its forward before go to the record.
    void endForward(const DenoiseForward& forward, const std::vector<std::int32_t>& all, StepRecord& record);

    std::vector<std::uint8_t> allowed; // [vocab] ids that may be written
    std::vector<Sampler> samplers;     // [sequence]

private:
    void writeTokens(int rows, StepRecord& record);
    void addSums(const StepRecord& record);

    std::optional<CandidateChooser> chooser_;
    Numbered<char> hasSelected_; // [sequence]
    double localitySum_ = 0, densitySum_ = 0;
    std::int64_t densityCount_ = 0;
};

} // namespace kvscope
