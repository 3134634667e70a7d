// Below the timeline: the chosen span explained, where the time of a range went, and the notes of the trace.
#pragma once

#include "profiler/read/self_time.h"
#include "ui/frame/shortcuts.h"
#include "ui/timeline/timeline_scene.h"

#include <QString>
#include <QTabWidget>

#include <set>
#include <string>
#include <utility>
#include <vector>

class QComboBox;
class QLabel;
class QPushButton;
class QTableWidget;

namespace kvscope::ui {

class FactTable;
class InlineMessage;

class TimelinePanel final : public QTabWidget {
    Q_OBJECT
public:
    explicit TimelinePanel(QWidget* parent = nullptr);

    void showSpan(const std::vector<std::pair<QString, QString>>& facts); // empty: none is chosen
    /// Self times of a range, or of what is visible where no range was measured.
    void showTimes(std::vector<SelfTime> rows, TimeRange range, bool measured);
    void showTimesHint(const QString& sentence);     // instead of a table
    void showTimesProgress(const QString& sentence); // of the next table; the one before stays till then
    void showNotes(const std::vector<Note>& notes);
    void showNoteProblem(const QString& sentence); // empty: none
    void showNoteUndo(bool possible);
    static std::vector<ShortcutText> gestures(); // for the help
    SelfTimeBy grouping() const;
    /// The table of self times as text with its header. chosenOnly: if rows are chosen, only those. The rows stand in
    /// the order of the table. If the table shows only some of the names, the text has all names, the longest self time
    /// first.
    QString timesText(QChar separator = QLatin1Char('\t'), bool chosenOnly = true) const;

signals:
    void groupingChanged();
    void noteChosen(qint64 id);
    void noteAddRequested();
    void noteEditRequested(qint64 id);
    void noteFitRequested(qint64 id);
    void noteRemoveRequested(qint64 id);
    void noteUndoRequested();

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    using TimesName = std::pair<std::string, std::string>; // the whole name, of which a part is shown, and its track
    TimesName nameOfTimes(int line) const;
    std::set<TimesName> chosenTimes() const;
    void chooseTimes(const std::set<TimesName>& names);
    qint64 chosenNote() const;
    bool noteKey(const QKeyEvent& key);
    FactTable* facts_;
    QLabel *spanHint_, *timesTitle_, *notesHint_;
    QTableWidget *times_, *notes_;
    QComboBox* grouping_;
    QPushButton *editNote_, *removeNote_, *undoNote_;
    InlineMessage* noteProblem_;
    std::vector<SelfTime> allTimes_; // longest self time first
    TimeRange timesRange_;
};

} // namespace kvscope::ui
