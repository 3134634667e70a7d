#include "kernels/cpu/thread_team.h"

#include <algorithm>
#include <cstdlib>
#include <sched.h>

namespace kvscope::cpu {
namespace {

int allowedCores() {
    if (const char* limit = std::getenv("KVSCOPE_THREADS"))
        if (const int threads = std::atoi(limit); threads >= 1 && threads <= 1024) return threads;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, int(std::thread::hardware_concurrency()));
}

inline void pauseBriefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

constexpr int kSpins = 4000; // pauses before a thread sleeps: about 100 us, longer than any gap inside a decode step

} // namespace

ThreadTeam::ThreadTeam(int threads) {
    const int cores = allowedCores();
    const int count = threads > 0 ? threads : cores;
    // With more threads than cores, a spinning thread would take time from the one it waits for.
    spins_ = count <= cores ? kSpins : 0;
    for (int thread = 1; thread < count; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadTeam::~ThreadTeam() {
    stop_.store(true, std::memory_order_seq_cst);
    wake_.fetch_add(1, std::memory_order_seq_cst);
    wake_.notify_all();
}

void ThreadTeam::run(int n, Job job, void* context) {
    job_ = job;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    round_ = (round_ + 1) & ((std::uint64_t(1) << 24) - 1);
    ticket_.store(round_ << 2 * kFieldBits | std::uint64_t(n) << kFieldBits,
                  std::memory_order_seq_cst); // publishes the job
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
        wake_.fetch_add(1, std::memory_order_seq_cst);
        wake_.notify_all();
    }
    while (takeOne(0)) {
    }
    for (int spin = 0; done_.load(std::memory_order_acquire) != n; ++spin) {
        if (spin < kSpins)
            pauseBriefly();
        else
            std::this_thread::yield(); // a worker may have lost its core in the middle of a piece
    }
}

/// Takes one piece of the current job and does it. @return false if no piece was left
bool ThreadTeam::takeOne(int thread) {
    const std::uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    const std::uint64_t piece = ticket & kFieldMask, pieces = ticket >> kFieldBits & kFieldMask;
    if (piece >= pieces) return false;
    job_(context_, int(piece), thread);
    done_.fetch_add(1, std::memory_order_release);
    return true;
}

void ThreadTeam::work(int thread) {
    std::uint64_t seen = 0; // the last round of jobs that this worker has seen
    for (;;) {
        const auto fresh = [&] { return roundOf(ticket_.load(std::memory_order_seq_cst)) != seen; };
        for (int spin = 0; spin < spins_ && !fresh() && !stop_.load(std::memory_order_relaxed); ++spin) pauseBriefly();
        if (!fresh() && !stop_.load(std::memory_order_acquire)) {
            const std::uint32_t before = wake_.load(std::memory_order_seq_cst);
            sleeping_.fetch_add(1, std::memory_order_seq_cst);
            if (!fresh() && !stop_.load(std::memory_order_seq_cst)) wake_.wait(before, std::memory_order_seq_cst);
            sleeping_.fetch_sub(1, std::memory_order_relaxed);
        }
        if (stop_.load(std::memory_order_acquire)) return;
        const std::uint64_t now = roundOf(ticket_.load(std::memory_order_acquire));
        if (now == seen) continue;
        while (takeOne(thread)) {
        }
        seen = now; // a job published in the meantime has another number, so the next pass takes it up
    }
}

} // namespace kvscope::cpu
