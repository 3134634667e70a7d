// A recorded serving run as input of the simulator: the requests that came, the settings of the server, and the costs
// of its iterations. Other memories, admissions and loads are simulated from these.
#pragma once

#include "base/progress.h"
#include "core/serve/simulation.h"
#include "profiler/read/serving.h"

#include <array>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope {

/// The requests of a serving run: arrivals from the first one on, prompts, tokens that were made (of requests that did
/// not finish: that were asked for), classes. @throws Error(BadInput) where it has none, or a damaged trace holds
/// lengths that no request has
serve::Workload recordedWorkload(const std::vector<RequestRow>& requests, const std::string& name);

struct RecordedServer {
    serve::Workload workload;
    /// Settings, budgets and costs as the run states them. The window is one reading of the workload, without a
    /// warm-up.
    serve::SimulationOptions options;
    bool hitsRecorded = false;  // the curves of hits come from recorded selections; else from the table of costs
    std::string whyNoHits;      // why they do not, in one line
    double predictionError = 0; // median over the iterations of |predicted - taken| / taken
};

/// @throws Error(Unsupported) where the run does not say what its iterations cost, as older recordings; Error(BadInput)
/// where what it says makes no server; Error(Cancelled)
RecordedServer readRecordedServer(const TraceReader& reader, const RunRow& run, const std::stop_token& stop = {});

/// What is changed about a server.
enum class ServerChange : std::uint8_t { DeviceMemory, Rate, Rows, Window };
inline constexpr std::array kServerChanges{ServerChange::DeviceMemory, ServerChange::Rate, ServerChange::Rows,
                                           ServerChange::Window};
/// What the server has of it: bytes of device memory, requests a second, rows, or steps of a working set.
double valueOf(const RecordedServer& server, ServerChange change);
/// Values around the one that the server has, ascending; that one is among them.
std::vector<double> valuesAround(const RecordedServer& server, ServerChange change);
/// The same server with another value, which is positive.
RecordedServer changed(RecordedServer server, ServerChange change, double value);

/// Simulates it. The result has no outcomes of single requests. @throws Error(Cancelled)
serve::ServingResult simulateServer(const RecordedServer& server, const std::stop_token& stop = {});

} // namespace kvscope
