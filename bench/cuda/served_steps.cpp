// Decode steps of rows that come and go, beside the same steps of a session with a fixed batch: the step graph of each,
// and what products that no other row changes cost (batch_invariant).
#include "bench/bench.h"
#include "bench/cuda/decode_job.h"
#include "bench/cuda/gpu.h"
#include "bench/cuda/settings.h"
#include "core/cuda/cuda_row_engine.h"
#include "core/cuda/testing/filled_context.h"
#include "core/model/model_shape.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sstream>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// Milliseconds of a step, the median.
double rowStep(const DecodeJob& job, const std::shared_ptr<const DeviceModel>& model, bool invariant) {
    DecodeJob one = job;
    one.batch = 1;
    PlantedSteps changes;
    CudaEngineOptions options = engineOptions(one, *model, changes);
    options.changes = &changes;
    CudaRowEngine engine(model, options.abilities, job.batch, invariant);
    const std::vector<std::int32_t> none;
    std::vector<RowToken> tokens;
    for (int row = 0; row < job.batch; ++row) {
        fillContext(engine.open(row, none, options), job.context, std::uint64_t(7 + row));
        tokens.push_back({row, 1, job.context});
    }
    std::vector<double> ms;
    for (int step = 0; step < job.steps; ++step) {
        const Clock::time_point begin = Clock::now();
        engine.decode(tokens);
        ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
        for (RowToken& token : tokens) {
            token.id = engine.chosenToken(token.row);
            ++token.position;
        }
    }
    ms.erase(ms.begin(), ms.begin() + std::min(8, job.steps / 4)); // the graph has been captured by then
    std::nth_element(ms.begin(), ms.begin() + long(ms.size() / 2), ms.end());
    return ms[ms.size() / 2];
}

} // namespace

/// Settings: shape, method, context, steps, offload, planted as of `decode`; batches=1,8,32.
Json servedSteps(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"shape", "method", "context", "batches", "steps", "offload", "planted"});
    DecodeJob job;
    job.shape = settings.text("shape", job.shape);
    job.method = settings.text("method", job.method);
    job.context = settings.integer("context", job.context, 64, 1 << 20);
    job.steps = settings.integer("steps", 48, 12, 100'000);
    job.offload = settings.flag("offload", false);
    job.gamma = settings.number("planted", job.gamma);
    Gpu gpu;
    const Ceilings ceilings{gpu.readBytesPerSecond(), gpu.copyBytesPerSecond()};
    const ModelShape& shape = findModelShape(job.shape);
    const auto model = DeviceModel::random(configOf(shape, 131072), shape.evictionHead, 1, true);
    Json out{{"shape", job.shape},
             {"method", job.method},
             {"context", job.context},
             {"offload", job.offload},
             {"rows", Json::array()}};
    std::istringstream batches(settings.text("batches", "1,8,32"));
    for (std::string word; std::getline(batches, word, ',');) {
        job.batch = SettingsReader({{"batch", word}}, {"batch"}).integer("batch", 1, 1, 256);
        const Json fixed = measureDecode(job, model, ceilings);
        const double session = fixed["step_ms"].get<double>(), rows = rowStep(job, model, false),
                     invariant = rowStep(job, model, true);
        log(fmt::format("batch {:3}: session {:.3f} ms, rows {:.3f} ms ({:.3f} of the session's), batch-invariant "
                        "{:.3f} ms ({:.2f} of the rows')",
                        job.batch, session, rows, rows / session, invariant, invariant / rows));
        out["rows"].push_back({{"batch", job.batch},
                               {"session_step_ms", session},
                               {"row_step_ms", rows},
                               {"row_over_session", rows / session},
                               {"invariant_step_ms", invariant},
                               {"invariant_over_row", invariant / rows}});
    }
    return out;
}

} // namespace kvscope::bench
