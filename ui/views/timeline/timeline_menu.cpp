// The menu of a right click on the timeline, by what is under the pointer.
#include "profiler/read/self_time.h"
#include "ui/frame/picture.h"
#include "ui/frame/save_path.h"
#include "ui/frame/sql_request.h"
#include "ui/models/format.h"
#include "ui/timeline/span_facts.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_curves.h"
#include "ui/timeline/timeline_sql.h"
#include "ui/views/timeline/timeline_view.h"

#include <QApplication>
#include <QClipboard>
#include <QMenu>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

constexpr std::size_t kArrowsInMenu = 6;

QString shortened(const QString& text) {
    constexpr int kLongest = 42;
    return text.size() > kLongest ? text.left(kLongest - 1) + QStringLiteral("…") : text;
}

/// The text of an action, in which & marks a key.
QString literal(QString text) { return shortened(text).replace(QLatin1Char('&'), QStringLiteral("&&")); }

void toClipboard(const QString& text) { QApplication::clipboard()->setText(text); }

} // namespace

std::unique_ptr<QMenu> TimelineView::menuOf(const TimelinePlace& place) {
    auto menu = std::make_unique<QMenu>(this);
    switch (place.kind) {
    case TimelinePlace::Kind::Span:
        addSpanActions(*menu, *place.span);
        break;
    case TimelinePlace::Kind::Note:
        addNoteActions(*menu, place.note);
        break;
    case TimelinePlace::Kind::Track:
        break;
    case TimelinePlace::Kind::Ruler:
    case TimelinePlace::Kind::Empty:
        addTimeActions(*menu, place.ns);
        break;
    }
    if (place.row) addTrackActions(*menu, *place.row);
    addTrackChoices(*menu);
    menu->addSeparator();
    addCopies(*menu);
    menu->addSeparator();
    menu->addAction(tr("Undo zoom"), this, &TimelineView::undoZoom)->setEnabled(canvas_->canUndoZoom());
    menu->addAction(tr("Redo zoom"), this, &TimelineView::redoZoom)->setEnabled(canvas_->canRedoZoom());
    menu->addAction(tr("Reset zoom"), this, &TimelineView::resetZoom)->setEnabled(canvas_->isZoomed());
    return menu;
}

void TimelineView::addSql(QMenu& menu, const QString& what, const QString& sql) {
    menu.addAction(tr("Copy SQL of %1").arg(what), this, [sql] { toClipboard(sql); });
    menu.addAction(tr("Open %1 in SQL").arg(what), this, [this, sql] { openInSql(*this, sql); });
}

void TimelineView::addSpanActions(QMenu& menu, SpanRef ref) {
    const TimelineData& held = canvas_->data();
    const TimelineSpan span = held.index.at(ref);
    const std::string& name = held.index.names()[span.name];
    if (canvas_->scene().selected != ref) choose(ref, false); // the menu is about what is seen to be chosen
    menu.addSection(literal(shownName(held, span)));
    // Spans out of order may be put in their place while the menu is open: a reference could mean another span then.
    const auto chooseAgain = [this](const SpanPlace& place, bool reveal) {
        const auto again = spanAtPlace(canvas_->data().index, place);
        if (again) choose(*again, reveal);
        return again.has_value();
    };
    menu.addAction(tr("Zoom to the span"), this, [this, chooseAgain, place = placeOfSpan(held.index, ref)] {
        if (chooseAgain(place, false)) canvas_->fit();
    });
    menu.addAction(tr("Measure its time"), this, [this, span] {
        canvas_->measure(TimeRange{double(span.startNs), double(std::max(span.endNs(), span.startNs + 1))});
    });
    std::size_t arrows = 0;
    for (const SpanFlow& flow : canvas_->scene().flows) {
        const bool out = flow.from == ref;
        const SpanRef other = out ? flow.to : flow.from;
        const QString title = literal(shownName(held, held.index.at(other)));
        const bool launch = flow.kind == SpanFlow::Kind::Launch;
        menu.addAction((launch ? (out ? tr("Go to what it launched: %1") : tr("Go to its launch: %1"))
                               : (out ? tr("Go to what used it: %1") : tr("Go to its transfer: %1")))
                           .arg(title),
                       this, [chooseAgain, place = placeOfSpan(held.index, other)] { chooseAgain(place, true); });
        if (++arrows == kArrowsInMenu) break;
    }
    menu.addSeparator();
    menu.addAction(tr("Search for this name"), this,
                   [this, name] { tools_->setSearched(QString::fromStdString(name)); });
    Filter filter = workspace_.filter();
    const QString stage = QString::fromStdString(held.index.components()[span.name]);
    filter.component = stage;
    menu.addAction(tr("Filter all views: component %1").arg(literal(stage)), this,
                   [this, filter] { workspace_.setFilter(filter); });
    if (span.layer >= 0) {
        filter = workspace_.filter();
        filter.layers = IndexSet({{span.layer, span.layer}});
        menu.addAction(tr("Filter all views: layer %1").arg(span.layer), this,
                       [this, filter] { workspace_.setFilter(filter); });
    }
    menu.addAction(tr("Leave a note…"), this, [this, span] { askNote(double(span.startNs)); });
    menu.addSeparator();
    menu.addAction(tr("Copy its facts as table"), this, [this] {
        QString text;
        for (const auto& [fact, value] : facts_)
            text += fact + QLatin1Char('\t') + QString(value).replace(QLatin1Char('\n'), QStringLiteral("; ")) +
                    QLatin1Char('\n');
        toClipboard(text);
    });
    const int run = workspace_.current()->key.runId;
    addSql(menu, tr("this span"), spanSql(run, held, ref));
    menu.addAction(tr("Open all spans of this name in SQL"), this,
                   [this, sql = nameSql(run, name)] { openInSql(*this, sql); });
}

void TimelineView::addTrackActions(QMenu& menu, const TimelineRow& row) {
    const TimelineData& held = canvas_->data();
    const std::string key = trackKey(held, row);
    const int run = workspace_.current()->key.runId;
    menu.addSection(literal(trackTitle(held, row)));
    if (row.track >= 0) {
        const auto& rows = canvas_->scene().layout.rows;
        const bool folded = canvas_->arrangement().folded.contains(row.track);
        const auto lanes =
            std::count_if(rows.begin(), rows.end(), [&](const TimelineRow& other) { return other.track == row.track; });
        if (folded || lanes > 1)
            menu.addAction(folded ? tr("Unfold this track") : tr("Fold this track"), this,
                           [this, track = row.track] { canvas_->toggleFold(track); });
    }
    menu.addAction(tr("Hide this track"), this, [this, key] { canvas_->setHidden(key, true); });
    menu.addAction(tr("Show only this track"), this, [this, key] { canvas_->showOnly(key); });
    if (row.track >= 0)
        addSql(menu, tr("this track"), trackSql(run, held.index.tracks()[row.track]));
    else
        addSql(menu, tr("these values"), curveSql(run, held, row.curve));
}

void TimelineView::addTrackChoices(QMenu& menu) {
    menu.addSeparator();
    QMenu* choices = menu.addMenu(tr("Tracks"));
    const TrackArrangement& arrangement = canvas_->arrangement();
    choices->addAction(tr("Show all tracks"), canvas_, &TimelineCanvas::showAllTracks)
        ->setEnabled(!arrangement.hidden.empty());
    choices->addAction(tr("Fold all"), this, [this] { canvas_->foldAll(true); });
    choices->addAction(tr("Unfold all"), this, [this] { canvas_->foldAll(false); })
        ->setEnabled(!arrangement.folded.empty());
    choices->addSeparator();
    for (const TimelineRow& row : TimelineLayout::of(canvas_->data(), {}).rows) {
        if (!row.firstOfTrack) continue;
        const std::string key = trackKey(canvas_->data(), row);
        QAction* shown = choices->addAction(literal(trackTitle(canvas_->data(), row)));
        shown->setCheckable(true);
        shown->setChecked(!arrangement.hidden.contains(key));
        connect(shown, &QAction::toggled, canvas_, [this, key](bool on) { canvas_->setHidden(key, !on); });
    }
}

void TimelineView::addTimeActions(QMenu& menu, double ns) {
    const TimelineScene& scene = canvas_->scene();
    if (scene.range) {
        menu.addAction(tr("Zoom to the measured range"), this,
                       [this, range = *scene.range] { canvas_->zoomTo(range); });
        menu.addAction(tr("Give up the measured range"), this, [this] { canvas_->measure(std::nullopt); });
        addSql(menu, tr("the range"), rangeSql(workspace_.current()->key.runId, *scene.range));
    } else {
        menu.addAction(tr("Measure what is shown"), this, [this, window = scene.window] { canvas_->measure(window); });
    }
    const StepCounters& counters = canvas_->data().counters;
    if (const int step = counters.stepAt(std::int64_t(ns)); step >= 0)
        menu.addAction(tr("Zoom to step %1").arg(step), this, [this, step] {
            std::int64_t from = 0, to = 0;
            if (!canvas_->data().counters.timesOf(step, from, to)) return;
            const double margin = double(to - from) * 0.05 + 1;
            canvas_->zoomTo({double(from) - margin, double(to) + margin});
        });
    if (counters.firstDecodeStep() >= 0) {
        menu.addAction(tr("Show the first decode step"), this, [this] { showDecode(false); });
        menu.addAction(tr("Show all decode steps"), this, [this] { showDecode(true); });
    }
    menu.addAction(tr("Show everything"), canvas_, &TimelineCanvas::showAll);
    menu.addAction(tr("Leave a note here…"), this, [this, ns] { askNote(ns); });
}

void TimelineView::addNoteActions(QMenu& menu, qint64 id) {
    const Note* note = noteOf(id);
    if (!note) return;
    menu.addSection(note->text.empty() ? tr("Bookmark") : literal(QString::fromStdString(note->text)));
    menu.addAction(tr("Zoom to the note"), this, [this, id] { fitNote(id); });
    if (note->durationNs > 0)
        menu.addAction(tr("Measure its time"), this, [this, note = *note] {
            canvas_->measure(TimeRange{double(note.startNs), double(note.startNs + note.durationNs)});
        });
    menu.addAction(tr("Edit…"), this, [this, id] { editNote(id); });
    menu.addAction(tr("Remove"), this, [this, id] { removeTheNote(id); });
    menu.addAction(tr("Copy its text"), this, [text = note->text] { toClipboard(QString::fromStdString(text)); });
    addSql(menu, tr("the notes"), notesSql(workspace_.current()->key.runId));
}

void TimelineView::addCopies(QMenu& menu) {
    menu.addAction(tr("Copy self times as table"), this, [this] { toClipboard(panel_->timesText()); });
    menu.addAction(tr("Copy image"), this, &TimelineView::copyImage);
    addSql(menu, tr("what is shown"), sql());
    QMenu* pictures = menu.addMenu(tr("Export"));
    for (const char* suffix : {"png", "svg", "pdf"})
        pictures->addAction(tr("%1…").arg(QString::fromLatin1(suffix).toUpper()), this, [this, suffix] {
            const QString type = QLatin1String(suffix);
            const QString path = askSavePath(this, tr("Export the timeline"), QStringLiteral("timeline.") + type,
                                             {{type.toUpper(), type}});
            if (path.isEmpty()) return;
            if (const QString why = whyNoPicture(*this, path, canvas_->size() + QSize(0, 40)); !why.isEmpty())
                emit workspace_.failed(tr("%1 could not be written: %2.").arg(path, why));
        });
    const QStringList tables = numberTables();
    for (int table = 0; table < tables.size(); ++table)
        pictures->addAction(tr("%1 as CSV or JSON lines…").arg(tables[table]), this, [this, table] {
            const QString name = table == 0 ? QStringLiteral("self-times.csv") : QStringLiteral("spans.csv");
            const QString path = askSavePath(this, tr("Export numbers of the timeline"), name, numberFormats());
            if (path.isEmpty()) return;
            chooseNumberTable(table);
            exportNumbers(path);
            chooseNumberTable(0);
        });
}

} // namespace kvscope::ui
