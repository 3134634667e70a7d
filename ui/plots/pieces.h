// Makes a picture in pieces on all cores.
#pragma once

#include <QThread>
#include <QThreadPool>

#include <algorithm>
#include <atomic>
#include <memory>

namespace kvscope::ui {

/// Calls body(i) for each i in 0 .. count - 1, on this thread and on the free threads of the global pool, and returns
/// when all calls are done. This thread itself takes every piece that no other thread has begun, so a busy pool delays
/// nothing. `body` must not throw.
template <class Body> void forEachPiece(int count, const Body& body) {
    struct Progress {
        std::atomic<int> next{0}, done{0};
    };
    const auto progress = std::make_shared<Progress>();
    // A thread that starts too late finds no piece and does not touch `body`.
    const auto work = [progress, count, &body] {
        for (int i = progress->next++; i < count; i = progress->next++) {
            body(i);
            if (++progress->done == count) progress->done.notify_all();
        }
    };
    const int helpers = std::min(count, QThread::idealThreadCount()) - 1;
    for (int i = 0; i < helpers && QThreadPool::globalInstance()->tryStart(work); ++i) {
    }
    work();
    for (int done = progress->done; done < count; done = progress->done) progress->done.wait(done);
}

} // namespace kvscope::ui
