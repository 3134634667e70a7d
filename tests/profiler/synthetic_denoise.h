// Makes a synthetic run one of a block-diffusion model: its steps become denoising forwards, with the same layers and
// selections. Deterministic, and by the rules of the trace format.
#pragma once

#include "core/trace/run_meta.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace kvscope::synthetic {

constexpr int kMaskId = 99; // a token that no word has

class Denoiser {
public:
    /// tileRows: of a block; above 0 every query head keeps pages of its own for each of them, and every token is
    /// active.
    explicit Denoiser(const RunShape& shape, int block = 8, int tileRows = 0)
        : shape_(shape), block_(block), tileRows_(tileRows) {
        for (int sequence = 0; sequence < shape.sequences; ++sequence) {
            Row& row = rows_.emplace_back();
            row.prompt = row.emitted = shape.promptTokens + sequence;
            begin(row, row.prompt / block);
        }
    }
    RunInfo info() const {
        RunInfo info = infoOf(shape_);
        info.meta.emplace_back(run_meta::kDenoisingBlock, std::to_string(block_));
        return info;
    }
    /// `record` is the next step of a RunGenerator.
    void fill(StepRecord& record, RecordLevel level = RecordLevel::Full) {
        level_ = level;
        record.generated.clear();
        if (record.phase == Phase::Prefill) return;
        record.tokens = 0;
        record.opensBlock = std::any_of(record.selections.begin(), record.selections.end(),
                                        [](const auto& selection) { return selection.kept < 0; });
        for (int sequence = 0; sequence < shape_.sequences; ++sequence)
            if (fedPosition(shape_, sequence, record.step) >= 0) forward(sequence, record);
    }

private:
    struct Row {
        int prompt = 0, emitted = 0; // tokens of the prompt; first position whose token is not emitted
        int block = 0, step = 0;
        std::vector<int> ids; // of the block; kMaskId: masked
    };
    void begin(Row& row, int block) const {
        row.block = block;
        row.step = 0;
        row.ids.assign(std::size_t(block_), kMaskId);
        for (int i = 0; i < block_; ++i)
            if (block * block_ + i < row.prompt) row.ids[std::size_t(i)] = i % int(words().size());
    }
    static unsigned mixed(int a, int b, int c) {
        unsigned x = unsigned(a) * 2654435761u + unsigned(b) * 40503u + unsigned(c) * 69069u + 12345u;
        x ^= x >> 15;
        x *= 2246822519u;
        return x ^ x >> 13;
    }
    void forward(int sequence, StepRecord& record) {
        Row& row = rows_[std::size_t(sequence)];
        DenoiseStep& out = record.denoise;
        DenoiseForward forward;
        forward.sequence = sequence;
        forward.block = row.block;
        forward.step = row.step;
        forward.masked = std::int32_t(std::count(row.ids.begin(), row.ids.end(), kMaskId));
        forward.final = forward.masked == 0;
        forward.written = forward.final ? 0 : 1;
        forward.firstToken = std::uint32_t(out.tokens.size());
        forward.tokens = std::uint32_t(block_);
        int surest = -1;
        for (int i = 0; i < block_; ++i) {
            DenoiseToken token;
            token.position = row.block * block_ + i;
            token.id = row.ids[std::size_t(i)];
            if (token.id == kMaskId) {
                const unsigned draw = mixed(row.block, row.step, i);
                token.candidate = std::int32_t(draw % words().size());
                token.confidence = float(draw % 1000) / 1000;
                if (surest < 0 || token.confidence > out.tokens[std::size_t(surest)].confidence)
                    surest = int(out.tokens.size());
            }
            out.tokens.push_back(token);
        }
        if (surest >= 0) {
            out.tokens[std::size_t(surest)].written = true;
            row.ids[std::size_t(surest) - forward.firstToken] = out.tokens[std::size_t(surest)].candidate;
        }
        out.forwards.push_back(forward);
        record.opensBlock = record.opensBlock || forward.step == 0;
        for (int layer = 0; layer < shape_.layers; ++layer) addLayer(layer, sequence, forward, record);
        record.tokens += forward.written;
        addTokens(row, sequence, record);
        if (forward.final)
            begin(row, row.block + 1);
        else
            ++row.step;
    }
    void addLayer(int layer, int sequence, const DenoiseForward& forward, StepRecord& record) const {
        std::uint64_t active = 0;
        for (int i = 0; i < 3; ++i) active |= std::uint64_t(1) << mixed(layer, record.step, i) % unsigned(block_);
        for (int head = 0; head < shape_.kvHeads; ++head) {
            DenoiseLayer row;
            row.layer = layer, row.sequence = sequence, row.kvHead = head;
            const auto selection = std::find_if(record.selections.begin(), record.selections.end(), [&](const auto& s) {
                return s.layer == layer && s.sequence == sequence && s.kvHead == head;
            });
            row.sparse = forward.step > 0 && !forward.final && selection != record.selections.end();
            if (row.sparse) {
                row.active = active;
                row.pages = selection->selected;
                row.density = std::min(1.f, float(row.pages * shape_.blockSize) / float(forward.block * block_));
                if (tileRows_ > 0) addTileRows(row, record.denoise);
            }
            if (head == 0 && forward.step > 0 && level_ != RecordLevel::Counters) {
                row.firstChange = std::int64_t(record.denoise.changes.size());
                for (int i = 0; i < block_; ++i)
                    record.denoise.changes.push_back(float(mixed(record.step, layer, i) % 4000) / 1000);
                row.firstKvChange = std::int64_t(record.denoise.kvChanges.size());
                for (int i = 0; i < 2 * block_; ++i)
                    record.denoise.kvChanges.push_back(float(mixed(record.step, layer, i + 100) % 2000) / 1000);
            }
            record.denoise.layers.push_back(row);
        }
    }
    /// The first row of the first query head keeps everything that the others do.
    void addTileRows(DenoiseLayer& row, DenoiseStep& out) const {
        row.active = (std::uint64_t(1) << block_) - 1;
        if (level_ == RecordLevel::Counters) return;
        const int group = infoOf(shape_).queryHeads / shape_.kvHeads;
        row.firstRow = std::int64_t(out.rowDensities.size()), row.rows = group * tileRows_;
        for (int head = 0; head < group; ++head)
            for (int tile = 0; tile < tileRows_; ++tile)
                out.rowDensities.push_back(row.density * float(4 - (head + tile) % 3) / 4);
    }
    void addTokens(Row& row, int sequence, StepRecord& record) const {
        for (; row.emitted < (row.block + 1) * block_; ++row.emitted) {
            const int id = row.ids[std::size_t(row.emitted % block_)];
            if (id == kMaskId) return;
            record.generated.push_back({sequence, id, row.emitted, words()[std::size_t(id)]});
        }
    }

    RunShape shape_;
    int block_, tileRows_;
    RecordLevel level_ = RecordLevel::Full;
    std::vector<Row> rows_;
};

/// Records such a run into a new file.
inline void recordDenoising(const std::filesystem::path& path, const RunShape& shape, int block = 8,
                            RecordLevel level = RecordLevel::Full, int tileRows = 0) {
    RecorderOptions options;
    options.level = level;
    Recorder recorder(path.string(), options);
    RunGenerator generator(shape);
    Denoiser denoiser(shape, block, tileRows);
    recorder.beginRun(denoiser.info());
    for (int step = 0; step < generator.steps(); ++step) {
        auto record = recorder.acquire();
        generator.fillNext(*record, level);
        denoiser.fill(*record, level);
        recorder.take(std::move(record));
    }
    recorder.endRun(RunStatus::Finished, "");
}

/// Makes such a trace one of `full` over a canvas: every forward attends to everything, and nothing travels.
inline void makeCanvas(const std::string& path) {
    test::sql(path,
              "UPDATE run SET method = 'full', budget_blocks = 0, device_slots = 0;"
              "INSERT INTO run_meta VALUES (1, 'denoising_canvas', '32'); DELETE FROM selection;"
              "DELETE FROM denoise_change;"
              "UPDATE denoise_layer SET mode = 0, active = NULL, active_set = NULL, pages = NULL, density = NULL,"
              " changes = NULL; UPDATE step SET selected = 0, kept = NULL, hits = 0, misses = 0, h2d_blocks = 0,"
              " d2h_blocks = 0, h2d_bytes = 0, d2h_bytes = 0, transfer_ns = 0, exposed_ns = 0;"
              "UPDATE layer_step SET selected = 0, kept = NULL, hits = 0, misses = 0, h2d_blocks = 0, d2h_blocks = 0,"
              " h2d_bytes = 0, d2h_bytes = 0, h2d_ns = 0, d2h_ns = 0, exposed_ns = 0",
              SQLITE_OPEN_READWRITE);
}

} // namespace kvscope::synthetic
