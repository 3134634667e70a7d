#include "profiler/check/check.h"

#include "base/error.h"
#include "profiler/check/rule.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/run_knowledge.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <numeric>

namespace kvscope {

using namespace check;

namespace {

constexpr double kBlobsShare = 0.5;               // share of a run's time in the progress that its blobs take
constexpr std::int64_t kCountedBlobs = 4'000'000; // reading them takes a few seconds

bool hasTable(Connection& connection, std::string_view name) {
    Statement find(connection, "SELECT 1 FROM main.sqlite_schema WHERE type='table' AND rootpage>0 AND name=?");
    return find.bind(1, name).step();
}

bool hasRows(Connection& connection, std::string_view table) {
    Statement find(connection, fmt::format("SELECT 1 FROM {} LIMIT 1", table));
    return find.step();
}

/// Whether the run knows what a rule needs. known: what the key `knows` of the run says, or, without that key, what its
/// rows look like, because another engine may have left 0 where it knew nothing.
bool knows(Knowledge known, Needs needs) {
    constexpr std::array<Known, 8> groups{Known::Selections, Known::Selections,    Known::Hits,
                                          Known::Bytes,      Known::TransferTimes, Known::ExposedTimes,
                                          Known::StepTimes,  Known::StageTimes};
    return needs == Needs::Nothing || known.has(groups[std::size_t(needs)]);
}

class Checker {
public:
    Checker(const TraceReader& reader, int runId, const CheckOptions& options)
        : connection_(*ReaderAccess::of(reader).connection), options_(options) {
        result_.run = runId;
        if (runId > 0) knows_ = knowledgeOf(connection_, runId);
    }

    void add(std::span<const SqlRule> rules) {
        for (const SqlRule& rule : rules) {
            RuleResult& result = begin(rule.id, rule.says, rule.concern);
            result.tested = applies(rule.needs) && hasTable(connection_, rule.table) &&
                            (std::string_view(rule.table) == "health" || hasRows(connection_, rule.table));
            if (!result.tested) continue;
            Statement rows(connection_, rule.sql);
            if (result_.run > 0) rows.bind(1, result_.run);
            while (rows.step())
                note(result, rows.isNull(0) ? std::string() : placeOf(rule.form, rows.int64(0)), rows.text(1));
        }
    }

    /// Finds columns that a writer left 0 because it did not know them, without saying so with key `knows`. Readers of
    /// such a run have to guess from its first steps what it knows.
    void addKnowledge() {
        RuleResult& result =
            begin("knows-said", "a run whose columns are 0 because it does not know them says so with key knows",
                  Concern::Identity);
        Statement said(connection_, "SELECT 1 FROM run_meta WHERE run_id = ? AND key = 'knows'");
        if (said.bind(1, result_.run).step()) return;
        const Knowledge rows = knowledgeFromRows(connection_, result_.run);
        for (int i = 0; i < kKnownCount; ++i)
            if (!rows.has(Known(i)))
                note(result, {},
                     fmt::format("{} are 0 in the first steps, and run_meta has no key knows",
                                 kKnownNames[std::size_t(i)]));
    }

    void addBlobs(const Progress& progress) {
        const std::size_t first = result_.rules.size();
        bool any = false;
        for (const BlobRule& rule : blobRules()) {
            begin(rule.id, rule.says, rule.concern).tested = applies(rule.needs);
            any = any || result_.rules.back().tested;
        }
        const bool read = any && hasBlobs();
        if (read && options_.blobs >= 0)
            if (const std::int64_t count = selections(options_.blobs + 1); count > options_.blobs)
                result_.unread = selections(-1);
        if (!read || result_.unread > 0) {
            for (std::size_t i = first; i < result_.rules.size(); ++i) result_.rules[i].tested = false;
            return;
        }
        checkBlobs(
            connection_, result_.run,
            [&](int rule, std::int64_t key, const std::string& what) {
                if (RuleResult& result = result_.rules[first + std::size_t(rule)]; result.tested)
                    note(result, placeOf(Form::Selection, key), what);
            },
            progress);
    }

    RunCheck take() { return std::move(result_); }

private:
    RuleResult& begin(std::string_view id, std::string_view says, Concern concern) {
        return result_.rules.emplace_back(RuleResult{id, says, concern});
    }
    bool applies(Needs needs) const { return knows(knows_, needs); }
    bool hasBlobs() {
        Statement find(connection_, "SELECT 1 FROM selection WHERE id >> 55 = ? AND blocks IS NOT NULL LIMIT 1");
        return find.bind(1, result_.run).step();
    }
    /// How many selections the run has, counted up to `most`; < 0: all.
    std::int64_t selections(std::int64_t most) {
        Statement count(connection_, "SELECT count(*) FROM (SELECT 1 FROM selection WHERE id BETWEEN ?1 << 55 AND"
                                     " (?1 << 55) | 0x7FFFFFFFFFFFFF LIMIT ?2)");
        count.bindAll(result_.run, most);
        return count.step() ? count.int64(0) : 0;
    }
    void note(RuleResult& result, std::string where, std::string_view what) {
        if (options_.examples < 0 || result.violations < options_.examples)
            result_.examples.push_back({std::string(result.id), result_.run, std::move(where), std::string(what)});
        ++result.violations;
    }

    Connection& connection_;
    const CheckOptions& options_;
    Knowledge knows_; // of the file as a whole; it knows everything
    RunCheck result_;
};

RunCheck checkOne(const TraceReader& reader, int runId, const CheckOptions& options) {
    Checker checker(reader, runId, options);
    report(options.progress, 0, "checking rows");
    for (const auto& rules :
         {runRules(), metaRules(), stepRules(), layerRules(), sumRules(), timeRules(), selectionRules(),
          selectionDetailRules(), tokenRules(), pieceRules(), denoiseRules(), denoiseLayerRules(), denoiseOrderRules(),
          timelineRules(), servingRules(), queueRules(), agreementRules(), servingAgreementRules()})
        checker.add(rules);
    checker.addKnowledge();
    checker.addBlobs([&](double fraction, std::string_view what) {
        report(options.progress, kBlobsShare + (1 - kBlobsShare) * fraction, what);
    });
    return checker.take();
}

} // namespace

namespace check {

std::string placeOf(Form form, std::int64_t key) {
    const auto step = [&](int shift) { return (key >> shift) & 0x1FFFFFF; };
    switch (form) {
    case Form::None:
        break;
    case Form::Step:
        return fmt::format("step {}", step(0));
    case Form::Layer:
        return fmt::format("step {}, layer {}", step(10), key & 1023);
    case Form::Selection:
        return fmt::format("step {}, layer {}, sequence {}, KV head {}", step(30), (key >> 20) & 1023,
                           (key >> 10) & 1023, key & 1023);
    case Form::Token:
        return fmt::format("step {}, sequence {}", step(20), (key >> 10) & 1023);
    case Form::Prompt:
        return fmt::format("sequence {}, position {}", (key >> 45) & 1023, key & 0x1FFFFFFFFFFF);
    case Form::Request:
        return fmt::format("request {}", key & 0xFFFFFFFFFF);
    case Form::Iteration:
        return fmt::format("iteration {}", step(0));
    case Form::Member:
        return fmt::format("iteration {}, row {}", step(10), key & 1023);
    }
    return {};
}

} // namespace check

std::string_view nameOf(Concern concern) {
    constexpr std::array<std::string_view, kConcernCount> names{
        "what belongs together",  "times",          "tokens",        "selections and locality", "hits and misses",
        "blocks and bytes",       "transfer times", "exposed times", "attention mass",          "the timeline",
        "requests and iterations"};
    return names[std::size_t(concern)];
}

std::int64_t RunCheck::violations() const {
    return std::accumulate(rules.begin(), rules.end(), std::int64_t(0),
                           [](std::int64_t sum, const RuleResult& rule) { return sum + rule.violations; });
}

int RunCheck::untested() const {
    return int(std::count_if(rules.begin(), rules.end(), [](const RuleResult& rule) { return !rule.tested; }));
}

bool RunCheck::concerns(Concern concern) const {
    return std::any_of(rules.begin(), rules.end(),
                       [concern](const RuleResult& rule) { return rule.concern == concern && rule.violations > 0; });
}

std::string RunCheck::leftOut() const {
    if (unread == 0) return {};
    std::string names;
    const auto blobs = blobRules();
    for (std::size_t i = 0; i < blobs.size(); ++i)
        names += fmt::format("{}{}", i == 0 ? "" : i + 1 < blobs.size() ? ", " : " and ", blobs[i].id);
    return fmt::format("the rules {} were not tested, because the run has {} selections; kvscope-cli check tests them",
                       names, unread);
}

void RunCheck::add(const RunCheck& other) {
    rules.insert(rules.end(), other.rules.begin(), other.rules.end());
    examples.insert(examples.end(), other.examples.begin(), other.examples.end());
}

std::string RunCheck::sentence() const {
    std::string text;
    for (const RuleResult& rule : rules)
        if (rule.violations > 0)
            text += fmt::format("{}{} against the rule that {} ({})", text.empty() ? "" : "; ", rule.violations,
                                rule.says, rule.id);
    return text;
}

CheckOptions counting() {
    CheckOptions options;
    options.examples = 0;
    options.blobs = kCountedBlobs;
    return options;
}

RunCheck checkFile(const TraceReader& reader, const CheckOptions& options) {
    Checker file(reader, 0, options);
    file.add(fileRules());
    return file.take();
}

Knowledge trusted(Knowledge knows, const RunCheck& check) {
    constexpr std::pair<Concern, Known> groups[] = {
        {Concern::Times, Known::StepTimes},      {Concern::Times, Known::StageTimes},
        {Concern::Selection, Known::Selections}, {Concern::Hits, Known::Hits},
        {Concern::Bytes, Known::Bytes},          {Concern::Transfer, Known::TransferTimes},
        {Concern::Exposed, Known::ExposedTimes}};
    for (const auto& [concern, known] : groups)
        if (check.concerns(concern)) knows = knows.without(known);
    return knows;
}

std::vector<RunCheck> checkTrace(const TraceReader& reader, const CheckOptions& options) {
    std::vector<RunCheck> checks{checkFile(reader, options)};
    Statement runs(*ReaderAccess::of(reader).connection, "SELECT run_id FROM run ORDER BY run_id");
    std::vector<int> ids;
    while (runs.step()) ids.push_back(runs.int32(0));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        CheckOptions part = options;
        if (options.progress)
            part.progress = [&](double fraction, std::string_view what) {
                options.progress((double(i) + fraction) / double(ids.size()), what);
            };
        checks.push_back(checkOne(reader, ids[i], part));
    }
    return checks;
}

RunCheck checkRun(const TraceReader& reader, int runId, const CheckOptions& options) {
    ReaderAccess::of(reader).known(runId);
    return checkOne(reader, runId, options);
}

} // namespace kvscope
