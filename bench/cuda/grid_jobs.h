// The jobs of the decode grids and what is concluded from their rows; decode_grids.cpp lists them. A grid lies in the
// file that says why it is asked.
#pragma once

#include "bench/cuda/decode_job.h"

#include <vector>

namespace kvscope::bench::grids {

using Json = nlohmann::ordered_json;

// NOSA keeps 5.5 points more than InfLLM-V2, "roughly half the misses" (NOSA, section 5): 0.945 against 0.89.
constexpr double kNosaLocality = 0.945, kInfllmLocality = 0.89;
constexpr double kEverythingHits = 1;
/// A sequence of 96K tokens takes 3.2 GB of the host, one of 128K 4.3: more of them than this read what the first ones
/// stored.
constexpr int kStoredSequences = 16;

/// A job of 48 steps. offloadedGamma: the locality of its planted selections, offloaded; below 0: nothing is offloaded.
DecodeJob job(const char* method, int context, int batch, double offloadedGamma = -1);
double tokensPerSecond(const Json& row);
Json noConclusions(const Json& rows);

// What papers measured (paper_grids.cpp).
std::vector<DecodeJob> tableJobs();
Json tableConclusions(const Json& rows);
std::vector<DecodeJob> lookaheadJobs();
std::vector<DecodeJob> hiddenTransferJobs();
Json lookaheadConclusions(const Json& rows);
std::vector<DecodeJob> budgetJobs();
std::vector<DecodeJob> methodJobs();
std::vector<DecodeJob> operatorJobs();
Json operatorConclusions(const Json& rows);

// Whether what a run reports is true, and what it costs to report it (report_grids.cpp).
std::vector<DecodeJob> exposureJobs();
Json exposureConclusions(const Json& rows);
std::vector<DecodeJob> recordingJobs();
std::vector<DecodeJob> recordedJobs();
Json recordingConclusions(const Json& rows);

// How fast steps are: the rows of the headline, bench/headline (step_grids.cpp).
std::vector<DecodeJob> stepJobs();
std::vector<DecodeJob> batchOneJobs();
std::vector<DecodeJob> contextJobs();
std::vector<DecodeJob> batchJobs();
std::vector<DecodeJob> offloadedJobs();
std::vector<DecodeJob> aheadJobs();
std::vector<DecodeJob> halvesJobs();
std::vector<DecodeJob> sameMemoryJobs();
std::vector<DecodeJob> kvTypeJobs();
std::vector<DecodeJob> kvSlotJobs();
std::vector<DecodeJob> longJobs();

} // namespace kvscope::bench::grids
