// A team of threads for very short jobs. The caller works too, and takes every piece that no worker has begun: a worker
// that lost its core to somebody else delays nothing but the piece it is in the middle of. Idle workers spin briefly,
// so that the small pieces of a decode step are handed out in well under a microsecond, and then sleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvscope::cpu {

class ThreadTeam {
public:
    /// 0: KVSCOPE_THREADS from the environment, else as many threads as cores this process may use.
    explicit ThreadTeam(int threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int threads() const { return int(workers_.size()) + 1; }

    /// body(i, thread) for every i in [0, n), in pieces of one; returns when all are done. body must not throw, and
    /// what it computes must not depend on `thread`, which only tells scratch memory apart.
    template <class Body> void each(int n, Body&& body) {
        if (n <= 1 || workers_.empty()) {
            for (int i = 0; i < n; ++i) body(i, 0);
            return;
        }
        for (int first = 0; first < n; first += kMostPieces) {
            struct Context {
                std::remove_reference_t<Body>* body;
                int first;
            } context{&body, first};
            run(
                std::min(n - first, kMostPieces),
                [](void* erased, int i, int thread) {
                    auto* c = static_cast<Context*>(erased);
                    (*c->body)(c->first + i, thread);
                },
                &context);
        }
    }

    /// body(begin, end) over [0, n) in contiguous pieces, multiples of `grain` but for the last; a few pieces per
    /// thread.
    template <class Body> void split(std::int64_t n, std::int64_t grain, Body&& body) {
        if (n <= 0) return;
        const std::int64_t grains = (n + grain - 1) / grain, pieces = std::min<std::int64_t>(grains, 4 * threads());
        if (pieces <= 1 || workers_.empty()) return body(std::int64_t(0), n);
        each(int(pieces), [&](int i, int) {
            const std::int64_t begin = grains * i / pieces * grain,
                               end = std::min(n, grains * (i + 1) / pieces * grain);
            if (begin < end) body(begin, end);
        });
    }

private:
    static constexpr int kMostPieces = 1 << 16;
    using Job = void (*)(void* context, int i, int thread);

    void run(int n, Job job, void* context);
    void work(int thread);
    bool takeOne(int thread);

    // One word holds the round (24 bits), its number of pieces (20) and the next piece (20), so that a ticket says by
    // itself whether it is valid: a late worker never reads the fields of a job that is over.
    static constexpr int kFieldBits = 20;
    static constexpr std::uint64_t kFieldMask = (std::uint64_t(1) << kFieldBits) - 1;
    static std::uint64_t roundOf(std::uint64_t ticket) { return ticket >> 2 * kFieldBits; }

    Job job_ = nullptr;
    void* context_ = nullptr;
    std::uint64_t round_ = 0;
    int spins_;
    alignas(64) std::atomic<std::uint64_t> ticket_{0};
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<std::uint32_t> wake_{0}; // changes when sleepers must look again
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::jthread> workers_;
};

} // namespace kvscope::cpu
