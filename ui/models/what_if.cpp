#include "ui/models/what_if.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope::ui {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kGridSizes = 12, kFewestGridSizes = 3;
constexpr double kGridBytes = 256e6, kOtherBytes = 128e6; // memory for replays: at sizes of the grid, at others

double ratioOf(std::int64_t part, std::int64_t whole) { return whole > 0 ? double(part) / double(whole) : kNan; }

std::int64_t between(std::int64_t a, std::int64_t b, double share) { return a + std::llround(double(b - a) * share); }

/// Interpolates linearly between the results of two sizes; `share` is 0 at `a` and 1 at `b`.
ReplayConfig between(const ReplayConfig& a, const ReplayConfig& b, double share) {
    ReplayConfig config = a;
    config.hits = between(a.hits, b.hits, share);
    config.misses = between(a.misses, b.misses, share);
    config.h2dBytes = between(a.h2dBytes, b.h2dBytes, share);
    config.exposedNs = between(a.exposedNs, b.exposedNs, share);
    config.coldHits = between(a.coldHits, b.coldHits, share);
    config.coldMisses = between(a.coldMisses, b.coldMisses, share);
    config.coldExposedNs = between(a.coldExposedNs, b.coldExposedNs, share);
    if (a.prefetched && b.prefetched) {
        config.prefetched->h2dBytes = between(a.prefetched->h2dBytes, b.prefetched->h2dBytes, share);
        config.prefetched->exposedNs = between(a.prefetched->exposedNs, b.prefetched->exposedNs, share);
        config.prefetched->coldExposedNs = between(a.prefetched->coldExposedNs, b.prefetched->coldExposedNs, share);
    }
    return config;
}

std::vector<int> gridOf(int smallest, int largest, std::size_t cells, int recorded) {
    const auto policies = double(replayPolicies().size());
    const double most = kGridBytes / (double(std::max<std::size_t>(cells, 1)) * sizeof(std::int32_t) * policies);
    const int count = int(std::clamp(most, double(kFewestGridSizes), double(kGridSizes)));
    std::vector<int> sizes;
    for (int i = 0; i < count; ++i) { // closer together at small sizes, where curves are steep
        const double share = double(i) / (count - 1);
        sizes.push_back(smallest + int(std::lround((largest - smallest) * share * share)));
    }
    if (recorded >= smallest) sizes.push_back(recorded);
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
}

} // namespace

WhatIf::WhatIf(Trace trace) : trace_(std::move(trace)) {
    largestSlots_ = std::max(trace_->largest, trace_->shared ? 0 : trace_->run.deviceSlots);
    for (const PoolTrace& pool : trace_->pools) {
        largestSlots_ = std::max(largestSlots_, int(pool.visits.blockLimit()));
        compulsory_ += pool.visits.compulsory();
    }
    const ReplayConfig nothing = timeOver(*trace_, {}, trace_->link);
    computeNs_ = nothing.computeNs;
    grid_ = gridOf(trace_->largest, largestSlots_, Elements(trace_->steps.size(), trace_->run.layers), recorded().size);
}

WhatIfQuestion WhatIf::recorded() const {
    WhatIfQuestion question;
    const auto policies = replayPolicies();
    const bool known =
        std::any_of(policies.begin(), policies.end(), [this](const auto& p) { return p.name == trace_->cachePolicy; });
    if (known) question.policy = trace_->cachePolicy;
    if (trace_->run.deviceSlots == 0) question.policy = "lru";
    const std::int64_t size =
        std::int64_t(trace_->run.deviceSlots) * (trace_->shared ? std::max(trace_->run.sequences, 1) : 1);
    question.size = int(std::clamp<std::int64_t>(size, smallestSlots(), largestSlots_));
    question.gbps = trace_->link.gigabytesPerSecond;
    question.latencyUs = trace_->link.latencyUs;
    return question;
}

int WhatIf::coldStepCount() const { return int(std::ranges::count(trace_->steps, true, &ReplayStep::cold)); }

RateSums WhatIf::recordedRates() const {
    const bool counted = coldSteps() == ColdSteps::Counted;
    RateSums sums{trace_->hits, trace_->misses, 0, 0, 0};
    if (!counted) sums.hits -= trace_->coldHits, sums.misses -= trace_->coldMisses;
    for (const ReplayStep& step : trace_->steps) {
        if (step.cold && !counted) continue;
        sums.exposedNs += step.exposedNs;
        sums.computeNs += trace_->computeNs(step);
        sums.tokens += step.tokens;
    }
    return sums;
}

void WhatIf::setSampled(CurvePolicy policy, MissCurve total) { curves_[policy] = {std::move(total), {}}; }

void WhatIf::setCurves(CurvePolicy policy, std::vector<MissCurve> pools) {
    MissCurve total = sum(pools);
    curves_[policy] = {std::move(total), std::move(pools)};
}

const MissCurve* WhatIf::total(CurvePolicy policy) const {
    const Curves& curves = curves_[policy];
    return curves.total ? &*curves.total : nullptr;
}

void WhatIf::setLocality(std::vector<LocalityProfile> pools) { locality_ = std::move(pools); }

void WhatIf::add(const std::string& policy, int size, Replayed replay) {
    const bool isNew = replays_[policy].insert_or_assign(size, std::move(replay)).second;
    if (isNew && !std::binary_search(grid_.begin(), grid_.end(), size)) added_.emplace_back(policy, size);
    evict();
}

void WhatIf::evict() {
    const auto bytes = [this] {
        return double(Elements(added_.size(), trace_->steps.size(), trace_->run.layers) * sizeof(std::int32_t));
    };
    while (added_.size() > 2 && bytes() > kOtherBytes) {
        replays_[added_.front().first].erase(added_.front().second);
        added_.erase(added_.begin());
    }
}

std::optional<MissCurve> WhatIf::curve(CurvePolicy policy, const PoolScope& scope) const {
    const Curves& curves = curves_[policy];
    const auto counted = [](const MissCurve& all) { return coldSteps() == ColdSteps::Counted ? all : all.warm(); };
    if (scope.all()) return curves.total ? std::optional(counted(*curves.total)) : std::nullopt;
    if (curves.pools.empty()) return std::nullopt;
    MissCurve total;
    for (std::size_t i = 0; i < curves.pools.size(); ++i)
        if (scope.has(trace_->pools[i])) total += curves.pools[i];
    return counted(total);
}

std::optional<LocalityProfile> WhatIf::locality(const PoolScope& scope) const {
    if (locality_.empty()) return std::nullopt;
    LocalityProfile total;
    for (std::size_t i = 0; i < locality_.size(); ++i)
        if (scope.has(trace_->pools[i])) total += locality_[i];
    return total;
}

std::vector<MissPoint> WhatIf::replayedPoints(const std::string& policy, const PoolScope& scope) const {
    std::vector<MissPoint> points;
    const auto replays = replays_.find(policy);
    if (replays == replays_.end()) return points;
    for (const auto& [size, replay] : replays->second) {
        CacheCounts counts, cold;
        if (scope.all())
            counts = replay->total, cold = replay->coldTotal;
        else
            for (std::size_t i = 0; i < replay->pools.size(); ++i)
                if (scope.has(trace_->pools[i])) counts += replay->pools[i], cold += replay->coldPools[i];
        if (coldSteps() == ColdSteps::Counted) cold = {};
        const std::int64_t misses = counts.misses - cold.misses;
        points.push_back({size, ratioOf(misses, misses + counts.hits - cold.hits)});
    }
    return points;
}

double WhatIf::missRatio(const std::string& policy, int size, const PoolScope& scope, bool* estimated) const {
    if (estimated) *estimated = false;
    for (const CurvePolicy each : {CurvePolicy::Lru, CurvePolicy::Belady}) {
        if (policy != nameOf(each)) continue;
        const auto known = curve(each, scope);
        if (estimated) *estimated = curves_[each].pools.empty();
        if (known) return known->ratio(size);
    }
    const std::vector<MissPoint> points = replayedPoints(policy, scope);
    if (points.empty()) return kNan;
    const auto above = std::lower_bound(points.begin(), points.end(), size,
                                        [](const MissPoint& point, int wanted) { return point.size < wanted; });
    if (above != points.end() && above->size == size) return above->ratio;
    if (estimated) *estimated = true;
    if (above == points.begin() || above == points.end()) return kNan;
    const MissPoint &low = *(above - 1), &high = *above;
    return low.ratio + (high.ratio - low.ratio) * double(size - low.size) / double(high.size - low.size);
}

double WhatIf::recordedMissRatio(const PoolScope& scope) const {
    if (!hasRecordedCache()) return kNan;
    std::int64_t hits = 0, misses = 0;
    for (const PoolTrace& pool : trace_->pools) {
        if (!scope.has(pool)) continue;
        for (std::size_t i = 0; i < pool.recorded.size(); ++i) {
            if (trace_->isCold(pool.steps[i]) && coldSteps() == ColdSteps::LeftOut) continue;
            hits += pool.recorded[i].hits, misses += pool.recorded[i].misses;
        }
    }
    return ratioOf(misses, hits + misses);
}

MissCauses WhatIf::causes(std::int64_t misses, int size) const {
    MissCauses causes{compulsory_, {}, {}};
    const MissCurve* bound = total(CurvePolicy::Belady);
    if (!bound || size < bound->smallest) return causes;
    // A sampled curve of Belady's policy may lie above the actual misses, so the bound is limited to these.
    const std::int64_t unavoidable = std::clamp(bound->at(size), std::min(compulsory_, misses), misses);
    causes.capacity = std::max<std::int64_t>(unavoidable - compulsory_, 0);
    causes.policy = misses - unavoidable;
    return causes;
}

MissCauses WhatIf::recordedCauses() const {
    if (!hasRecordedCache()) return {compulsory_, {}, {}};
    return causes(trace_->misses, trace_->run.deviceSlots);
}

WhatIf::Replayed WhatIf::replayed(const std::string& policy, int size) const {
    const auto replays = replays_.find(policy);
    if (replays == replays_.end()) return nullptr;
    const auto found = replays->second.find(size);
    return found == replays->second.end() ? nullptr : found->second;
}

WhatIfAnswer WhatIf::timed(const WhatIfQuestion& question, int size, const CacheReplay& replay, bool prefetch) const {
    WhatIfAnswer answer;
    answer.config =
        timeOver(*trace_, replay, question.link(), prefetch ? question.prefetch() : std::optional<Prefetch>());
    answer.config.policy = question.policy;
    answer.config.cacheBlocks = size;
    answer.causes = causes(answer.config.misses, size);
    return answer;
}

std::optional<WhatIfAnswer> WhatIf::answer(const WhatIfQuestion& question) const {
    if (const Replayed exact = replayed(question.policy, question.size))
        return timed(question, question.size, *exact, true);
    const auto replays = replays_.find(question.policy);
    if (replays == replays_.end() || replays->second.empty()) return std::nullopt;
    const auto above = replays->second.lower_bound(question.size);
    const auto high = above == replays->second.end() ? std::prev(above) : above;
    const auto low = above == replays->second.begin() ? above : std::prev(above);
    WhatIfAnswer answer = timed(question, low->first, *low->second, true);
    if (low != high) {
        const double share = double(question.size - low->first) / double(high->first - low->first);
        answer.config = between(answer.config, timed(question, high->first, *high->second, true).config, share);
    }
    answer.estimated = answer.missesEstimated = true;
    answer.config.cacheBlocks = question.size;
    for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) // exact misses from a curve
        if (question.policy == nameOf(policy) && !curves_[policy].pools.empty()) {
            const MissCurve &all = *total(policy), warm = all.warm();
            answer.config.misses = all.at(question.size);
            answer.config.hits = references() - answer.config.misses;
            answer.config.coldMisses = answer.config.misses - warm.at(question.size);
            answer.config.coldHits = all.coldReferences - answer.config.coldMisses;
            answer.missesEstimated = false;
        }
    ReplayConfig onDemand = answer.config;
    onDemand.prefetched.reset();
    answer.config.tokensPerSecond = rateSums(onDemand, ColdSteps::Counted).tokensPerSecond();
    if (answer.config.prefetched)
        answer.config.prefetched->tokensPerSecond = rateSums(answer.config, ColdSteps::Counted).tokensPerSecond();
    answer.causes = causes(answer.config.misses, question.size);
    return answer;
}

std::vector<WhatIfAnswer> WhatIf::overSizes(const WhatIfQuestion& question, bool prefetch) const {
    std::vector<WhatIfAnswer> answers;
    const auto replays = replays_.find(question.policy);
    if (replays == replays_.end()) return answers;
    for (const auto& [size, replay] : replays->second) answers.push_back(timed(question, size, *replay, prefetch));
    return answers;
}

} // namespace kvscope::ui
