// The workspace is all that views share: the open runs and which of them is shown, the cursor, the filter, and reads of
// traces on worker threads.
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
    bool live = false; // this process is recording the run
};

/// The place that the user looks at. Views change it through Workspace::setCursor and follow cursorChanged.
struct Cursor {
    int step = 0;
    int firstStep = -1, lastStep = -1; // selected range of steps; -1: none
    int sequence = 0, layer = 0, kvHead = 0;
    int block = -1; // -1: none
    bool operator==(const Cursor&) const = default;
};

/// Who moved the cursor: the user, or a live run that is being followed.
enum class CursorMove { Person, Follow };

/// Lives on the GUI thread. Reads run on worker threads, each with its own read-only connection.
class Workspace final : public QObject {
    Q_OBJECT
public:
    explicit Workspace(QObject* parent = nullptr);
    ~Workspace() override;

    /// Opens a trace on a worker thread, adds its runs and shows the first of them. Emits runsChanged or openFailed.
    void open(const QString& path);
    /// Adds a run that this process records and shows it at once. traceAdvanced then refreshes the run.
    /// always: false: the run is shown only if none is, or the one that was added before it.
    void addLive(const RunKey& key, bool always = true);
    void finishLive(const RunKey& key);
    void close(const RunKey& key);

    const std::vector<OpenRun>& runs() const { return runs_; }
    const OpenRun* find(const RunKey& key) const;
    const OpenRun* current() const; // null: no run is open
    const OpenRun* compare() const; // B, the first run that is compared with the current run; null: none
    /// The current run (A) and those compared with it (B, C, ...). The place of a run in the list gives its letter and
    /// its colour everywhere (ui/frame/run_names.h). Empty: no run is open.
    std::vector<const OpenRun*> sides() const;
    /// Shows another run. A run of the comparison changes places with the run shown before, and then a selected range
    /// of steps stays if the shown run has its steps.
    void setCurrent(const RunKey& key);
    void setCompare(std::optional<RunKey> key);         // compares with this run only; none: ends the comparison
    void setCompared(const RunKey& key, bool compared); // adds a run at the end, or removes it

    const Cursor& cursor() const { return cursor_; }
    /// Sets the cursor, clamped to the current run. Emits cursorChanged if the cursor changes.
    void setCursor(const Cursor& cursor, CursorMove by = CursorMove::Person);
    CursorMove lastMove() const { return lastMove_; }

    /// The filter. Every view that can apply it follows filterChanged.
    const Filter& filter() const { return filter_; }
    void setFilter(const Filter& filter); // emits filterChanged if the filter changes

    /// The text that is looked for in the prompt; empty: none. Whoever shows tokens marks those that hold it.
    const QString& soughtText() const { return soughtText_; }
    void setSoughtText(const QString& text); // emits soughtTextChanged if the text changes

    /// To be called, on any thread, when the recorder of a live run has written steps. The views get at most four
    /// `advanced` a second.
    void traceAdvanced();

    /// Runs `read` on a worker thread and then `done` on the GUI thread. `done` is not called if `context` was
    /// destroyed. If `context` asks for the same `slot` again before that, the running read is interrupted and its
    /// answer is dropped. Errors of `read` are reported by `failed`.
    template <class Result>
    void query(QObject* context, const char* slot, const RunKey& key, std::function<Result(TraceReader&)> read,
               std::function<void(Result)> done) {
        auto result = std::make_shared<std::optional<Result>>();
        submit(
            context, slot, key, [result, read = std::move(read)](TraceReader& reader) { *result = read(reader); },
            [result, done = std::move(done)] { done(std::move(**result)); });
    }

    /// Whether no read is pending. Tests and `render` wait for that.
    bool idle() const { return pending_ == 0; }

signals:
    void runsChanged();
    void currentChanged();
    void compareChanged(); // the compared runs have changed
    void cursorChanged();
    void filterChanged();
    void soughtTextChanged();
    /// The current run or a compared run has grown, or its row has changed.
    void advanced();
    void busyChanged(bool busy); // whether reads are pending
    void openFailed(const QString& path, const QString& sentence);
    void failed(const QString& sentence); // a read failed; the window shows the sentence above the views

private:
    bool compares(const RunKey& key) const;
    void submit(QObject* context, const char* slot, const RunKey& key, std::function<void(TraceReader&)> read,
                std::function<void()> done);
    struct Impl;
    std::unique_ptr<Impl> impl_;
    std::vector<OpenRun> runs_;
    std::optional<RunKey> current_;
    std::optional<RunKey> lastLive_; // the run that addLive has added last
    std::vector<RunKey> compared_;   // B, C, ...: open runs, never the current one
    Cursor cursor_;
    CursorMove lastMove_ = CursorMove::Person;
    Filter filter_;
    QString soughtText_;
    int pending_ = 0;
};

} // namespace kvscope::ui
