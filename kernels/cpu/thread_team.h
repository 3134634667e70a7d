// A team of threads for very short jobs. The caller of a job works too, and takes every piece that no worker has begun.
// A worker whose core is taken by another program therefore delays only the piece it is working on. An idle worker
// spins for a moment before it sleeps, so that the small pieces of a decode step are handed out in well under a
// microsecond.
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

    /// Calls body(i, thread) for every i in [0, n), each a piece of its own, and returns when all calls are done. body
    /// must not throw. `thread` chooses scratch memory; what body computes must not depend on it.
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

    /// Calls body(begin, end) for contiguous pieces of [0, n), a few pieces for each thread, and returns when all calls
    /// are done. Every piece but the last is a multiple of `grain`.
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

    // A ticket is one word: the number of the round (24 bits), the round's number of pieces (20) and the next piece
    // (20). A worker that takes a ticket late sees from the word alone that the round is over, and reads none of the
    // job's fields.
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
