// The only thing the views share: which runs are open, which is shown, the common cursor and filter, and
// asynchronous reads.
#pragma once

#include "profiler/read/trace_reader.h"
#include "ui/frame/filter.h"

#include <QObject>
#include <QPointer>
#include <QString>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace kvscope::ui {

struct RunKey {
    QString path;
    int runId = 0;
    bool operator==(const RunKey&) const = default;
};

struct OpenRun {
    RunKey key;
    RunRow row;
    bool live = false; // being recorded by this process
};

/// Where the person looks. Views change it through Workspace::setCursor and follow cursorChanged.
struct Cursor {
    int step = 0;
    int firstStep = -1, lastStep = -1; // selected range; -1: none
    int sequence = 0, layer = 0, kvHead = 0;
    int block = -1; // -1: none
    bool operator==(const Cursor&) const = default;
};

/// Who moved the cursor: a person, or the newest step of a live run that is being followed.
enum class CursorMove { Person, Follow };

/// Lives on the GUI thread. Reads run on worker threads, each with its own read-only connection.
class Workspace final : public QObject {
    Q_OBJECT
public:
    explicit Workspace(QObject* parent = nullptr);
    ~Workspace() override;

    /// Opens a trace off the GUI thread, adds its runs and shows the first; emits openFailed or runsChanged.
    void open(const QString& path);
    /// A run this process records: shown at once, refreshed by traceAdvanced.
    void addLive(const RunKey& key);
    void finishLive(const RunKey& key);
    void close(const RunKey& key);

    const std::vector<OpenRun>& runs() const { return runs_; }
    const OpenRun* find(const RunKey& key) const;
    const OpenRun* current() const; // null: nothing is open
    const OpenRun* compare() const; // B, the first run beside the current one; null: none
    /// A, B, C, ...: the current run and those laid beside it; their places give letters and colours everywhere
    /// (models/run_names.h). Empty: nothing is open.
    std::vector<const OpenRun*> sides() const;
    /// A run of the comparison changes places with the one shown before, and a range of steps stays if both have it.
    void setCurrent(const RunKey& key);
    void setCompare(std::optional<RunKey> key);         // that run alone; none: no comparison
    void setCompared(const RunKey& key, bool compared); // one more at the end, or one less

    const Cursor& cursor() const { return cursor_; }
    /// Clamps to the current run; emits cursorChanged when it differs.
    void setCursor(const Cursor& cursor, CursorMove by = CursorMove::Person);
    CursorMove lastMove() const { return lastMove_; }

    /// What the views count; every view that can apply it follows filterChanged.
    const Filter& filter() const { return filter_; }
    void setFilter(const Filter& filter); // emits filterChanged when it differs

    /// Any thread: the writer committed something. Coalesced to at most four `advanced` a second.
    void traceAdvanced();

    /// Runs `read` on a worker and `done` on the GUI thread, unless `context` died or `slot` was asked again meanwhile
    /// (late answers are dropped, and the running read is interrupted). Failures go to `failed`.
    template <class Result>
    void query(QObject* context, const char* slot, const RunKey& key, std::function<Result(TraceReader&)> read,
               std::function<void(Result)> done) {
        auto result = std::make_shared<std::optional<Result>>();
        submit(
            context, slot, key, [result, read = std::move(read)](TraceReader& reader) { *result = read(reader); },
            [result, done = std::move(done)] { done(std::move(**result)); });
    }

    /// True while no read is pending; tests and `render` wait for it.
    bool idle() const { return pending_ == 0; }

signals:
    void runsChanged();
    void currentChanged();
    void compareChanged(); // another B, or others beside it
    void cursorChanged();
    void filterChanged();
    void advanced();             // the current run or one beside it grew, or its row changed
    void busyChanged(bool busy); // reads are pending
    void openFailed(const QString& path, const QString& sentence);
    void failed(const QString& sentence); // a read failed; shown in the status bar

private:
    bool compares(const RunKey& key) const;
    void submit(QObject* context, const char* slot, const RunKey& key, std::function<void(TraceReader&)> read,
                std::function<void()> done);
    struct Impl;
    std::unique_ptr<Impl> impl_;
    std::vector<OpenRun> runs_;
    std::optional<RunKey> current_;
    std::vector<RunKey> compared_; // B, C, ...: open, and never the current one
    Cursor cursor_;
    CursorMove lastMove_ = CursorMove::Person;
    Filter filter_;
    int pending_ = 0;
};

} // namespace kvscope::ui
