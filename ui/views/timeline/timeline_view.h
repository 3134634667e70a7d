// Every span of a run over time: what ran when, on which track, what waited for what, with the counters above.
#pragma once

#include "profiler/read/self_time.h"
#include "profiler/read/span_rows.h"
#include "ui/frame/number_tables.h"
#include "ui/frame/remembers.h"
#include "ui/frame/shows_time.h"
#include "ui/frame/view.h"
#include "ui/timeline/span_facts.h"
#include "ui/timeline/timeline_canvas.h"
#include "ui/timeline/timeline_panel.h"
#include "ui/views/marks_range.h"
#include "ui/views/note_tasks.h"
#include "ui/views/timeline/timeline_feed.h"
#include "ui/views/timeline/timeline_tools.h"

#include <QElapsedTimer>
#include <QTimer>

#include <memory>
#include <optional>
#include <string>
#include <vector>

class QLabel;
class QMenu;
class QPainter;
class QSplitter;
class QStackedWidget;

namespace kvscope::ui {

class LoadingStrip;
class NoteLabel;

class TimelineView final : public View, public Remembers, public MarksRange, public NumberTables, public ShowsTime {
    Q_OBJECT
public:
    TimelineView(Workspace& workspace, QWidget* parent);
    ~TimelineView() override;

    bool exportImage(const QString& path, QSize size) override;
    QString exportCsv() const override; // self times
    NumberWriter numbers() const override;
    QStringList numberTables() const override;
    void chooseNumberTable(int table) override { numberTable_ = table; }
    std::optional<ExportRange> markedRange() const override;
    QString sql() const override;
    void copyImage() override;
    void showTime(double fromNs, double toNs) override;
    void resetZoom() override { canvas_->resetZoom(); }
    void undoZoom() override { canvas_->undoZoom(); }
    void redoZoom() override { canvas_->redoZoom(); }
    void applyTheme(const Theme&) override { canvas_->update(); }
    QVariantMap remembered() const override;
    void recall(const QVariantMap& state) override;

    /// Bytes that spans may take; reading stops there. Half of what the machine has left, unless it is set.
    void setMemoryLimit(std::size_t bytes) { memoryLimit_ = bytes; }
    /// The actions for a place, which a right click shows.
    std::unique_ptr<QMenu> menuOf(const TimelinePlace& place);

protected:
    void showEvent(QShowEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;

private:
    void fitPanel();
    void makeRoomForTimes();
    void makeRoomForFacts();
    void connectTools();
    void connectCanvas();
    void connectPanel();
    void reload();
    void take(const SpanBatch& batch, const GaugeBatch& gauges);
    void showEmpty(const QString& text);
    QString textWithoutSpans() const;
    void updateNote();

    // How far it is read, and what is made of it in the background (timeline_reading.cpp).
    QWidget* makeReadingStrip();
    void showReading();
    void stopReading();
    void readOn();
    void readRows();         // where spans and arrows lie in the file, so that a click finds them at once
    bool isComplete() const; // every span is read and in its place
    NumberWriter completeTimes() const;
    ExportRange shownRange() const; // the marked range, or what is shown

    // The chosen span, and the cursor.
    void choose(SpanRef ref, bool reveal);
    void explain();
    void showFacts(const SpanContext& context);
    void showTooltip(SpanRef ref, QPoint global);
    void forget(); // no span is chosen
    void cursorMoved();
    void revealCursor();
    void showWantedTime(); // shows wanted_ once it is read
    void findHome(bool follow);
    void moveCursor(int steps, int layers);
    void jumpCursor(bool toEnd);
    void showDecode(bool whole);
    void followFlow(bool forward);
    void filterChanged();

    // Self times (timeline_times.cpp), added up between the frames.
    void showTimes();
    SelfTimeSum timesOf(const TimeRange& range) const; // not begun
    bool takesLong() const; // whether adding up what is shown takes too long for the GUI thread
    void beginTimes() const;
    void addTimes();
    void presentTimes() const;
    /// Puts late spans in their place, between the frames as well; whole: all of them now, for a picture.
    void settle(bool whole = false);

    // Search (timeline_search.cpp).
    void search();
    void findMatches(bool newOnly); // newOnly: among names that were not there before
    void updateHits();
    void goToMatch(bool forward);

    // Notes (timeline_notes.cpp).
    void connectNotes();
    const Note* noteOf(qint64 id) const;
    bool isSeen(SpanRef ref) const; // in the window, at least in part
    void askNote(std::optional<double> ns = {});
    void editNote(qint64 id);
    void removeTheNote(qint64 id);
    void showNote(qint64 id);
    void fitNote(qint64 id);
    void takeNotes(const std::vector<Note>& notes, bool canUndo, const QString& problem);

    // The menu, by what it is about.
    void addSpanActions(QMenu& menu, SpanRef ref);
    void addTrackActions(QMenu& menu, const TimelineRow& row);
    void addTrackChoices(QMenu& menu);
    void addNoteActions(QMenu& menu, qint64 id);
    void addTimeActions(QMenu& menu, double ns);
    void addCopies(QMenu& menu);
    void addSql(QMenu& menu, const QString& what, const QString& sql);

    void paintExport(QPainter& painter, QSize size, double ratio, bool vector);
    bool isShowing() const; // a timeline, not an empty page

    Workspace& workspace_;
    TimelineFeed feed_;
    NoteTasks notes_;
    std::size_t memoryLimit_;
    TimelineCanvas* canvas_ = nullptr;
    TimelinePanel* panel_ = nullptr;
    QSplitter* split_ = nullptr;
    QStackedWidget* pages_ = nullptr;
    TimelineTools* tools_ = nullptr;
    LoadingStrip* strip_ = nullptr;
    std::shared_ptr<SpanRows> rows_; // of the shown run; null before the first run
    bool readingRows_ = false;
    QLabel* empty_ = nullptr;
    NoteLabel* note_ = nullptr;
    struct {
        QTimer times;  // until self times are added up anew
        QTimer slice;  // until the sum under way goes on
        QTimer settle; // until more late spans get their place
    } timers_;
    /// Self times that are being added up.
    struct SumUnderWay {
        SelfTimeSum times;
        TimeRange range;
        std::uint64_t moves = 0; // of the index when the sum began
        QElapsedTimer since;     // the sum began
    };
    mutable std::optional<SumUnderWay> sum_;
    SpanFacts facts_; // of the chosen span, as they are shown
    int numberTable_ = 0;
    quint64 hovers_ = 0; // counts what was hovered over: an answer about an earlier thing is dropped
    QElapsedTimer sinceDrawn_;
    std::optional<TimeRange> wanted_; // to be shown as soon as it is read
    bool choosing_ = false;           // the cursor moves because of a click here
    bool splitMoved_ = false;         // a person has dragged the handle, which then stays
    bool waits_ = false;              // the run is read, and has nothing to show so far
    bool stale_ = true;               // reload is due when the view is next shown
};

} // namespace kvscope::ui
