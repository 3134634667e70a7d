// Measures what this machine can do at best, in the same run as the numbers that are compared with it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace kvscope::bench {

/// Wall time of one call in seconds.
double seconds(const std::function<void()>& body);

/// Bytes per second at which `threads` threads read a buffer of `bytes`; the best of `repeats` passes over the buffer.
double streamingReadBytesPerSecond(std::size_t bytes, int threads, int repeats);

/// float32 multiply-adds from registers only, on `threads` threads, in floating-point operations per second.
double registerFmaFlops(int threads);

/// Operations per second of OpenBLAS for C[m,n] = A[m,k] B[n,k]^T, the best of `repeats`; nothing where no shared
/// library of OpenBLAS is installed.
std::optional<double> openBlasFlops(int m, int n, int k, int repeats);

int hardwareThreads();

} // namespace kvscope::bench
