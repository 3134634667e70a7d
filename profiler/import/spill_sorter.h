// Sorts more records than should lie in memory: it sorts each full buffer, appends it to a nameless file as one run,
// and merges the runs at the end.
#pragma once

#include "profiler/import/spill_file.h"

#include <algorithm>
#include <cstdint>
#include <queue>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvscope {

/// Record must be trivially copyable, and its operator< must order any two records; a sequence number decides between
/// records that are otherwise equal.
template <class Record> class SpillSorter {
    static_assert(std::is_trivially_copyable_v<Record>);

public:
    /// `folder`: where the file is made once there are `atOnce` records, the most that stay in memory.
    explicit SpillSorter(std::string folder, std::size_t atOnce = std::size_t(1) << 20)
        : folder_(std::move(folder)), atOnce_(atOnce) {}

    /// @throws Error(Storage) if the disk is full
    void add(const Record& record) {
        buffer_.push_back(record);
        ++count_;
        if (buffer_.size() >= atOnce_) spill();
    }
    std::int64_t count() const { return count_; }

    /// Hands all records to `take` in order and forgets them; call it once. @throws Error(Storage), and what `take`
    /// throws
    template <class Take> void drain(Take take) {
        if (runs_.empty()) {
            std::sort(buffer_.begin(), buffer_.end());
            for (const Record& record : buffer_) take(record);
            buffer_ = {};
            return;
        }
        if (!buffer_.empty()) spill();
        buffer_ = {};
        std::vector<Run> runs = std::exchange(runs_, {});
        const auto later = [&](std::size_t a, std::size_t b) { return runs[b].front() < runs[a].front(); };
        std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(later)> next(later);
        for (std::size_t i = 0; i < runs.size(); ++i)
            if (refill(runs[i])) next.push(i);
        while (!next.empty()) {
            const std::size_t i = next.top();
            next.pop();
            const Record record = runs[i].front();
            if (++runs[i].at < runs[i].read.size() || refill(runs[i])) next.push(i);
            take(record);
        }
    }

private:
    static constexpr std::int64_t kReadAtOnce = 4096; // records of each run in memory while merging

    struct Run {
        std::int64_t next = 0, end = 0; // records of the file: the next to read, and one after the run's last
        std::vector<Record> read;
        std::size_t at = 0;
        const Record& front() const { return read[at]; }
    };

    void spill() {
        std::sort(buffer_.begin(), buffer_.end());
        if (!file_.isOpen()) file_.open(folder_);
        file_.append(buffer_.data(), buffer_.size() * sizeof(Record));
        Run run;
        run.next = written_;
        written_ += std::int64_t(buffer_.size());
        run.end = written_;
        runs_.push_back(std::move(run));
        buffer_.clear();
    }
    bool refill(Run& run) {
        const std::int64_t count = std::min(kReadAtOnce, run.end - run.next);
        run.read.resize(std::size_t(count));
        run.at = 0;
        if (count == 0) return false;
        file_.read(run.read.data(), std::size_t(count) * sizeof(Record), run.next * std::int64_t(sizeof(Record)));
        run.next += count;
        return true;
    }

    std::string folder_;
    std::size_t atOnce_;
    std::vector<Record> buffer_;
    std::vector<Run> runs_;
    SpillFile file_;
    std::int64_t count_ = 0, written_ = 0;
};

} // namespace kvscope
