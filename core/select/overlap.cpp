#include "core/select/overlap.h"

namespace kvscope::select {
namespace {

constexpr const char *kOverlap = "overlap", *kNothing = "none", *kHalves = "halves";

} // namespace

Parameter overlap() {
    return Parameter{
        kOverlap,
        ParameterType::Choice,
        kNothing,
        0,
        0,
        "",
        "What a GPU computes while blocks travel. none: nothing, a layer waits for what it misses. halves: "
        "half of the sequences while the other half's blocks travel; each half reads all weights, so "
        "this pays where the link takes longer than they do, from about 64 sequences on. The same blocks "
        "are chosen, but sums come in another order, as in a batch of half the size.",
        {kNothing, kHalves}}
        .within(ParameterScope::Offloading);
}

bool overlapsHalves(const ParameterValues& values) { return values.has(kOverlap) && values.text(kOverlap) == kHalves; }

} // namespace kvscope::select
