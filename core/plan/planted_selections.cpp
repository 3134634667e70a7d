#include "core/plan/planted_selections.h"

#include "base/error.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <random>
#include <string_view>

namespace kvscope {
namespace {

/// Mean locality of each layer of nosa-tiny with method nosa, of steps that open no block: run 1 of
/// resources/samples/h200-nosa-tiny.kvtrace. docs/serving.md has the command.
const std::vector<double>& nosaTiny() {
    static const std::vector<double> list = {0.928, 0.852, 0.850, 0.868, 0.877, 0.934, 0.889, 0.900};
    return list;
}

constexpr int kPairs = 160; // of steps that are drawn for one point of a curve

/// Puts the `count` largest of `order` by `score` first.
template <class Score> void bestFirst(std::vector<int>& order, int from, int count, const Score& score) {
    const auto begin = order.begin() + from;
    if (count > 0 && begin + count < order.end())
        std::nth_element(begin, begin + count - 1, order.end(), [&](int a, int b) { return score(a) > score(b); });
}

} // namespace

double PlantedRates::rateAt(int index) { return std::pow(2.0, -0.5 * index); }

PlantedRates::PlantedRates(const SelectionBudget& budget, int mostBlocks) : budget_(budget) {
    const int forced = budget.sink + budget.window + (budget.windowAddsCurrent ? 1 : 0);
    const int chosen = budget.queryAware + budget.queryAgnostic;
    if (budget.queryAware == 0) return;
    // Contexts for which a curve is drawn: each has 19 % more blocks to choose among than the one before. They lie
    // closer where few blocks are left out, because one block more changes the rate most there. The first context has
    // one block more than a selection.
    for (double free = chosen + 1;; free = std::max(free + 1, std::min(free * 1.19, chosen + 1.3 * (free - chosen)))) {
        const int blocks = forced + int(free);
        curves_.push_back(curveOf(blocks, kPairs));
        if (blocks >= mostBlocks) break;
    }
}

/// Draws pairs of consecutive steps, with the same random numbers for all rates.
PlantedRates::Curve PlantedRates::curveOf(int blocks, int pairs) const {
    const int forced = budget_.sink + budget_.window + (budget_.windowAddsCurrent ? 1 : 0);
    const int aware = budget_.queryAware, agnostic = budget_.queryAgnostic, free = blocks - forced;
    std::mt19937_64 random(std::uint64_t(blocks) * 2654435761u + 17);
    const auto draw = [&] { return double(random() >> 11) * 0x1p-53; };
    Numbered<double> before(free), anew(free), turn(free), other(free);
    Numbered<int> order(free);
    Numbered<std::uint8_t> was(free);
    Numbered<double> kept(kRates, 0);
    const auto choose = [&](const auto& score) {
        for (int b = 0; b < free; ++b) order[b] = b;
        bestFirst(order, 0, aware, score);
        bestFirst(order, std::min(aware, free), agnostic, [&](int b) { return other[b]; });
        return std::min(aware + agnostic, free);
    };
    for (int pair = 0; pair < pairs; ++pair) {
        for (int b = 0; b < free; ++b) before[b] = draw(), anew[b] = draw(), turn[b] = draw(), other[b] = draw();
        std::fill(was.begin(), was.end(), std::uint8_t(0));
        const int count = choose([&](int b) { return before[b]; });
        for (int i = 0; i < count; ++i) was[order[i]] = 1;
        for (int index = 0; index < kRates; ++index) {
            const double rate = rateAt(index);
            choose([&](int b) { return turn[b] < rate ? anew[b] : before[b]; });
            int both = forced;
            for (int i = 0; i < count; ++i) both += was[order[i]];
            kept[index] += double(both) / double(forced + count);
        }
    }
    Curve curve{blocks, std::move(kept)};
    for (double& locality : curve.localities) locality /= pairs;
    return curve;
}

/// The rates fall and the localities rise along a curve, which ends at a locality of 1 with a rate of 0.
double PlantedRates::rateOn(const Curve& curve, double locality) const {
    if (locality >= 1) return 0;
    if (locality <= curve.localities.front()) return 1;
    double rate = rateAt(0), at = curve.localities.front();
    for (int i = 1; i <= kRates; ++i) {
        const double nextRate = i < kRates ? rateAt(i) : 0, next = i < kRates ? curve.localities[i] : 1;
        if (locality <= next && next > at) return rate + (nextRate - rate) * (locality - at) / (next - at);
        rate = nextRate, at = next;
    }
    return 0;
}

std::uint64_t PlantedRates::rateOf(int blocks, double locality) const {
    if (curves_.empty() || blocks < curves_.front().blocks) return 0; // everything is selected
    const auto above = std::upper_bound(curves_.begin(), curves_.end(), blocks,
                                        [](int b, const Curve& curve) { return b < curve.blocks; });
    double rate = rateOn(*(above - 1), locality);
    if (above != curves_.end()) {
        const Curve &low = *(above - 1), &high = *above;
        rate += (rateOn(high, locality) - rate) * double(blocks - low.blocks) / double(high.blocks - low.blocks);
    }
    return std::uint64_t(rate * double(kPlantedWhole));
}

double PlantedSelections::localityOf(int layer, int layers) const {
    const double at = layers > 1 ? double(layer) * double(localities_.size() - 1) / double(layers - 1) : 0;
    const auto low = std::min(std::size_t(at), localities_.size() - 1),
               high = std::min(low + 1, localities_.size() - 1);
    return localities_[low] + (localities_[high] - localities_[low]) * (at - double(low));
}

std::vector<PlantedStream> PlantedSelections::streams(std::uint64_t seed, int blocks, int layers) const {
    std::vector<PlantedStream> out;
    out.reserve(std::size_t(layers));
    for (int layer = 0; layer < layers; ++layer)
        out.push_back({plantedHash(std::uint32_t(seed), std::uint32_t(seed >> 32), std::uint32_t(layer)),
                       rates_->rateOf(blocks, localityOf(layer, layers))});
    return out;
}

std::vector<double> plantedLocalities(const std::string& text) {
    if (text == "nosa-tiny") return nosaTiny();
    std::vector<double> list;
    for (std::string_view rest = text;;) {
        const std::string_view part = rest.substr(0, rest.find(','));
        double value = -1;
        const auto [end, fault] = std::from_chars(part.data(), part.data() + part.size(), value);
        if (fault != std::errc() || end != part.data() + part.size() || !(value >= 0 && value <= 1))
            throw Error(ErrorKind::BadInput, fmt::format("cannot read localities '{}'", text),
                        "write nosa-tiny, or numbers from 0 to 1 separated by commas, e.g. 0.9,0.95");
        list.push_back(value);
        if (part.size() == rest.size()) return list;
        rest.remove_prefix(part.size() + 1);
    }
}

} // namespace kvscope
