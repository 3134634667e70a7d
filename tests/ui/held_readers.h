// Keeps a workspace's readers waiting, so that a test sees what a view shows while it reads.
#pragma once

#include "ui/frame/workspace.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

namespace kvscope::ui {

class HeldReaders {
public:
    HeldReaders(Workspace& workspace, const RunKey& run) {
        constexpr int kMoreThanWorkers = 8;
        for (int i = 0; i < kMoreThanWorkers; ++i)
            workspace.query<int>(
                context_.get(), ("held " + std::to_string(i)).c_str(), run,
                [held = held_](TraceReader&) {
                    while (*held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    return 0;
                },
                [](int) {});
    }
    ~HeldReaders() { release(); }
    void release() { *held_ = false; }

private:
    std::unique_ptr<QObject> context_ = std::make_unique<QObject>();
    std::shared_ptr<std::atomic<bool>> held_ = std::make_shared<std::atomic<bool>>(true);
};

} // namespace kvscope::ui
