#include "profiler/store/span_writer.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace kvscope {

SpanWriter::SpanWriter(Connection& connection)
    : spans_(connection, "span",
             "id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth, stage, bytes"),
      flows_(connection, "flow", "run_id, from_span, to_span"),
      details_(connection, "span_detail", "id, category, args"),
      flowWhereBoth_(connection,
                     "INSERT OR ROLLBACK INTO flow(run_id, from_span, to_span) SELECT ?1, ?2, ?3 WHERE (SELECT count(*)"
                     " FROM span WHERE id IN (?2, ?3)) = 2",
                     true),
      last_(connection.integer("SELECT max(id) FROM span")) {}

void SpanWriter::reset() {
    spans_.reset();
    flows_.reset();
    details_.reset();
    flowWhereBoth_.reset();
}

void SpanWriter::add(int run, const std::vector<SpanRecord>& spans, TextTable& texts) {
    struct Texts {
        std::int64_t track = 0, name = 0;
        std::optional<std::int64_t> stage;
    };
    std::vector<Texts> ids; // interned first: the statements must not interleave
    ids.reserve(spans.size());
    for (const SpanRecord& span : spans) {
        Texts& of = ids.emplace_back();
        of.track = texts.idOf(span.track);
        of.name = texts.idOf(span.name);
        if (!span.stage.isNone()) of.stage = texts.idOf(span.stage.name());
    }
    const std::int64_t first = last_ + 1;
    spans_.expect(spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const SpanRecord& span = spans[i];
        std::optional<std::int64_t> bytes;
        if (span.bytes >= 0) bytes = span.bytes;
        spans_.add(++last_, run, span.step, span.layer, int(span.kind), ids[i].track, ids[i].name, span.startNs,
                   span.durationNs, span.depth, ids[i].stage, bytes);
    }
    addFlows(run, spans, first);
}

void SpanWriter::add(int run, const std::vector<EngineSpan>& spans, TextTable& texts) {
    struct Texts {
        std::int64_t track = 0, name = 0;
        std::optional<std::int64_t> category;
    };
    std::vector<Texts> ids; // interned first: the statements must not interleave
    ids.reserve(spans.size());
    std::size_t details = 0;
    for (const EngineSpan& of : spans) {
        Texts& text = ids.emplace_back();
        text.track = texts.idOf(of.span.track);
        text.name = texts.idOf(of.span.name);
        if (!of.category.empty()) text.category = texts.idOf(of.category);
        if (!of.category.empty() || !of.args.empty()) ++details;
    }
    spans_.expect(spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const SpanRecord& span = spans[i].span;
        std::optional<std::int64_t> bytes;
        if (span.bytes >= 0) bytes = span.bytes;
        const std::int64_t id = beforeRun_ + spans[i].number;
        last_ = std::max(last_, id);
        spans_.add(id, run, span.step, span.layer, int(span.kind), ids[i].track, ids[i].name, span.startNs,
                   span.durationNs, span.depth, std::optional<std::int64_t>(), bytes);
    }
    details_.expect(details);
    for (std::size_t i = 0; i < spans.size(); ++i) {
        if (spans[i].category.empty() && spans[i].args.empty()) continue;
        std::optional<std::string_view> args;
        if (!spans[i].args.empty()) args = spans[i].args;
        details_.add(beforeRun_ + spans[i].number, ids[i].category, args);
    }
}

void SpanWriter::add(int run, const EngineFlow& flow) {
    flowWhereBoth_.reset();
    flowWhereBoth_.bindAll(run, beforeRun_ + flow.from, beforeRun_ + flow.to).run();
}

/// Adds flows from calls to what they started. first: the id of the first span.
void SpanWriter::addFlows(int run, const std::vector<SpanRecord>& spans, std::int64_t first) {
    const auto isCall = [](const SpanRecord& span) { return span.kind == SpanRecord::Kind::Range; };
    for (std::size_t i = 0; i < spans.size(); ++i)
        if (spans[i].launch != 0 && isCall(spans[i])) calls_.add(spans[i].launch, first + std::int64_t(i));
    std::vector<std::pair<std::int64_t, std::int64_t>> flows;
    for (std::size_t i = 0; i < spans.size(); ++i)
        if (spans[i].launch != 0 && !isCall(spans[i]))
            if (const std::int64_t call = calls_.spanOf(spans[i].launch))
                flows.emplace_back(call, first + std::int64_t(i));
    flows_.expect(flows.size());
    for (const auto& [call, started] : flows) flows_.add(run, call, started);
}

} // namespace kvscope
