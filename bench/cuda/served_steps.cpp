// Compares decode steps of rows that come and go with the same steps of a session with a fixed batch, and with steps
// whose products no other row changes (batch_invariant).
#include "bench/bench.h"
#include "bench/cuda/decode_job.h"
#include "bench/cuda/gpu.h"
#include "bench/settings.h"
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

/// A step of rows: medians, in milliseconds.
struct RowStep {
    double ms = 0;
    double gpu = 0, launch = 0, wait = 0, record = 0; // see RowStepTimes; 0 where rows launch kernels of their own
    std::int64_t apart = 0;                           // rows that did so
};

/// Reorders the numbers. The first steps capture the graph and are left out.
double medianOf(std::vector<double>& numbers) {
    if (numbers.empty()) return 0;
    numbers.erase(numbers.begin(), numbers.begin() + long(std::min<std::size_t>(8, numbers.size() / 4)));
    std::nth_element(numbers.begin(), numbers.begin() + long(numbers.size() / 2), numbers.end());
    return numbers[numbers.size() / 2];
}

RowStep rowStep(const DecodeJob& job, const std::shared_ptr<const DeviceModel>& model, bool invariant) {
    DecodeJob one = job;
    one.batch = 1;
    PlantedSteps changes;
    CudaEngineOptions options = engineOptions(one, *model, changes);
    options.changes = &changes;
    CudaRowEngine engine(model, options.method.abilities, job.batch, invariant, &options);
    const std::vector<std::int32_t> none;
    std::vector<RowToken> tokens;
    for (int row = 0; row < job.batch; ++row) {
        fillContext(engine.open(RowId{row}, none, options), job.context, std::uint64_t(7 + row));
        tokens.push_back({RowId{row}, 1, job.context});
    }
    std::vector<double> ms, gpu, launch, wait, record;
    for (int step = 0; step < job.steps; ++step) {
        const Clock::time_point begin = Clock::now();
        engine.decode(tokens);
        ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
        if (const RowStepTimes* times = engine.stepTimes()) {
            gpu.push_back(double(times->gpuNs) * 1e-6), launch.push_back(double(times->launchNs) * 1e-6);
            wait.push_back(double(times->waitNs) * 1e-6), record.push_back(double(times->recordNs) * 1e-6);
        }
        for (RowToken& token : tokens) {
            token.id = engine.chosenToken(token.row);
            ++token.position;
        }
    }
    return {medianOf(ms), medianOf(gpu), medianOf(launch), medianOf(wait), medianOf(record), engine.rowsApart()};
}

} // namespace

/// Settings: shape, method, context, steps, offload, planted as for `decode`; batches=1,8,32.
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
        const RowStep step = rowStep(job, model, false);
        const double session = fixed["step_ms"].get<double>(), sessionGpu = fixed.value("gpu_step_ms", 0.0);
        const double rows = step.ms, invariant = rowStep(job, model, true).ms;
        log(fmt::format("batch {:3}: session {:.3f} ms, rows {:.3f} ms ({:.3f} of the session's), batch-invariant "
                        "{:.3f} ms ({:.2f} of the rows')",
                        job.batch, session, rows, rows / session, invariant, invariant / rows));
        log(fmt::format(
            "           on the GPU: session {:.3f} ms, rows {:.3f} ms; the host launches rows for {:.3f} ms, "
            "waits {:.3f} ms, fills records for {:.3f} ms; {} rows launched kernels of their own",
            sessionGpu, step.gpu, step.launch, step.wait, step.record, step.apart));
        out["rows"].push_back({{"batch", job.batch},
                               {"session_step_ms", session},
                               {"row_step_ms", rows},
                               {"row_over_session", rows / session},
                               {"session_gpu_ms", sessionGpu},
                               {"row_gpu_ms", step.gpu},
                               {"row_launch_ms", step.launch},
                               {"row_wait_ms", step.wait},
                               {"row_record_ms", step.record},
                               {"rows_apart", step.apart},
                               {"invariant_step_ms", invariant},
                               {"invariant_over_row", invariant / rows}});
    }
    return out;
}

} // namespace kvscope::bench
