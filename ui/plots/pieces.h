// A picture made in pieces on all cores.
#pragma once

#include <QThread>
#include <QThreadPool>

#include <algorithm>
#include <atomic>
#include <memory>

namespace kvscope::ui {

/// body(i) for i in 0 .. count - 1, on this thread and on those of the pool that are free; returns when all are done. A
/// piece that nobody has begun is done here: a busy pool delays nothing. `body` must not throw.
template <class Body> void forEachPiece(int count, const Body& body) {
    struct Progress {
        std::atomic<int> next{0}, done{0};
    };
    const auto progress = std::make_shared<Progress>();
    const auto work = [progress, count, &body] { // one that begins too late finds no piece, and `body` is not touched
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
