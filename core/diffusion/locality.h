// LoSA's choices for one block in one layer: how much each token's queries changed, which tokens are active, and which
// pages of the prefix their queries choose. No memory of its own and no device: numbers in, numbers out.
#pragma once

#include "core/select/denoising.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Mean over channels of (now - before)^2 of one token's query heads. Below 1e-10 of the mean square of `now` it is 0:
/// the token's queries are the same numbers, computed another time.
float changeScore(std::span<const float> now, std::span<const float> before);

/// The active tokens of a block as bits: the options.active most changed, of equal ones the lower position, or all that
/// reach options.activeThreshold.
std::uint64_t activeTokens(const DenoiseOptions& options, std::span<const float> changes);

/// All of a block's tokens as bits.
constexpr std::uint64_t allTokens(int block) {
    return block >= 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << block) - 1;
}

/// The pages that one query chooses among the prefix's complete ones: the pagesPerQuery highest scores, of equal ones
/// the lower page. Sets their places in `chosen`, [pages].
void choosePages(std::span<const float> scores, int pagesPerQuery, std::span<std::uint8_t> chosen,
                 std::vector<std::int32_t>& order);

} // namespace kvscope
