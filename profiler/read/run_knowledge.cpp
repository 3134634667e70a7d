#include "profiler/read/run_knowledge.h"

#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"

#include <utility>

namespace kvscope {

bool hasRunMeta(Connection& connection) {
    Statement columns(connection,
                      "SELECT count(*) FROM pragma_table_info('run_meta') WHERE name IN ('run_id', 'key', 'value')"
                      " AND EXISTS (SELECT 1 FROM sqlite_schema WHERE type='table' AND name='run_meta')");
    return columns.step() && columns.int64(0) == 3;
}

Knowledge knowledgeOf(Connection& connection, int runId) {
    if (hasRunMeta(connection)) {
        Statement row(connection, "SELECT value FROM run_meta WHERE run_id = ? AND key = ?");
        row.bindAll(runId, std::string_view(run_meta::kKnows));
        if (row.step())
            if (const auto said = Knowledge::parse(row.text(0))) return *said;
    }
    return knowledgeFromRows(connection, runId);
}

std::optional<Known> neededByColumn(std::string_view column) {
    static constexpr std::pair<std::string_view, Known> needs[]{{"selected", Known::Selections},
                                                                {"kept", Known::Selections},
                                                                {"locality", Known::Selections},
                                                                {"hits", Known::Hits},
                                                                {"misses", Known::Hits},
                                                                {"hit", Known::Hits},
                                                                {"h2d_bytes", Known::Bytes},
                                                                {"d2h_bytes", Known::Bytes},
                                                                {"h2d_blocks", Known::Bytes},
                                                                {"d2h_blocks", Known::Bytes},
                                                                {"transfer_ns", Known::TransferTimes},
                                                                {"h2d_ns", Known::TransferTimes},
                                                                {"d2h_ns", Known::TransferTimes},
                                                                {"exposed_ns", Known::ExposedTimes},
                                                                {"embed_ns", Known::StageTimes},
                                                                {"qkv_linear_ns", Known::StageTimes},
                                                                {"rope_ns", Known::StageTimes},
                                                                {"compression_ns", Known::StageTimes},
                                                                {"stage1_ns", Known::StageTimes},
                                                                {"pooling_ns", Known::StageTimes},
                                                                {"offloading_ns", Known::StageTimes},
                                                                {"stage2_ns", Known::StageTimes},
                                                                {"attention_ns", Known::StageTimes},
                                                                {"o_linear_ns", Known::StageTimes},
                                                                {"ffn_ns", Known::StageTimes},
                                                                {"lm_head_ns", Known::StageTimes},
                                                                {"sample_ns", Known::StageTimes}};
    for (const auto& [name, known] : needs)
        if (name == column) return known;
    return std::nullopt;
}

void hideUnknown(Knowledge knows, std::span<StepRow> rows) {
    const auto hide = [&](Known what, auto... members) {
        if (!knows.has(what))
            for (StepRow& row : rows) ((row.*members = -1), ...);
    };
    hide(Known::Hits, &StepRow::hits, &StepRow::misses);
    hide(Known::Bytes, &StepRow::h2dBytes, &StepRow::d2hBytes);
    hide(Known::TransferTimes, &StepRow::transferNs);
    hide(Known::ExposedTimes, &StepRow::exposedNs);
}

Knowledge knowledgeFromRows(Connection& connection, int runId) {
    Knowledge knows;
    if (runId < 1 || runId > trace::kMaxRuns) return knows;
    // Few steps are enough, because a writer that knows a number knows it in every step. Sums are of reals, so that
    // absurd numbers do not overflow.
    Statement sums(
        connection,
        "SELECT count(*), total(selected), total(abs(1.0 * hits) + abs(1.0 * misses)), total(misses),"
        " total(h2d_bytes + 0.0), total(transfer_ns + 0.0), total(exposed_ns + 0.0), total(duration_ns + 0.0)"
        " FROM (SELECT * FROM step WHERE id BETWEEN ? AND ? AND phase <> 0 ORDER BY id LIMIT 64)");
    sums.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, trace::kMaxStep));
    if (!sums.step() || sums.int64(0) == 0) return knows;
    const bool selects = sums.real(1) > 0, counted = sums.real(2) > 0, bytes = sums.real(4) != 0,
               linkTime = sums.real(5) != 0, exposed = sums.real(6) != 0;
    if (selects && !counted) knows = knows.without(Known::Hits);
    if ((sums.real(3) > 0 || !knows.has(Known::Hits)) && !bytes) knows = knows.without(Known::Bytes);
    if ((bytes || !knows.has(Known::Bytes)) && !linkTime) {
        knows = knows.without(Known::TransferTimes);
        if (!exposed) knows = knows.without(Known::ExposedTimes);
    }
    if (sums.real(7) == 0) knows = knows.without(Known::StepTimes);
    return knows;
}

} // namespace kvscope
