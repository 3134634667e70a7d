#include "bench/machine.h"

#include "base/aligned_buffer.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <dlfcn.h>
#include <sched.h>
#include <thread>
#include <vector>

namespace kvscope::bench {
namespace {

/// Runs body(thread) on all threads at once. @return seconds from the first thread's start to the last thread's end.
/// The threads themselves read the clock: a caller that lost its core for a moment would measure too little
double together(int threads, const std::function<void(int)>& body) {
    using Clock = std::chrono::steady_clock;
    std::barrier start(threads);
    std::vector<std::pair<Clock::time_point, Clock::time_point>> times(static_cast<std::size_t>(threads));
    {
        std::vector<std::jthread> team;
        team.reserve(std::size_t(threads));
        for (int t = 0; t < threads; ++t)
            team.emplace_back([&, t] {
                start.arrive_and_wait();
                times[std::size_t(t)].first = Clock::now();
                body(t);
                times[std::size_t(t)].second = Clock::now();
            });
    }
    auto [first, last] = times.front();
    for (const auto& [begin, end] : times) first = std::min(first, begin), last = std::max(last, end);
    return std::chrono::duration<double>(last - first).count();
}

std::atomic<std::uint64_t> sinkHole{0}; // uses the sums of all reads, which the compiler would drop otherwise

void readAll(const std::uint64_t* data, std::size_t words) {
    std::uint64_t a = 0, b = 0, c = 0, d = 0;
    for (std::size_t i = 0; i + 8 <= words; i += 8) {
        a += data[i] + data[i + 1];
        b += data[i + 2] + data[i + 3];
        c += data[i + 4] + data[i + 5];
        d += data[i + 6] + data[i + 7];
    }
    sinkHole.fetch_add(a + b + c + d, std::memory_order_relaxed);
}

constexpr int kChains = 12, kRounds = 2'000'000; // 12 independent sums keep two multiply-add units busy

#if defined(__x86_64__)
template <class Vector> [[gnu::always_inline]] inline float fmaLoop() {
    Vector sums[kChains];
    Vector factor, term;
    for (std::size_t i = 0; i < sizeof(Vector) / 4; ++i) factor[i] = 0.999f, term[i] = 1e-3f;
    for (auto& sum : sums) sum = term;
    for (int round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
        for (auto& sum : sums) sum = sum * factor + term;
    float total = 0;
    for (const auto& sum : sums) total += sum[0];
    return total;
}
using Lanes8 = float __attribute__((vector_size(32)));
using Lanes16 = float __attribute__((vector_size(64)));
[[gnu::target("avx2,fma"), gnu::optimize("O3,fp-contract=fast")]] float fmaAvx2() { return fmaLoop<Lanes8>(); }
[[gnu::target("avx512f"), gnu::optimize("O3,fp-contract=fast")]] float fmaAvx512() { return fmaLoop<Lanes16>(); }
#endif

} // namespace

double seconds(const std::function<void()>& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int hardwareThreads() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
}

double streamingReadBytesPerSecond(std::size_t bytes, int threads, int repeats) {
    AlignedBuffer<std::uint64_t> data(bytes / 8);
    const std::size_t share = data.size() / std::size_t(threads);
    double best = 1e30;
    for (int repeat = 0; repeat < repeats; ++repeat)
        best = std::min(best, together(threads, [&](int t) { readAll(data.data() + std::size_t(t) * share, share); }));
    return double(share) * double(threads) * 8 / best;
}

double registerFmaFlops(int threads) {
#if defined(__x86_64__)
    const bool wide = __builtin_cpu_supports("avx512f");
    if (!wide && !__builtin_cpu_supports("fma")) return 0;
    double best = 1e30;
    for (int repeat = 0; repeat < 5; ++repeat)
        best = std::min(
            best, together(threads, [&](int) { sinkHole.fetch_add(std::uint64_t(wide ? fmaAvx512() : fmaAvx2())); }));
    return 2.0 * (wide ? 16 : 8) * kChains * double(kRounds) * threads / best;
#else
    (void)threads;
    return 0;
#endif
}

std::optional<double> openBlasFlops(int m, int n, int k, int repeats) {
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) return std::nullopt;
    using Gemm =
        void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
    const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cblas_sgemm"));
    if (!gemm) return std::nullopt;
    AlignedBuffer<float> a(std::size_t(m) * std::size_t(k)), b(std::size_t(n) * std::size_t(k)),
        c(std::size_t(m) * std::size_t(n));
    std::fill(a.begin(), a.end(), 1.f);
    std::fill(b.begin(), b.end(), 0.5f);
    constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
    double best = 1e30;
    for (int repeat = 0; repeat < repeats; ++repeat)
        best = std::min(best, seconds([&] {
                            gemm(kRowMajor, kNoTranspose, kTranspose, m, n, k, 1.f, a.data(), k, b.data(), k, 0.f,
                                 c.data(), n);
                        }));
    return 2.0 * m * n * k / best;
}

} // namespace kvscope::bench
