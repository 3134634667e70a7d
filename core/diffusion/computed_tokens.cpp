#include "core/diffusion/computed_tokens.h"

#include <algorithm>
#include <iterator>

namespace kvscope {

void ComputedTokens::add(int first, int end) {
    for (int position = first; position < end; ++position) positions.push_back(position);
}

void ComputedTokens::compare(int block, int tokens) {
    const bool all = int(positions.size()) == tokens;
    kept = -1;
    if (comparable_ && block_ == block && !all) {
        std::vector<std::int32_t> both;
        std::set_intersection(positions.begin(), positions.end(), before_.begin(), before_.end(),
                              std::back_inserter(both));
        kept = int(both.size());
    }
    comparable_ = !all;
    block_ = block;
}

std::uint64_t ComputedTokens::among(int first, int tokens) const {
    constexpr int kBits = 64;
    std::uint64_t bits = 0;
    for (const std::int32_t position : positions)
        if (const int place = position - first; place >= 0 && place < std::min(tokens, kBits))
            bits |= std::uint64_t(1) << place;
    return bits;
}

} // namespace kvscope
