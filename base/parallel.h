// Independent pieces of work on several threads.
#pragma once

#include "base/progress.h"

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace kvscope {

/// Calls body(i) for i in 0 .. count - 1 on `threads` threads (0: one per core). The calling thread is one of them, and
/// only it reports progress. Rethrows the first exception. @throws Error(Cancelled)
template <class Body>
void forEachParallel(std::size_t count, int threads, std::string_view what, const Progress& progress,
                     const std::stop_token& stop, const Body& body) {
    std::atomic<std::size_t> next = 0;
    std::exception_ptr failure;
    std::mutex mutex; // failure
    const auto work = [&](bool reports) {
        try {
            for (std::size_t i = next++; i < count; i = next++) {
                throwIfCancelled(stop);
                if (reports) report(progress, double(i) / double(count), what);
                body(i);
            }
        } catch (...) {
            const std::lock_guard lock(mutex);
            if (!failure) failure = std::current_exception();
            next = count;
        }
    };
    {
        if (threads <= 0) threads = int(std::thread::hardware_concurrency());
        std::vector<std::jthread> helpers;
        for (int i = 1; i < threads && std::size_t(i) < count; ++i) helpers.emplace_back([&work] { work(false); });
        work(true);
    }
    if (failure) std::rethrow_exception(failure);
    report(progress, 1, what);
}

} // namespace kvscope
