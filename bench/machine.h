// What this machine can do at best, measured in the same run as what is compared with it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace kvscope::bench {

/// Seconds of one call.
double seconds(const std::function<void()>& body);

/// Bytes per second that `threads` threads read from `bytes` of memory, best of `repeats` passes over the same buffer.
double streamingReadBytesPerSecond(std::size_t bytes, int threads, int repeats);

/// float32 multiply-adds from registers only, on `threads` threads, in floating-point operations per second.
double registerFmaFlops(int threads);

/// C[m,n] = A[m,k] B[n,k]^T by OpenBLAS, when a shared library of it is installed: best of `repeats`, flops per second.
std::optional<double> openBlasFlops(int m, int n, int k, int repeats);

int hardwareThreads();

} // namespace kvscope::bench
