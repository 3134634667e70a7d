// Makes a candidate token for each masked position of a block from its logits, and chooses the positions whose
// candidates are written.
#pragma once

#include "core/select/denoising.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvscope {

/// How a candidate is drawn. Temperature 0: the largest logit; its distribution is then the plain softmax.
struct CandidateSampling {
    double temperature = 0, topP = 1;
    int topK = 0;           // 0: all
    bool topPOfAll = false; // top-p is a share of all ids, as Dream's code has it; else of those that top-k keeps
};

/// What one masked position would become.
struct Candidate {
    std::int32_t position = 0; // within the block
    std::int32_t id = -1;
    double confidence = 0; // its probability
    double entropy = 0;    // of the distribution it was drawn from, in nats
    double margin = 0;     // how far that distribution's largest probability is above its second largest
    double plain = 0;      // the candidate's probability without temperature, top-k and top-p
};

/// Chooses candidates; keeps its scratch memory between calls.
class CandidateChooser {
public:
    /// allowed: [vocab] nonzero for ids that may be written; all others count as if their logit were -inf. At least one
    /// id is allowed. The span must outlive this object.
    CandidateChooser(const CandidateSampling& sampling, std::span<const std::uint8_t> allowed)
        : sampling_(sampling), allowed_(allowed) {}

    /// The candidate of one position; its `position` is not set. Equal logits: the lower id. draw: gives the next
    /// number in [0, 1); it is called once where the temperature is above 0, else never. id -1: an allowed logit is
    /// infinite or NaN.
    Candidate choose(std::span<const float> logits, const std::function<double()>& draw);

private:
    double plainOf(std::span<const float> logits, std::int32_t chosen) const;

    const CandidateSampling sampling_;
    const std::span<const std::uint8_t> allowed_;
    std::vector<std::pair<double, std::int32_t>> kept_; // logit or weight, id
};

/// The positions that forward `step` of a block writes, ascending: at least one of the masked ones, of equal ones the
/// lower. candidates: of all masked positions, ascending; not empty.
std::vector<std::int32_t> chooseWritten(const DenoiseOptions& options, int step, std::span<const Candidate> candidates);

} // namespace kvscope
