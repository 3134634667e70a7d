#include "ui/timeline/timeline_panel.h"

#include "ui/frame/fact_table.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"
#include "ui/timeline/self_time_numbers.h"
#include "ui/timeline/span_facts.h"
#include "ui/timeline/time_ticks.h"

#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QKeyEvent>
#include <QLabel>
#include <QPushButton>
#include <QScrollArea>
#include <QTableWidget>
#include <QVBoxLayout>

#include <algorithm>
#include <set>
#include <span>

namespace kvscope::ui {

namespace {

constexpr std::size_t kMostLines = 1'000; // of the self times; more names than that nobody reads, and they take seconds
constexpr int kRankRole = Qt::UserRole + 1; // of a name in the table of self times: its place among them, unsorted

/// Sorts by the number, not by how it is written.
class NumberItem final : public QTableWidgetItem {
public:
    NumberItem(const QString& text, double value) : QTableWidgetItem(text) {
        setData(Qt::UserRole, value);
        setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
    }
    bool operator<(const QTableWidgetItem& other) const override {
        return data(Qt::UserRole).toDouble() < other.data(Qt::UserRole).toDouble();
    }
};

QTableWidget* table(const char* name, const QStringList& header) {
    auto* made = new QTableWidget(0, int(header.size()));
    made->setObjectName(QLatin1String(name));
    made->setHorizontalHeaderLabels(header);
    made->verticalHeader()->hide();
    made->verticalHeader()->setDefaultSectionSize(22);
    made->setSelectionBehavior(QAbstractItemView::SelectRows);
    made->setEditTriggers(QAbstractItemView::NoEditTriggers);
    made->setAlternatingRowColors(false);
    made->setShowGrid(false);
    made->horizontalHeader()->setHighlightSections(false);
    made->horizontalHeader()->setStretchLastSection(false);
    return made;
}

QLabel* muted(const QString& text) {
    auto* label = new MutedLabel(text);
    label->setWordWrap(true);
    return label;
}

} // namespace

TimelinePanel::TimelinePanel(QWidget* parent)
    : QTabWidget(parent), facts_(new FactTable), spanHint_(muted(tr("Click a span to see what it is, how much it moved "
                                                                    "and what it waited for."))),
      timesTitle_(muted({})), notesHint_(muted(tr("No notes yet. Press M over the timeline, or Add, to leave one; "
                                                  "notes are kept in the trace."))),
      times_(table("selfTimes", {tr("Name"), tr("Track"), tr("Self time"), tr("Of range"), tr("Spans"), tr("Mean"),
                                 tr("Longest"), tr("Total")})),
      notes_(table("notes", {tr("Time"), tr("Length"), tr("Note")})), grouping_(new QComboBox),
      editNote_(new QPushButton(tr("Edit…"))), removeNote_(new QPushButton(tr("Remove"))),
      undoNote_(new QPushButton(tr("Undo"))), noteProblem_(new InlineMessage) {
    setDocumentMode(true);
    setObjectName(QStringLiteral("timelinePanel"));
    setAccessibleName(tr("Details of the timeline"));
    auto* spanPage = new QWidget;
    auto* spanColumn = new QVBoxLayout(spanPage);
    spanColumn->setContentsMargins(8, 6, 8, 6);
    spanColumn->addWidget(spanHint_);
    spanColumn->addWidget(facts_);
    spanColumn->addStretch();
    auto* scroll = new QScrollArea;
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setWidget(spanPage);
    for (const QString& name : spanFactNames()) facts_->set(name, {}); // keeps their order
    facts_->hide();
    addTab(scroll, tr("Span"));

    auto* timesPage = new QWidget;
    auto* timesColumn = new QVBoxLayout(timesPage);
    timesColumn->setContentsMargins(8, 6, 8, 4);
    auto* bar = new QHBoxLayout;
    grouping_->setObjectName(QStringLiteral("timesGrouping"));
    grouping_->setAccessibleName(tr("Grouping of the table"));
    grouping_->addItem(tr("By component"), int(SelfTimeBy::Component));
    grouping_->addItem(tr("By name (kernels apart)"), int(SelfTimeBy::Name));
    auto* copy = new QPushButton(tr("Copy"));
    copy->setObjectName(QStringLiteral("copyTimes"));
    copy->setToolTip(tr("Copies the table, or its chosen rows, as text with tabs (Ctrl+C in the table)"));
    bar->addWidget(timesTitle_, 1);
    bar->addWidget(grouping_);
    bar->addWidget(copy);
    timesColumn->addLayout(bar);
    times_->setSortingEnabled(true);
    times_->sortByColumn(2, Qt::DescendingOrder);
    times_->setAccessibleName(tr("Self times"));
    times_->horizontalHeader()->setSectionResizeMode(0, QHeaderView::Stretch); // names take what the numbers leave
    times_->horizontalHeader()->setMinimumSectionSize(60);
    const QString selfTime =
        tr("What no span inside it claims. Of several tracks, times add up to more than the range.");
    times_->horizontalHeaderItem(2)->setToolTip(selfTime);
    timesTitle_->setToolTip(tr("Self time: %1").arg(selfTime));
    times_->installEventFilter(this);
    timesColumn->addWidget(times_, 1);
    addTab(timesPage, tr("Times"));
    connect(grouping_, &QComboBox::currentIndexChanged, this, &TimelinePanel::groupingChanged);
    connect(copy, &QPushButton::clicked, this, [this] { QApplication::clipboard()->setText(timesText()); });

    auto* notesPage = new QWidget;
    auto* notesColumn = new QVBoxLayout(notesPage);
    notesColumn->setContentsMargins(8, 6, 8, 4);
    auto* noteBar = new QHBoxLayout;
    auto* addNoteButton = new QPushButton(tr("Add…"));
    addNoteButton->setObjectName(QStringLiteral("addNote"));
    editNote_->setObjectName(QStringLiteral("editNote"));
    editNote_->setToolTip(tr("Change the text (F2)"));
    removeNote_->setObjectName(QStringLiteral("removeNote"));
    removeNote_->setToolTip(tr("Take the note out of the trace (Del)"));
    undoNote_->setObjectName(QStringLiteral("undoNote"));
    undoNote_->setToolTip(tr("Take the last change of a note back (Ctrl+Z in the list)"));
    noteBar->addWidget(notesHint_, 1);
    noteBar->addStretch();
    for (QPushButton* button : {addNoteButton, editNote_, removeNote_, undoNote_}) noteBar->addWidget(button);
    notesColumn->addLayout(noteBar);
    notesColumn->addWidget(noteProblem_);
    notes_->horizontalHeader()->setStretchLastSection(true);
    notes_->setSelectionMode(QAbstractItemView::SingleSelection);
    notes_->setAccessibleName(tr("Notes"));
    notes_->installEventFilter(this);
    notesColumn->addWidget(notes_, 1);
    addTab(notesPage, tr("Notes"));
    connect(addNoteButton, &QPushButton::clicked, this, &TimelinePanel::noteAddRequested);
    connect(editNote_, &QPushButton::clicked, this, [this] { emit noteEditRequested(chosenNote()); });
    connect(removeNote_, &QPushButton::clicked, this, [this] { emit noteRemoveRequested(chosenNote()); });
    connect(undoNote_, &QPushButton::clicked, this, &TimelinePanel::noteUndoRequested);
    // cellActivated will not do: on some desktops it is a click too
    connect(notes_, &QTableWidget::cellDoubleClicked, this, [this] { emit noteFitRequested(chosenNote()); });
    connect(notes_, &QTableWidget::cellClicked, this, [this] { emit noteChosen(chosenNote()); });
    const auto enable = [this] {
        editNote_->setEnabled(chosenNote() > 0);
        removeNote_->setEnabled(chosenNote() > 0);
    };
    connect(notes_, &QTableWidget::itemSelectionChanged, this, enable);
    enable();
    showNoteUndo(false);
}

SelfTimeBy TimelinePanel::grouping() const { return SelfTimeBy(grouping_->currentData().toInt()); }

void TimelinePanel::showSpan(const std::vector<std::pair<QString, QString>>& facts) {
    {
        const FactTable::Update update(facts_);
        for (const auto& [name, value] : facts) facts_->set(name, value);
    }
    facts_->setVisible(!facts.empty());
    spanHint_->setVisible(facts.empty());
}

void TimelinePanel::showTimes(std::vector<SelfTime> all, TimeRange range, bool measured) {
    QString title =
        tr("%1 %2, from %3 on.")
            .arg(measured ? tr("Measured range of") : tr("What is shown:"),
                 formatTime(range.size(), range.size() / 1000), formatTime(range.from, range.size() / 1000));
    const std::set<TimesName> chosen = chosenTimes();
    allTimes_ = std::move(all);
    timesRange_ = range;
    const NumberedSpan<const SelfTime> rows(allTimes_.data(), std::min(allTimes_.size(), kMostLines));
    if (rows.size() < allTimes_.size())
        title += tr(" The %1 longest of %2 names; Copy takes all.")
                     .arg(formatCount(std::int64_t(rows.size())), formatCount(std::int64_t(allTimes_.size())));
    timesTitle_->setText(title);
    times_->setSortingEnabled(false); // while it is filled
    times_->setRowCount(rows.count());
    for (int line = 0; line < rows.count(); ++line) {
        const SelfTime& row = rows[line];
        auto* name = new QTableWidgetItem(readableName(row.name));
        name->setData(kRankRole, line);
        times_->setItem(line, 0, name);
        times_->setItem(line, 1, new QTableWidgetItem(readableName(row.track)));
        const auto time = [&](int column, double ns) {
            times_->setItem(line, column, new NumberItem(formatValue(Unit::Nanoseconds, ns), ns));
        };
        time(2, double(row.selfNs));
        const double share = range.size() > 0 ? double(row.selfNs) / range.size() * 100 : 0;
        times_->setItem(line, 3, new NumberItem(formatValue(Unit::Percent, share), share));
        times_->setItem(line, 4, new NumberItem(formatCount(row.spans), double(row.spans)));
        time(5, double(row.totalNs) / std::max(1u, row.spans));
        time(6, double(row.longestNs));
        time(7, double(row.totalNs));
    }
    const bool first = times_->property("sized").isNull();
    times_->setSortingEnabled(true);
    chooseTimes(chosen); // the same names, wherever they are now
    if (first && !rows.empty()) {
        times_->setProperty("sized", true);
        times_->setColumnWidth(1, 150);
        for (int column = 2; column < times_->columnCount(); ++column) times_->setColumnWidth(column, 82);
    }
}

TimelinePanel::TimesName TimelinePanel::nameOfTimes(int line) const {
    const SelfTime& row = allTimes_[times_->item(line, 0)->data(kRankRole).toUInt()];
    return {row.name, row.track};
}

std::set<TimelinePanel::TimesName> TimelinePanel::chosenTimes() const {
    std::set<TimesName> chosen;
    for (const QModelIndex& index : times_->selectionModel()->selectedRows()) chosen.insert(nameOfTimes(index.row()));
    return chosen;
}

void TimelinePanel::chooseTimes(const std::set<TimesName>& chosen) {
    if (chosen.empty()) return;
    QItemSelection selection;
    const QAbstractItemModel* model = times_->model();
    for (int line = 0; line < times_->rowCount(); ++line)
        if (chosen.contains(nameOfTimes(line)))
            selection.select(model->index(line, 0), model->index(line, times_->columnCount() - 1));
    times_->selectionModel()->select(selection, QItemSelectionModel::ClearAndSelect);
}

QString TimelinePanel::timesText(QChar separator, bool chosenOnly) const {
    std::set<int> chosen;
    if (chosenOnly)
        for (const QModelIndex& index : times_->selectionModel()->selectedRows()) chosen.insert(index.row());
    std::vector<SelfTime> rows;
    const bool some = !chosen.empty() || allTimes_.size() <= kMostLines;
    for (int line = 0; some && line < times_->rowCount(); ++line)
        if (chosen.empty() || chosen.contains(line))
            rows.push_back(allTimes_[times_->item(line, 0)->data(kRankRole).toUInt()]);
    return selfTimesText(some ? rows : allTimes_, timesRange_.size(), separator);
}

void TimelinePanel::showTimesProgress(const QString& sentence) { timesTitle_->setText(sentence); }

void TimelinePanel::showTimesHint(const QString& sentence) {
    timesTitle_->setText(sentence);
    allTimes_.clear();
    times_->setRowCount(0);
}

bool TimelinePanel::eventFilter(QObject* watched, QEvent* event) {
    if (watched == times_ && event->type() == QEvent::KeyPress &&
        static_cast<QKeyEvent*>(event)->matches(QKeySequence::Copy)) {
        QApplication::clipboard()->setText(timesText());
        return true;
    }
    if (watched == notes_ && (event->type() == QEvent::KeyPress || event->type() == QEvent::ShortcutOverride)) {
        const auto& key = *static_cast<QKeyEvent*>(event);
        if (event->type() == QEvent::KeyPress) return noteKey(key);
        if (key.matches(QKeySequence::Undo)) event->accept(); // of a note, not of a zoom
    }
    return QTabWidget::eventFilter(watched, event);
}

bool TimelinePanel::noteKey(const QKeyEvent& key) {
    if (key.matches(QKeySequence::Undo))
        emit noteUndoRequested();
    else if (key.key() == Qt::Key_Delete)
        emit noteRemoveRequested(chosenNote());
    else if (key.key() == Qt::Key_Return || key.key() == Qt::Key_Enter)
        emit noteFitRequested(chosenNote());
    else if (key.key() == Qt::Key_F2)
        emit noteEditRequested(chosenNote());
    else
        return false;
    return true;
}

std::vector<ShortcutText> TimelinePanel::gestures() {
    const QString notes = tr("Notes of the timeline");
    return {
        {notes, tr("Zoom to the note"), tr("Enter, double click")},
        {notes, tr("Change its text"), tr("F2")},
        {notes, tr("Remove it"), tr("Del")},
        {notes, tr("Undo the last change"), tr("Ctrl+Z")},
    };
}

void TimelinePanel::showNotes(const std::vector<Note>& notes) {
    notes_->setRowCount(int(notes.size()));
    for (int line = -1; const Note& note : notes) {
        ++line;
        auto* when = new NumberItem(formatTime(double(note.startNs), 1), double(note.startNs));
        when->setData(Qt::UserRole + 1, qint64(note.id));
        notes_->setItem(line, 0, when);
        notes_->setItem(
            line, 1,
            new NumberItem(note.durationNs > 0 ? formatTime(double(note.durationNs), 1) : QStringLiteral("–"),
                           double(note.durationNs)));
        notes_->setItem(line, 2,
                        new QTableWidgetItem(note.text.empty() ? tr("(bookmark)") : QString::fromStdString(note.text)));
    }
    notes_->setColumnWidth(0, 150);
    notesHint_->setVisible(notes.empty());
    setTabText(2, notes.empty() ? tr("Notes") : tr("Notes (%1)").arg(notes.size()));
}

void TimelinePanel::showNoteProblem(const QString& sentence) {
    if (sentence.isEmpty())
        noteProblem_->clear();
    else
        noteProblem_->show(InlineMessage::Kind::Error, sentence);
}

void TimelinePanel::showNoteUndo(bool possible) { undoNote_->setEnabled(possible); }

qint64 TimelinePanel::chosenNote() const {
    const auto rows = notes_->selectionModel()->selectedRows();
    const QTableWidgetItem* item = rows.isEmpty() ? nullptr : notes_->item(rows.front().row(), 0);
    return item ? item->data(Qt::UserRole + 1).toLongLong() : 0;
}

} // namespace kvscope::ui
