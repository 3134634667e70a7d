#include "core/serve/rungs.h"

#include "base/error.h"
#include "base/indexed.h"
#include "base/json_reading.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope::serve {

const std::vector<Rung>& rungs() {
    constexpr auto lru = CachePlan::GlobalLru;
    constexpr auto calls = TransferPlan::Calls, kernel = TransferPlan::Kernel;
    constexpr auto chunks = PrefillPlan::Chunks, layers = PrefillPlan::Layers;
    static const std::vector<Rung> list = {
        {"full", "full attention, everything resident, prompts in chunks", false, false, lru, calls, false, chunks},
        {"+sparse", "a sparse method", true, false, lru, calls, false, chunks},
        {"+offload", "the host store, a copy call per missing block", true, true, lru, calls, false, chunks},
        {"+kernel", "one kernel gathers the missing blocks of a layer", true, true, lru, kernel, false, chunks},
        {"+control", "admission by working sets", true, true, lru, kernel, true, chunks},
        {"+layers", "prompts cut by layers", true, true, lru, kernel, true, layers},
        {"+partition", "a fixed part of the device for every request", true, true, CachePlan::Partition, kernel, true,
         layers}};
    return list;
}

std::vector<Rung> rungsNamed(const std::string& names) {
    if (names == "all") return rungs();
    Numbered<bool> wanted(rungs().size(), false);
    std::string_view rest = names;
    do {
        const std::string_view name = rest.substr(0, rest.find(','));
        const auto found =
            std::find_if(rungs().begin(), rungs().end(), [&](const Rung& rung) { return name == rung.name; });
        if (found == rungs().end()) {
            std::vector<std::string> known;
            for (const Rung& rung : rungs()) known.emplace_back(rung.name);
            throw Error(ErrorKind::BadInput, fmt::format("no rung is named '{}'", shown(std::string(name))),
                        fmt::format("write all, or some of {}", fmt::join(known, ",")));
        }
        wanted[found - rungs().begin()] = true;
        rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    } while (!rest.empty());
    std::vector<Rung> out;
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i]) out.push_back(rungs()[i]);
    return out;
}

const std::vector<std::string>& knobsOfRungs() {
    static const std::vector<std::string> keys = {"offload", "working_set_control", "cache", "transfers", "prefill"};
    return keys;
}

SchedulerOptions onRung(const Rung& rung, SchedulerOptions base) {
    base.offload = rung.offload;
    base.cache = rung.cache;
    base.transfers = rung.transfers;
    base.workingSetControl = rung.workingSetControl;
    base.prefill = rung.prefill;
    if (rung.cache == CachePlan::Partition && base.partitionBlocks == 0) base.partitionBlocks = 1; // as few as may be
    return base;
}

ServiceCosts costsOnRung(const Rung& rung, const ServiceCosts& sparse) {
    if (rung.sparse) return sparse;
    ServiceCosts full = sparse;
    full.decodeUsPerKtoken = sparse.fullUsPerKtoken;
    full.shape.indexBytesPerToken = 0;
    return full;
}

} // namespace kvscope::serve
