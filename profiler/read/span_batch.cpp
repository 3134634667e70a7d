#include "profiler/read/span_batch.h"

#include "base/error.h"
#include "core/trace/stage.h"
#include "profiler/format/span_name.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/run_knowledge.h"
#include "profiler/read/sane_times.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace kvscope {
namespace {

class BatchReader {
public:
    BatchReader(const TraceReader& reader, int runId, const SpanPosition& from, int rows)
        : reader_(reader), connection_(*ReaderAccess::of(reader).connection), run_(runId), left_(rows) {
        batch_.next = from;
        const std::optional<RunRow> run = reader.run(runId);
        if (!run)
            throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), runId), "open it again");
        layers_ = run->layers;
        if (!batch_.next.clock && run->steps > 0) batch_.next.clock = linkClockOf(connection_, runId);
        const LinkClock clock = batch_.next.clock.value_or(LinkClock());
        toDevice_ = linkTrack(kToDeviceTrack, clock);
        toHost_ = linkTrack(kToHostTrack, clock);
        knows_ = run->knows;
        prompts_ = run->prompts;
    }

    SpanBatch read() {
        const bool hasTimes = knows_.has(Known::StepTimes); // else steps have no place on a timeline
        if (hasTimes) steps();
        if (hasTimes && left_ > 0) layers();
        if (hasTimes && left_ > 0) stepStages(int(batch_.next.step)); // steps that have no layers
        if (left_ > 0) others();
        batch_.atEnd = left_ > 0;
        batch_.fraction = fraction();
        return std::move(batch_);
    }

private:
    /// Otherwise a step is one span, whatever the columns of its stages hold.
    bool hasStages() const { return knows_.has(Known::StageTimes); }

    std::int32_t text(std::string_view value) {
        const auto [at, isNew] = texts_.try_emplace(std::string(value), std::int32_t(batch_.texts.size()));
        if (isNew) batch_.texts.emplace_back(value);
        return at->second;
    }

    void add(std::string_view track, std::string_view name, std::int64_t start, std::int64_t duration, int step,
             int layer, int depth) {
        batch_.spans.push_back({saneTime(start), saneDuration(duration), text(track), text(name), step, layer, depth});
    }

    void steps() {
        Statement rows(
            connection_,
            "SELECT id, phase, tokens, start_ns, duration_ns, hits, misses, h2d_bytes, d2h_bytes, transfer_ns,"
            " exposed_ns, selected FROM step"
            " WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?");
        rows.bindAll(trace::stepKey(run_, 0) + batch_.next.step + 1, trace::stepKey(run_, trace::kMaxStep),
                     std::int64_t(left_));
        while (rows.step()) {
            StepRow row;
            row.step = trace::stepOf(rows.int64(0), 0);
            row.phase = rows.int64(1) == 0 ? Phase::Prefill : Phase::Decode;
            row.tokens = rows.int32(2);
            row.startNs = saneTime(rows.int64(3));
            row.durationNs = saneDuration(rows.int64(4));
            row.hits = rows.int64(5);
            row.misses = rows.int64(6);
            row.h2dBytes = rows.int64(7);
            row.d2hBytes = rows.int64(8);
            row.transferNs = rows.int64(9);
            row.exposedNs = rows.int64(10);
            row.selected = rows.int64(11);
            row.promptTokens = row.phase == Phase::Prefill ? row.tokens : prompts_.mixedTokens(row.step);
            add(kHostTrack, row.mixed() ? kMixedName : std::string_view(nameOf(row.phase)), row.startNs, row.durationNs,
                row.step, -1, 0);
            batch_.next.step = row.step;
            hideUnknown(knows_, {&row, 1});
            batch_.steps.push_back(row);
            --left_;
        }
    }

    /// Adds the stages outside the layers for the steps up to this one that do not have them yet.
    void stepStages(int lastStep) {
        if (lastStep <= batch_.next.stages || !hasStages()) return;
        // Prepared once: a run may have millions of steps of a layer or two.
        if (!stages_)
            stages_.emplace(connection_, "SELECT id, start_ns, duration_ns, embed_ns, lm_head_ns, sample_ns FROM step"
                                         " WHERE id BETWEEN ? AND ? ORDER BY id");
        Statement& rows = *stages_;
        rows.bindAll(trace::stepKey(run_, batch_.next.stages + 1), trace::stepKey(run_, lastStep));
        while (rows.step()) {
            const int step = trace::stepOf(rows.int64(0), 0);
            const std::int64_t start = saneTime(rows.int64(1)), end = saneTime(start + saneDuration(rows.int64(2)));
            const std::int64_t embed = saneDuration(rows.int64(3)), head = saneDuration(rows.int64(4)),
                               sample = saneDuration(rows.int64(5));
            const auto stage = [&](StepStage which, std::int64_t from, std::int64_t duration) {
                if (duration > 0) add(kHostTrack, kStepStageNames[std::size_t(which)], from, duration, step, -1, 1);
            };
            stage(StepStage::Embed, start, embed);
            stage(StepStage::LmHead, end - sample - head, head);
            stage(StepStage::Sample, end - sample, sample);
        }
        rows.reset();
        batch_.next.stages = lastStep;
    }

    void layers() {
        Statement rows(connection_,
                       "SELECT id, start_ns, qkv_linear_ns, rope_ns, compression_ns, stage1_ns, pooling_ns,"
                       " offloading_ns, stage2_ns, attention_ns, o_linear_ns, ffn_ns, h2d_bytes, d2h_bytes, h2d_ns,"
                       " d2h_ns FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?");
        const auto [first, last] = trace::keysOfSteps(run_, 0, trace::kMaxStep, trace::kLayerShift);
        rows.bindAll(std::max(first, batch_.next.layer + 1), last, std::int64_t(left_ / 8 + 1));
        while (rows.step()) {
            const std::int64_t id = rows.int64(0);
            const int step = trace::stepOf(id, trace::kLayerShift), layer = int(id & (trace::kMaxLayers - 1));
            const std::int64_t start = saneTime(rows.int64(1));
            std::int64_t at = start, offloading = start, offloadingNs = 0;
            stepStages(step);
            const std::size_t whole = batch_.spans.size();
            if (hasStages()) add(kHostTrack, "layer", start, 0, step, layer, 1);
            for (std::size_t stage = 0; stage < kStageCount && hasStages(); ++stage) {
                const std::int64_t duration = saneDuration(rows.int64(2 + int(stage)));
                if (Stage(stage) == Stage::Offloading) offloading = at, offloadingNs = duration;
                if (duration > 0) add(kHostTrack, kStageNames[stage], at, duration, step, layer, 2);
                at = saneTime(at + duration);
            }
            if (hasStages()) batch_.spans[whole].durationNs = at - start;
            const std::int64_t h2dNs = rows.int64(14), d2hNs = rows.int64(15);
            const std::int64_t moves =
                transferStart(batch_.next.clock.value_or(LinkClock()), offloading, offloadingNs, h2dNs, d2hNs);
            if (rows.int64(12) > 0) add(toDevice_, kToDeviceName, moves, h2dNs, step, layer, 0);
            if (rows.int64(13) > 0) add(toHost_, kToHostName, moves, d2hNs, step, layer, 0);
            batch_.next.layer = id;
            left_ -= 8; // a layer makes about that many spans
        }
    }

    void others() {
        // Reads in the order of the key. Rows of other runs are stepped over, because the key has no gaps that would be
        // worth skipping.
        Statement rows(connection_, "SELECT id, run_id, step, layer, track, name, start_ns, duration_ns, depth, kind,"
                                    " stage, bytes FROM span WHERE id > ? ORDER BY id LIMIT ?");
        rows.bindAll(batch_.next.span, std::int64_t(left_));
        while (rows.step()) {
            batch_.next.span = rows.int64(0);
            --left_;
            if (rows.int64(1) != run_) continue;
            const NameKey name{rows.int64(5), rows.isNull(10) ? kNoText : rows.int64(10),
                               rows.isNull(11) ? -1 : std::max<std::int64_t>(rows.int64(11), -1), rows.int64(9)};
            batch_.spans.push_back({saneTime(rows.int64(6)), saneDuration(rows.int64(7)), trackOf(rows.int64(4)),
                                    nameText(name), number(rows.int64(2)), number(rows.int64(3)),
                                    std::clamp(number(rows.int64(8)), 0, 255)});
        }
    }

    static int number(std::int64_t value) { return int(std::clamp<std::int64_t>(value, -1, trace::kMaxStep)); }

    /// A text of the trace.
    std::string stored(std::int64_t id) {
        if (!find_) find_.emplace(connection_, "SELECT value FROM text WHERE id = ?");
        find_->bind(1, id);
        const std::string value(find_->step() ? find_->text(0) : std::string_view("(no name)"));
        find_->reset();
        return value;
    }

    /// Looked up once per batch.
    std::int32_t trackOf(std::int64_t id) {
        const auto [at, isNew] = tracks_.try_emplace(id, 0);
        if (isNew) at->second = text(stored(id));
        return at->second;
    }

    static constexpr std::int64_t kNoText = std::numeric_limits<std::int64_t>::min();
    struct NameKey {
        std::int64_t name = 0, stage = kNoText, bytes = -1, kind = 0;
        bool operator==(const NameKey&) const = default;
    };
    struct HashOfKey {
        std::size_t operator()(const NameKey& key) const {
            std::uint64_t hash = 0;
            for (const std::int64_t part : {key.name, key.stage, key.bytes, key.kind})
                hash = (hash ^ std::uint64_t(part)) * 0x9E3779B97F4A7C15u;
            return std::size_t(hash ^ hash >> 32);
        }
    };
    /// The shown name. A name that was stored as a whole is taken apart here, once.
    std::int32_t nameText(const NameKey& key) {
        const auto [at, isNew] = names_.try_emplace(key, 0);
        if (!isNew) return at->second;
        const std::string name = stored(key.name), stage = key.stage == kNoText ? std::string() : stored(key.stage);
        const bool isWhole = stage.empty() && key.bytes < 0;
        const SpanName parts = isWhole
                                   ? SpanName::ofWhole(SpanRecord::Kind(std::clamp<std::int64_t>(key.kind, 0, 2)), name)
                                   : SpanName{stage, key.bytes, name};
        at->second = text(isWhole ? name : parts.shown());
        if (!parts.stage.empty() || parts.bytes >= 0)
            batch_.fields[at->second] = {std::string(parts.stage), parts.bytes};
        return at->second;
    }

    /// Weighs what is read of layers and of other spans by how many spans there are of each.
    double fraction() {
        if (batch_.atEnd) return 1;
        const double lastStep = std::max(1, reader_.stepCount(run_));
        const double layerSpans = lastStep * (2.0 + 10.0 * layers_);
        const bool begun = batch_.next.layer >= trace::keysOfSteps(run_, 0, 0, trace::kLayerShift).first;
        const double ofLayers = begun ? trace::stepOf(batch_.next.layer, trace::kLayerShift) / lastStep : 0;
        const auto spans = double(connection_.integer("SELECT max(id) FROM span"));
        const double ofSpans = spans > 0 ? std::clamp(double(batch_.next.span) / spans, 0.0, 1.0) : 1;
        return std::clamp((ofLayers * layerSpans + ofSpans * spans) / (layerSpans + std::max(0.0, spans)), 0.0, 1.0);
    }

    const TraceReader& reader_;
    Connection& connection_;
    int run_, layers_ = 0;
    std::string toDevice_, toHost_; // tracks
    Knowledge knows_;
    PromptSteps prompts_;
    std::int64_t left_;
    SpanBatch batch_;
    std::unordered_map<std::string, std::int32_t> texts_;
    std::unordered_map<std::int64_t, std::int32_t> tracks_;
    std::unordered_map<NameKey, std::int32_t, HashOfKey> names_;
    std::optional<Statement> find_, stages_;
};

} // namespace

std::string linkTrack(std::string_view kind, const LinkClock& clock) {
    return fmt::format("{} ({})", kind, clock.name());
}

bool isLinkTrack(std::string_view track, std::string_view kind) {
    return track.starts_with(kind) && track.substr(kind.size()).starts_with(" (");
}

SpanBatch readSpans(const TraceReader& reader, int runId, const SpanPosition& from, int rows) {
    return BatchReader(reader, runId, from, std::max(rows, 16)).read();
}

} // namespace kvscope
