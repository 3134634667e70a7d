// The functions of kvscope_trace.h that write.
#include "profiler/format/trace_keys.h"
#include "sdk/trace/arguments.h"
#include "sdk/trace/writer.h"

#include <cstdio>
#include <future>
#include <thread>
#include <unistd.h>

#ifndef KVSCOPE_VERSION
#define KVSCOPE_VERSION "unknown"
#endif

using namespace kvscope;
using namespace kvscope::sdk;

namespace {

std::shared_ptr<Writer> writerOf(kvtrace_writer handle) {
    return std::static_pointer_cast<Writer>(find(Kind::Writer, handle));
}
std::shared_ptr<Run> runOf(kvtrace_run handle) { return std::static_pointer_cast<Run>(find(Kind::Run, handle)); }
std::shared_ptr<Step> stepOf(kvtrace_step handle) { return std::static_pointer_cast<Step>(find(Kind::Step, handle)); }

/// The path, with %r, %p and %% replaced.
std::string filled(const char* path, std::int32_t rank) {
    std::string filledPath;
    for (const char* at = required(path, "path"); *at != '\0'; ++at) {
        if (*at != '%') {
            filledPath += *at;
            continue;
        }
        ++at;
        if (*at == 'r')
            filledPath += std::to_string(rank);
        else if (*at == 'p')
            filledPath += std::to_string(getpid());
        else if (*at == '%')
            filledPath += '%';
        else
            refuse(KVTRACE_INVALID, "the path ", path, " has a % before something else than r, p or %; write %% for %");
    }
    return filledPath;
}

/// Runs `work` on another thread. @throws Refusal(KVTRACE_TIMEOUT) if it takes longer; the work then goes on
template <class Work> void within(std::int32_t timeoutMs, const char* what, Work work) {
    if (timeoutMs < 0) refuse(KVTRACE_INVALID, "timeout_ms is negative");
    std::packaged_task<void()> task(std::move(work));
    std::future<void> done = task.get_future();
    std::thread(std::move(task)).detach();
    if (done.wait_for(std::chrono::milliseconds(timeoutMs)) != std::future_status::ready)
        refuse(KVTRACE_TIMEOUT, what, " takes longer than ", std::to_string(timeoutMs), " ms; it goes on by itself");
    done.get();
}

RunStatus statusOf(std::int32_t status) {
    if (status == KVTRACE_FINISHED) return RunStatus::Finished;
    if (status == KVTRACE_STOPPED) return RunStatus::Stopped;
    if (status == KVTRACE_FAILED) return RunStatus::Failed;
    refuse(KVTRACE_INVALID, "status ", std::to_string(status), " is none; give KVTRACE_FINISHED, _STOPPED or _FAILED");
}

/// Handle of the open run; 0: none is open.
std::uint64_t openRunOf(const Writer& writer) {
    const std::lock_guard lock(writer.mutex);
    return writer.openRun;
}

void forget(Writer& writer, std::uint64_t run) {
    const std::lock_guard lock(writer.mutex);
    if (writer.openRun == run) writer.openRun = 0;
}

} // namespace

int32_t kvtrace_abi(void) { return KVTRACE_ABI_MAJOR << 16 | KVTRACE_ABI_MINOR; }
const char* kvtrace_version(void) { return KVSCOPE_VERSION; }

int32_t kvtrace_open(const char* path, const kvtrace_options* options, kvtrace_writer* writer) {
    return atBorder([&] {
        *required(writer, "writer") = 0;
        kvtrace_options given{};
        given.level = KVTRACE_SELECTIONS;
        if (options != nullptr) given = taken(options, "kvtrace_options");
        if (given.level < KVTRACE_COUNTERS || given.level > KVTRACE_FULL)
            refuse(KVTRACE_INVALID, "level ", std::to_string(given.level),
                   " is none; give KVTRACE_COUNTERS, KVTRACE_SELECTIONS or KVTRACE_FULL");
        if ((given.flags & ~unsigned(KVTRACE_OVERWRITE)) != 0)
            refuse(KVTRACE_INVALID, "kvtrace_options has flags that this library does not know; install a newer one");
        const std::string file = filled(path, given.rank);
        refuseInherited(file);
        RecorderOptions recorder;
        recorder.level = RecordLevel(given.level);
        recorder.overwrite = (given.flags & KVTRACE_OVERWRITE) != 0;
        if (given.queue_bytes > 0) recorder.queueBytes = std::size_t(given.queue_bytes);
        const bool ranked = given.rank > 0 || std::string_view(path).find("%r") != std::string_view::npos;
        *writer = give(Kind::Writer,
                       std::make_shared<Writer>(file, recorder, ranked ? std::optional(given.rank) : std::nullopt));
    });
}

int32_t kvtrace_flush(kvtrace_writer writer, int32_t timeout_ms) {
    return atBorder([&] {
        const std::shared_ptr<Writer> open = writerOf(writer);
        within(timeout_ms, "flushing", [recorder = open->recorder()] { recorder->flush(); });
        open->requireWritable();
    });
}

int32_t kvtrace_close(kvtrace_writer writer, int32_t timeout_ms) {
    return atBorder([&] {
        if (timeout_ms < 0) refuse(KVTRACE_INVALID, "timeout_ms is negative");
        const std::shared_ptr<Writer> closed = std::static_pointer_cast<Writer>(release(Kind::Writer, writer));
        if (const std::uint64_t run = openRunOf(*closed); run != 0) {
            const std::shared_ptr<Run> open = runOf(run);
            drop(run);
            open->end(RunStatus::Stopped, "the writer was closed before the run was ended");
        }
        std::shared_ptr<Recorder> recorder = closed->close();
        if (!recorder) return;
        std::shared_ptr<std::string> error = std::make_shared<std::string>();
        within(timeout_ms, "closing", [recorder = std::move(recorder), error]() mutable {
            recorder->flush();
            *error = recorder->health().error;
            recorder.reset();
        });
        if (!error->empty()) refuse(KVTRACE_STORAGE, *error);
    });
}

int32_t kvtrace_get_health(kvtrace_writer writer, kvtrace_health* health) {
    return atBorder([&] {
        const std::shared_ptr<Writer> open = writerOf(writer);
        const RecorderHealth now = open->recorder()->health();
        std::shared_ptr<RunCounts> counts;
        {
            const std::lock_guard lock(open->mutex);
            counts = open->counts;
        }
        kvtrace_health mine{};
        mine.dropped_steps = now.droppedSteps;
        mine.discarded_steps = counts->discardedSteps;
        mine.future_ids = counts->futureIds;
        mine.duplicate_ids = counts->duplicateIds;
        mine.writer_busy_ns = now.writerBusyNs;
        mine.failed = now.error.empty() ? 0 : 1;
        hand(mine, health, "kvtrace_health");
        if (!now.error.empty()) remember(now.error.c_str());
    });
}

int32_t kvtrace_run_begin(kvtrace_writer writer, const kvtrace_run_info* info, kvtrace_run* run) {
    return atBorder([&] {
        *required(run, "run") = 0;
        const std::shared_ptr<Writer> open = writerOf(writer);
        const kvtrace_run_info given = taken(info, "kvtrace_run_info");
        const std::lock_guard beginning(open->beginning);
        if (openRunOf(*open) != 0)
            refuse(KVTRACE_STATE, "this writer has a run already; end it before another one begins");
        auto begun = std::make_shared<Run>(open, given);
        const std::lock_guard lock(open->mutex);
        open->counts = begun->counts;
        *run = open->openRun = give(Kind::Run, std::move(begun));
    });
}

int32_t kvtrace_run_now(kvtrace_run run, int64_t* now_ns) {
    return atBorder([&] { *required(now_ns, "now_ns") = runOf(run)->now(); });
}

int32_t kvtrace_run_end(kvtrace_run run, int32_t status, const char* message) {
    return atBorder([&] {
        const RunStatus ends = statusOf(status);
        const std::shared_ptr<Run> ended = std::static_pointer_cast<Run>(release(Kind::Run, run));
        forget(*ended->writer, run);
        ended->end(ends, textOf(message));
    });
}

int32_t kvtrace_step_begin(kvtrace_run run, int32_t phase, int32_t tokens, int64_t start_ns, kvtrace_step* step) {
    return atBorder([&] {
        *required(step, "step") = 0;
        *step = give(Kind::Step, std::make_shared<Step>(runOf(run), phase, tokens, start_ns));
    });
}

int32_t kvtrace_step_select(kvtrace_step step, const kvtrace_selection* selection) {
    return atBorder([&] { stepOf(step)->select(taken(selection, "kvtrace_selection")); });
}

int32_t kvtrace_step_layer(kvtrace_step step, const kvtrace_layer* layer) {
    return atBorder([&] { stepOf(step)->addLayer(taken(layer, "kvtrace_layer")); });
}

int32_t kvtrace_step_stages(kvtrace_step step, int64_t embed_ns, int64_t lm_head_ns, int64_t sample_ns) {
    return atBorder([&] { stepOf(step)->addStages(embed_ns, lm_head_ns, sample_ns); });
}

int32_t kvtrace_step_tokens(kvtrace_step step, int32_t sequence, int64_t position, const int32_t* ids, int64_t count,
                            const char* text, const int64_t* offsets) {
    return atBorder([&] { stepOf(step)->addTokens(sequence, position, ids, count, text, offsets); });
}

int32_t kvtrace_step_prompt(kvtrace_step step, const kvtrace_prompt_piece* piece) {
    return atBorder([&] { stepOf(step)->addPiece(taken(piece, "kvtrace_prompt_piece")); });
}

int32_t kvtrace_step_commit(kvtrace_step step, int64_t end_ns) {
    return atBorder([&] {
        const std::shared_ptr<Step> done = std::static_pointer_cast<Step>(release(Kind::Step, step));
        try {
            done->commit(end_ns);
        } catch (...) {
            done->discard();
            throw;
        }
    });
}

int32_t kvtrace_step_discard(kvtrace_step step) {
    return atBorder([&] { std::static_pointer_cast<Step>(release(Kind::Step, step))->discard(); });
}

int32_t kvtrace_span(kvtrace_run run, const char* track, const char* name, int64_t start_ns, int64_t duration_ns,
                     int32_t step, int32_t layer, int32_t kind, int64_t bytes) {
    return atBorder([&] {
        const std::shared_ptr<Run> open = runOf(run);
        open->requireOpen();
        if (duration_ns < 0 || step < -1 || layer < -1 || bytes < -1)
            refuse(KVTRACE_INVALID, "a span has a negative duration, step, layer or size; -1 says that there is none");
        if (kind < 0 || kind > 2)
            refuse(KVTRACE_INVALID, "kind ", std::to_string(kind), " of a span is none; give 0 to 2");
        if (layer >= open->layers || step > trace::kMaxStep)
            refuse(KVTRACE_INVALID, "a span is of step ", std::to_string(step), ", layer ", std::to_string(layer),
                   ": the run has ", std::to_string(open->layers), " layers; give -1 where it is of none");
        requireTime("the start of a span", start_ns);
        requireTime("the duration of a span", duration_ns);
        SpanRecord span;
        span.track = textOf(required(track, "track"));
        span.name = textOf(required(name, "name"));
        span.startNs = start_ns;
        span.durationNs = duration_ns;
        span.step = step;
        span.layer = layer;
        span.kind = SpanRecord::Kind(kind);
        span.bytes = bytes;
        open->writer->recorder()->take(std::vector<SpanRecord>{std::move(span)});
    });
}

int32_t kvtrace_counter(kvtrace_run run, const char* track, int64_t start_ns, int64_t duration_ns, int64_t value) {
    return atBorder([&] {
        const std::shared_ptr<Run> open = runOf(run);
        open->requireOpen();
        if (duration_ns < 0 || value < 0) refuse(KVTRACE_INVALID, "a counter has a negative duration or value");
        requireTime("the start of a counter's interval", start_ns);
        requireTime("the duration of a counter's interval", duration_ns);
        CounterSample sample{textOf(required(track, "track")), start_ns, duration_ns, value};
        open->writer->recorder()->take(std::vector<CounterSample>{std::move(sample)});
    });
}

int32_t kvtrace_clock(kvtrace_run run, const char* clock, int64_t own_ns, int64_t reference_ns, int64_t error_ns) {
    return atBorder([&] {
        const std::shared_ptr<Run> open = runOf(run);
        const std::string name = textOf(required(clock, "clock"));
        if (name.empty()) refuse(KVTRACE_INVALID, "the clock has no name; give one, such as \"utc\"");
        if (error_ns < 0) refuse(KVTRACE_INVALID, "the error of clock ", name, " is negative");
        requireTime("own_ns of a clock", own_ns);
        open->addClock({name, own_ns, reference_ns, error_ns});
    });
}
