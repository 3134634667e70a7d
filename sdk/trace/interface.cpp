// The functions of kvscope_trace.h that write.
#include "base/json_reading.h"
#include "base/utf8.h"
#include "profiler/format/trace_keys.h"
#include "sdk/trace/arguments.h"
#include "sdk/trace/writer.h"

#include <cmath>
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

constexpr std::int32_t kDeepest = 255; // of spans in spans

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

/// The span without its texts. @throws Refusal
EngineSpan spanOf(const kvtrace_span_info& given, const Run& run) {
    if (given.duration_ns < 0 || given.step < -1 || given.layer < -1 || given.bytes < -1)
        refuse(KVTRACE_INVALID, "a span has a negative duration, step, layer or size; -1 says that there is none");
    if (given.kind < 0 || given.kind > 2)
        refuse(KVTRACE_INVALID, "kind ", std::to_string(given.kind), " of a span is none; give 0 to 2");
    if (given.depth < 0 || given.depth > kDeepest)
        refuse(KVTRACE_INVALID, "depth ", std::to_string(given.depth), " of a span is none; give 0 to ",
               std::to_string(kDeepest));
    if (given.layer >= run.layers || given.step > trace::kMaxStep)
        refuse(KVTRACE_INVALID, "a span is of step ", std::to_string(given.step), ", layer ",
               std::to_string(given.layer), ": the run has ", std::to_string(run.layers),
               " layers; give -1 where it is of none");
    requireTime("the start of a span", given.start_ns);
    requireTime("the duration of a span", given.duration_ns);
    EngineSpan numbered;
    SpanRecord& span = numbered.span;
    span.startNs = given.start_ns;
    span.durationNs = given.duration_ns;
    span.step = given.step;
    span.layer = given.layer;
    span.kind = SpanRecord::Kind(given.kind);
    span.bytes = given.bytes;
    span.depth = given.depth;
    return numbered;
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
        if (given.max_file_bytes > std::uint64_t(1) << 50)
            refuse(KVTRACE_INVALID, "max_file_bytes is ", std::to_string(given.max_file_bytes),
                   "; give at most 2^50, or 0 for no limit");
        recorder.maxFileBytes = std::int64_t(given.max_file_bytes);
        if (given.sample_every < 0)
            refuse(KVTRACE_INVALID, "sample_every is ", std::to_string(given.sample_every),
                   "; give 0 for all steps, or N for two of N");
        const bool ranked = given.rank > 0 || std::string_view(path).find("%r") != std::string_view::npos;
        *writer = give(Kind::Writer,
                       std::make_shared<Writer>(file, recorder, ranked ? std::optional(given.rank) : std::nullopt,
                                                given.sample_every));
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
        mine.dropped_events = now.droppedEvents;
        mine.queue_bytes = now.queuedBytes;
        mine.file_bytes = now.fileBytes;
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

int32_t kvtrace_step_share(kvtrace_step step, int32_t layer, int32_t leader) {
    return atBorder([&] { stepOf(step)->share(layer, leader); });
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

int32_t kvtrace_request_begin(kvtrace_run run, const kvtrace_request* request, int32_t* sequence) {
    return atBorder([&] {
        *required(sequence, "sequence") = -1;
        *sequence = runOf(run)->beginRequest(taken(request, "kvtrace_request"));
    });
}

int32_t kvtrace_request_end(kvtrace_run run, int32_t sequence, int32_t outcome, const char* reason, int64_t end_ns) {
    return atBorder([&] { runOf(run)->endRequest(sequence, outcome, textOf(reason), end_ns); });
}

int32_t kvtrace_intern(kvtrace_writer writer, const char* text, int64_t length, int32_t* name) {
    return atBorder([&] {
        *required(name, "name") = 0;
        required(text, "text");
        if (length < -1)
            refuse(KVTRACE_INVALID, "length ", std::to_string(length), " of a text is none; give -1 up to its first 0");
        *name = writerOf(writer)->names.idOf(
            toValidUtf8(length < 0 ? std::string_view(text) : std::string_view(text, std::size_t(length))));
    });
}

int32_t kvtrace_span(kvtrace_run run, const char* track, const char* name, int64_t start_ns, int64_t duration_ns,
                     int32_t step, int32_t layer, int32_t kind, int64_t bytes) {
    return atBorder([&] {
        const std::shared_ptr<Run> open = runOf(run);
        open->requireOpen();
        kvtrace_span_info given{};
        given.start_ns = start_ns, given.duration_ns = duration_ns;
        given.step = step, given.layer = layer;
        given.kind = kind, given.bytes = bytes;
        std::vector<EngineSpan> spans;
        spans.push_back(spanOf(given, *open));
        spans.front().span.track = textOf(required(track, "track"));
        spans.front().span.name = textOf(required(name, "name"));
        open->addSpans(std::move(spans));
    });
}

int32_t kvtrace_spans(kvtrace_run run, const kvtrace_span_info* spans, int64_t count, int64_t* first) {
    return atBorder([&] {
        if (first != nullptr) *first = 0;
        const std::shared_ptr<Run> open = runOf(run);
        open->requireOpen();
        if (count < 0) refuse(KVTRACE_INVALID, "the count of spans is negative");
        if (count == 0) return;
        const std::size_t size = required(spans, "spans")->size;
        std::vector<EngineSpan> all;
        all.reserve(std::size_t(count));
        for (std::int64_t i = 0; i < count; ++i) {
            const auto* at = reinterpret_cast<const kvtrace_span_info*>(reinterpret_cast<const char*>(spans) +
                                                                        std::size_t(i) * size);
            const kvtrace_span_info given = taken(at, "kvtrace_span_info");
            if (given.size != size)
                refuse(KVTRACE_INVALID, "span ", std::to_string(i), " has another size than the first one");
            EngineSpan& span = all.emplace_back(spanOf(given, *open));
            span.span.track = open->writer->names.of(given.track);
            span.span.name = open->writer->names.of(given.name);
            if (given.category != 0) span.category = open->writer->names.of(given.category);
            if (given.args != nullptr) span.args = toValidUtf8(given.args);
            if (!span.args.empty() && !parseJson(span.args).is_object())
                refuse(KVTRACE_INVALID, "args of span ", std::to_string(i), " are ", shown(span.args),
                       "; give one JSON object, e.g. {\"rows\": 4}");
        }
        const std::int64_t number = open->addSpans(std::move(all));
        if (first != nullptr) *first = number;
    });
}

int32_t kvtrace_flow(kvtrace_run run, int64_t from, int64_t to) {
    return atBorder([&] { runOf(run)->addFlow(from, to); });
}

int32_t kvtrace_counter(kvtrace_run run, const char* track, int64_t start_ns, int64_t duration_ns, int64_t value) {
    return atBorder([&] {
        const std::shared_ptr<Run> open = runOf(run);
        open->requireOpen();
        if (duration_ns < 0 || value < 0) refuse(KVTRACE_INVALID, "a counter has a negative duration or value");
        requireTime("the start of a counter's interval", start_ns);
        requireTime("the duration of a counter's interval", duration_ns);
        CounterSample sample{textOf(required(track, "track")), start_ns, duration_ns, value};
        open->writer->recorder()->offer(std::vector<CounterSample>{std::move(sample)});
    });
}

int32_t kvtrace_gauge(kvtrace_run run, const char* track, int64_t time_ns, double value) {
    return atBorder([&] {
        const std::shared_ptr<Run> open = runOf(run);
        open->requireOpen();
        HeldValue sample{textOf(required(track, "track")), time_ns == KVTRACE_NOW ? open->now() : time_ns, value};
        if (sample.track.empty()) refuse(KVTRACE_INVALID, "the track of a gauge is empty; give it a name");
        requireTime("the time of a gauge", sample.ns);
        if (!std::isfinite(value))
            refuse(KVTRACE_INVALID, "gauge ", sample.track, " is no finite number; leave such a sample out");
        open->writer->recorder()->offer(std::vector<HeldValue>{std::move(sample)});
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
