// Latent attention: the widths that the kernels are made for.
#pragma once

namespace kvscope::cuda {

/// A key is latent channels, which are the value, then an eighth as many rotated ones: 512 + 64 (DeepSeek,
/// GLM-4.7-Flash) and 256 + 32 (MiniCPM3).
constexpr int kLatentDim = 576, kSmallLatentDim = 288;
constexpr int latentValueOf(int dim) { return dim / 9 * 8; }
constexpr bool hasLatentKernels(int dim, int value) {
    return (dim == kLatentDim || dim == kSmallLatentDim) && value == latentValueOf(dim);
}

} // namespace kvscope::cuda
