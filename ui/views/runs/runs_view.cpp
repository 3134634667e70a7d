#include "ui/views/runs/runs_view.h"

#include "profiler/read/step_kind.h"
#include "ui/frame/as_written.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/empty_page.h"
#include "ui/frame/picture.h"
#include "ui/frame/proposals.h"
#include "ui/frame/shortcuts.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/flow_layout.h"
#include "ui/session/run_again.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/runs/runs_filter.h"

#include <QAction>
#include <QApplication>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QKeyEvent>
#include <QLineEdit>
#include <QMenu>
#include <QPainter>
#include <QStackedWidget>
#include <QStyle>
#include <QToolButton>
#include <QTreeView>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

using RunsTable = RunsTableModel;

constexpr std::size_t kMostCompared = 26; // as many as there are letters

/// Width of a column at first, in average characters.
int charactersOf(int column) {
    switch (column) {
    case RunsTable::Run:
        return 30;
    case RunsTable::Differs:
    case RunsTable::Note:
        return 26;
    case RunsTable::Model:
    case RunsTable::Answer:
    case RunsTable::Started:
        return 20;
    case RunsTable::Mark:
    case RunsTable::Pinned:
        return 6;
    case RunsTable::Method:
    case RunsTable::Tags:
    case RunsTable::Status:
    case RunsTable::File:
        return 14;
    default:
        return 11; // a number with its unit, and the title of its column
    }
}

QString quotedCell(QString text) {
    return QStringLiteral("\"%1\"").arg(text.replace(QLatin1Char('"'), QLatin1String("\"\"")));
}

} // namespace

RunsView::RunsView(Workspace& workspace, QWidget* parent)
    : View(parent), workspace_(workspace), changes_(workspace, this), feed_(workspace, this),
      model_(new RunsTableModel(workspace, feed_, this)), sorted_(new RunsFilter(this)), table_(new QTreeView) {
    setAccessibleName(tr("Runs"));
    makeTable();
    makeActions();
    message_ = new InlineMessage;
    message_->setObjectName(QStringLiteral("runsMessage"));
    empty_ = new EmptyPage;
    pages_ = new QStackedWidget;
    pages_->addWidget(table_);
    pages_->addWidget(empty_);
    note_ = new MutedLabel;
    note_->setObjectName(QStringLiteral("runsNote"));
    note_->setWordWrap(true);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(12, 10, 12, 8);
    column->setSpacing(8);
    column->addWidget(makeTools());
    column->addWidget(message_);
    column->addWidget(pages_, 1);
    column->addWidget(note_);
    setFocusProxy(table_);
    connect(&changes_, &LabelChanges::failed, this, [this](const QString& sentence) {
        message_->show(InlineMessage::Kind::Error, sentence + QLatin1Char('.'));
    });
    connect(&feed_, &RunNumbersFeed::read, this, &RunsView::showState);
    for (const auto signal :
         {&Workspace::runsChanged, &Workspace::currentChanged, &Workspace::compareChanged, &Workspace::advanced})
        connect(&workspace_, signal, this, [this] {
            showState();
            updateActions();
        });
    showState();
    updateActions();
}

void RunsView::makeTable() {
    sorted_->setSourceModel(model_);
    table_->setObjectName(QStringLiteral("runsTable"));
    table_->setAccessibleName(tr("Open runs"));
    table_->setModel(sorted_);
    table_->setRootIsDecorated(false);
    table_->setUniformRowHeights(true);
    table_->setAllColumnsShowFocus(true);
    table_->setAlternatingRowColors(true);
    table_->setFrameShape(QFrame::NoFrame);
    table_->setIconSize(QSize(12, 12));
    table_->setSelectionMode(QAbstractItemView::ExtendedSelection);
    table_->setEditTriggers(QAbstractItemView::NoEditTriggers);
    table_->setWhatsThis(tr("Every open run in a line. A click on a title sorts, a right click on it chooses the "
                            "columns, and a drag moves them."));
    table_->setSortingEnabled(true);
    table_->sortByColumn(RunsTable::Started, Qt::AscendingOrder);
    QHeaderView* header = table_->header();
    header->setStretchLastSection(false);
    header->setSectionsMovable(true);
    header->setFirstSectionMovable(false);
    header->setContextMenuPolicy(Qt::CustomContextMenu);
    const int width = table_->fontMetrics().averageCharWidth();
    for (int column = 0; column < RunsTable::kColumns; ++column)
        table_->setColumnWidth(column, charactersOf(column) * width);
    table_->setColumnHidden(RunsTable::File, true);
    columnsMenu_ = new QMenu(this);
    columnsMenu_->setObjectName(QStringLiteral("runsColumns"));
    connect(columnsMenu_, &QMenu::aboutToShow, this, &RunsView::fillColumnsMenu);
    connect(header, &QWidget::customContextMenuRequested, this,
            [this, header](const QPoint& place) { columnsMenu_->popup(header->mapToGlobal(place)); });
    giveTableMenu(*table_); // its actions are in this table's own menu
    table_->setContextMenuPolicy(Qt::CustomContextMenu);
    connect(table_, &QWidget::customContextMenuRequested, this, &RunsView::showMenu);
    connect(table_, &QTreeView::clicked, this, [this](const QModelIndex& index) {
        const auto key = model_->keyOf(sorted_->mapToSource(index));
        if (key && index.column() == RunsTable::Mark && QApplication::keyboardModifiers() == Qt::NoModifier)
            mark({*key});
    });
    connect(table_, &QTreeView::doubleClicked, this, [this](const QModelIndex& index) {
        const auto key = model_->keyOf(sorted_->mapToSource(index));
        if (key && index.column() != RunsTable::Mark) workspace_.setCurrent(*key);
    });
    connect(table_->selectionModel(), &QItemSelectionModel::selectionChanged, this, [this] {
        showState();
        updateActions();
    });
}

QAction* RunsView::addRunAction(const char* name, const QString& text, const QKeySequence& key, const QString& help) {
    auto* action = new QAction(text, table_);
    action->setObjectName(QLatin1String(name));
    action->setShortcut(key);
    action->setShortcutContext(Qt::WidgetShortcut);
    action->setToolTip(help);
    action->setData(help); // kept while the tooltip says why it cannot be done
    setShortcutGroup(action, tr("Table of runs"));
    table_->addAction(action);
    return action;
}

void RunsView::makeActions() {
    show_ = addRunAction("runsShow", tr("Show"), Qt::Key_Return, tr("Show the run in all views"));
    show_->setShortcuts(QList<QKeySequence>{Qt::Key_Return, Qt::Key_Enter});
    mark_ = addRunAction("runsMark", tr("Mark for Compare"), Qt::Key_B,
                         tr("Compare the chosen runs with the shown one, or no longer"));
    again_ = addRunAction("runsAgain", tr("Run Again"), Qt::Key_R, tr("Run it again with what it was recorded with"));
    settings_ = addRunAction("runsSettings", tr("Use These Settings"), Qt::Key_U,
                             tr("Fill the session form with what the run was recorded with"));
    fork_ = addRunAction("runsFork", tr("Fork…"), Qt::Key_F, tr("Go on from the cursor's step with other settings"));
    rename_ = addRunAction("runsRename", tr("Rename…"), Qt::Key_F2, tr("Give the run another name"));
    tags_ = addRunAction("runsTags", tr("Tags…"), Qt::Key_T, tr("Tags of the chosen runs"));
    writeNote_ = addRunAction("runsWriteNote", tr("Note…"), Qt::Key_N, tr("A note on the chosen runs"));
    pin_ = addRunAction("runsPin", tr("Pin"), Qt::Key_P, tr("Pinned runs stand first, here and in lists of folders"));
    close_ = addRunAction("runsClose", tr("Close"), Qt::Key_Delete, tr("Close the chosen runs; their traces stay"));
    connect(show_, &QAction::triggered, this, [this] {
        if (const auto chosen = chosenRuns(); chosen.size() == 1) workspace_.setCurrent(chosen.front());
    });
    connect(mark_, &QAction::triggered, this, [this] { mark(chosenRuns()); });
    connect(again_, &QAction::triggered, this, [this] {
        const auto chosen = chosenRuns();
        RunsChanges* runner = runnerOf(*this);
        if (chosen.size() != 1 || runner == nullptr) return;
        workspace_.setCurrent(chosen.front());
        runner->runWith({});
    });
    connect(settings_, &QAction::triggered, this, [this] {
        const auto chosen = chosenRuns();
        if (RunsChanges* runner = runnerOf(*this); chosen.size() == 1 && runner != nullptr)
            runner->useSettings(chosen.front());
    });
    connect(fork_, &QAction::triggered, this, [this] {
        const auto chosen = chosenRuns();
        RunsChanges* runner = runnerOf(*this);
        if (chosen.size() != 1 || runner == nullptr) return;
        workspace_.setCurrent(chosen.front());
        runner->forkHere(); // says why not, where it cannot be
    });
    connect(rename_, &QAction::triggered, this, [this] { label(LabelsDialog::Field::Name); });
    connect(tags_, &QAction::triggered, this, [this] { label(LabelsDialog::Field::Tags); });
    connect(writeNote_, &QAction::triggered, this, [this] { label(LabelsDialog::Field::Note); });
    connect(pin_, &QAction::triggered, this, &RunsView::pin);
    connect(close_, &QAction::triggered, this, &RunsView::closeRuns);
}

QWidget* RunsView::makeTools() {
    auto* tools = new QWidget;
    auto* row = new FlowLayout(tools); // in a narrow window the buttons go to a second row
    QSizePolicy policy(QSizePolicy::Preferred, QSizePolicy::Minimum);
    policy.setHeightForWidth(true);
    tools->setSizePolicy(policy);
    search_ = new QLineEdit;
    search_->setObjectName(QStringLiteral("search"));
    search_->setAccessibleName(tr("Filter the runs"));
    search_->setPlaceholderText(tr("Filter by name, setting, tag, note…"));
    search_->setToolTip(tr("Shows the runs that have every word somewhere in their texts"));
    search_->setClearButtonEnabled(true);
    search_->setFixedWidth(240);
    connect(search_, &QLineEdit::textChanged, this, [this](const QString& text) {
        sorted_->setWords(text);
        search_->setProperty("role", text.isEmpty() ? QVariant() : QVariant(QStringLiteral("active")));
        search_->style()->polish(search_);
        showState();
        updateActions();
    });
    const auto toTable = [this] {
        if (!table_->currentIndex().isValid() && sorted_->rowCount() > 0) table_->setCurrentIndex(sorted_->index(0, 0));
        table_->setFocus();
    };
    connect(search_, &QLineEdit::returnPressed, this, toTable);
    const auto addKey = [this](Qt::Key key, auto&& done) {
        auto* action = new QAction(search_);
        action->setShortcut(key);
        action->setShortcutContext(Qt::WidgetShortcut);
        setShortcutGroup(action, tr("Table of runs"));
        search_->addAction(action);
        connect(action, &QAction::triggered, this, done);
        return action;
    };
    addKey(Qt::Key_Escape, [this, toTable] {
        if (search_->text().isEmpty()) return toTable();
        search_->clear();
    })->setText(tr("Empty the filter, or leave it"));
    addKey(Qt::Key_Down, toTable)->setText(tr("From the filter to the table"));
    count_ = new MutedLabel;
    count_->setObjectName(QStringLiteral("runsCount"));
    auto* filter = new QWidget;
    auto* inside = new QHBoxLayout(filter);
    inside->setContentsMargins(0, 0, 0, 0);
    inside->setSpacing(6);
    inside->addWidget(search_);
    inside->addWidget(count_);
    row->addWidget(filter);
    const auto addButton = [&](QAction* action) {
        auto* button = new QToolButton;
        button->setDefaultAction(action);
        button->setProperty("framed", true);
        row->addWidget(button);
    };
    for (QAction* action : {mark_, again_, pin_}) addButton(action);
    const auto addMenuButton = [&](const QString& text, const char* name, QMenu* menu) {
        auto* button = new QToolButton;
        button->setObjectName(QLatin1String(name));
        button->setText(text);
        button->setAccessibleName(text);
        button->setPopupMode(QToolButton::InstantPopup);
        button->setProperty("framed", true);
        button->setMenu(menu);
        row->addWidget(button);
    };
    auto* more = new QMenu(this);
    more->setToolTipsVisible(true);
    for (QAction* action : {show_, settings_, fork_, rename_, tags_, writeNote_, close_}) more->addAction(action);
    addMenuButton(tr("More"), "runsMore", more);
    addMenuButton(tr("Columns"), "runsChooseColumns", columnsMenu_);
    return tools;
}

void RunsView::fillColumnsMenu() {
    columnsMenu_->clear();
    QHeaderView* header = table_->header();
    for (int column = 1; column < RunsTable::kColumns; ++column) { // the name is always shown
        QAction* shown = columnsMenu_->addAction(RunsTable::title(column));
        shown->setCheckable(true);
        shown->setChecked(!header->isSectionHidden(column));
        connect(shown, &QAction::toggled, this,
                [this, column](bool on) { table_->header()->setSectionHidden(column, !on); });
    }
}

void RunsView::showMenu(const QPoint& place) {
    if (chosenRuns().empty()) return;
    auto* menu = new QMenu(this);
    menu->setObjectName(QStringLiteral("runsMenu"));
    menu->setAttribute(Qt::WA_DeleteOnClose);
    menu->setToolTipsVisible(true);
    for (QAction* action : {show_, mark_}) menu->addAction(action);
    menu->addSeparator();
    for (QAction* action : {again_, settings_, fork_}) menu->addAction(action);
    menu->addSeparator();
    for (QAction* action : {rename_, tags_, writeNote_, pin_}) menu->addAction(action);
    menu->addSeparator();
    const QList<QAction*> own{show_, mark_, again_, settings_, fork_, rename_, tags_, writeNote_, pin_, close_};
    for (QAction* action : table_->actions())
        if (!own.contains(action)) menu->addAction(action); // copies
    menu->addSeparator();
    menu->addAction(close_);
    menu->popup(table_->viewport()->mapToGlobal(place));
}

std::vector<RunKey> RunsView::chosenRuns() const {
    std::vector<int> rows;
    for (const QModelIndex& index : table_->selectionModel()->selectedRows()) rows.push_back(index.row());
    std::sort(rows.begin(), rows.end());
    std::vector<RunKey> keys;
    for (const int row : rows)
        if (const auto key = model_->keyOf(sorted_->mapToSource(sorted_->index(row, 0)))) keys.push_back(*key);
    return keys;
}

void RunsView::mark(const std::vector<RunKey>& keys) {
    const auto sides = workspace_.sides();
    const auto isCompared = [&](const RunKey& key) {
        return std::any_of(sides.begin(), sides.end(), [&](const OpenRun* run) { return run->key == key; });
    };
    std::vector<RunKey> others, added;
    for (const RunKey& key : keys) {
        if (!sides.empty() && sides.front()->key == key) continue; // this run is A already
        others.push_back(key);
        if (!isCompared(key)) added.push_back(key);
    }
    if (sides.size() + added.size() > kMostCompared)
        return message_->show(InlineMessage::Kind::Note,
                              tr("At most %1 runs are compared at a time. Choose fewer.").arg(kMostCompared));
    message_->clear();
    for (const RunKey& key : added.empty() ? others : added) workspace_.setCompared(key, !added.empty());
}

void RunsView::label(LabelsDialog::Field first) {
    const std::vector<RunKey> chosen = chosenRuns();
    std::vector<LabelledRun> runs;
    for (const RunKey& key : chosen)
        if (const OpenRun* run = workspace_.find(key))
            runs.push_back({QString::fromStdString(run->row.name), model_->labelsOf(key)});
    if (runs.empty()) return;
    auto* dialog = new LabelsDialog(runs, first, this);
    connect(dialog, &QDialog::accepted, this, [this, dialog, chosen] {
        message_->clear();
        changes_.ask(chosen, dialog->edit());
    });
    dialog->open();
}

void RunsView::pin() {
    const std::vector<RunKey> chosen = chosenRuns();
    const bool all =
        std::all_of(chosen.begin(), chosen.end(), [this](const RunKey& key) { return model_->labelsOf(key).pinned; });
    LabelEdit edit;
    edit.pinned = !all;
    message_->clear();
    changes_.ask(chosen, edit);
}

void RunsView::closeRuns() {
    for (const RunKey& key : chosenRuns())
        if (const OpenRun* run = workspace_.find(key); run && !run->live) workspace_.close(key);
}

QString RunsView::stateText() const {
    const int all = model_->rowCount(), shown = sorted_->rowCount();
    QString text = all == 1 ? tr("1 run") : tr("%1 runs").arg(formatCount(all));
    if (shown != all) text = tr("%1 of %2").arg(formatCount(shown)).arg(text);
    if (const auto chosen = table_->selectionModel()->selectedRows().size(); chosen > 1)
        text += tr(", %1 chosen").arg(chosen);
    if (const int waiting = isVisible() ? feed_.waiting() : 0; waiting > 0)
        text += tr(", reading %1").arg(formatCount(waiting));
    return text;
}

void RunsView::showState() {
    const int all = model_->rowCount(), shown = sorted_->rowCount();
    count_->setText(all == 0 ? QString() : stateText());
    note_->setText(sentences({coldSteps() == ColdSteps::Counted ? tr("Rates and means count cold steps.")
                                                                : tr("Rates and means leave cold steps out."),
                              tr("A dash: the run does not know the number.")}));
    note_->setVisible(shown > 0);
    if (all == 0)
        empty_->setTexts(
            tr("No run is open"),
            tr("This table has a line for every open run: what it is, its numbers, its tags and notes."),
            {windowAction(*this, "run", tr("Run the session")), windowAction(*this, "open", tr("Open a trace…"))});
    else if (shown == 0)
        empty_->setTexts(tr("No run matches the filter"),
                         tr("None of the %1 open runs has “%2” in its name, settings, tags, note, answer or file.")
                             .arg(formatCount(all))
                             .arg(search_->text()),
                         {EmptyAction{tr("Clear the filter"), [this] { search_->clear(); }}});
    pages_->setCurrentWidget(shown == 0 ? static_cast<QWidget*>(empty_) : table_);
}

void RunsView::updateActions() { updateRunActions(chosenRuns()); }

void RunsView::updateRunActions(const std::vector<RunKey>& chosen) {
    const OpenRun* one = chosen.size() == 1 ? workspace_.find(chosen.front()) : nullptr;
    const OpenRun* current = workspace_.current();
    const RunsChanges* runner = runnerOf(*this);
    const auto allow = [](QAction* action, bool possible, const QString& why = {}) {
        action->setEnabled(possible);
        action->setToolTip(possible || why.isEmpty() ? action->data().toString() : asWritten(why));
    };
    const bool any = !chosen.empty();
    const auto isOther = [&](const RunKey& key) { return !current || !(current->key == key); };
    const auto sides = workspace_.sides();
    const bool compared = std::all_of(chosen.begin(), chosen.end(), [&](const RunKey& key) {
        return std::any_of(sides.begin(), sides.end(), [&](const OpenRun* run) { return run->key == key; });
    });
    const bool anyOther = std::any_of(chosen.begin(), chosen.end(), isOther);
    allow(show_, one && isOther(one->key));
    allow(mark_, anyOther, any ? tr("This is run A, with which the others are compared") : QString());
    mark_->setText(anyOther && compared ? tr("Take Out of Compare") : tr("Mark for Compare"));
    const QString choose = any ? tr("Choose one run") : tr("Choose a run");
    const QString noRunner = tr("This window runs no sessions");
    const QString refusal = !one ? choose : runner == nullptr ? noRunner : whyNotAgain(*one);
    allow(again_, refusal.isEmpty(), refusal);
    allow(settings_, refusal.isEmpty(), refusal);
    allow(fork_, one && runner != nullptr, one ? noRunner : choose);
    const bool imported = std::any_of(chosen.begin(), chosen.end(), [this](const RunKey& key) {
        const OpenRun* run = workspace_.find(key);
        return run && run->row.backend == RunBackend::Imported;
    });
    const QString noLabels = imported ? tr("The file of another tool keeps no labels") : choose;
    allow(rename_, one && !imported, noLabels);
    for (QAction* action : {tags_, writeNote_, pin_}) allow(action, any && !imported, noLabels);
    const bool pinned = any && std::all_of(chosen.begin(), chosen.end(),
                                           [this](const RunKey& key) { return model_->labelsOf(key).pinned; });
    pin_->setText(pinned ? tr("Unpin") : tr("Pin"));
    const bool live = std::all_of(chosen.begin(), chosen.end(), [this](const RunKey& key) {
        const OpenRun* run = workspace_.find(key);
        return run && run->live;
    });
    allow(close_, any && !live, any ? tr("A run that is being recorded stays open") : choose);
}

void RunsView::showEvent(QShowEvent* event) {
    View::showEvent(event);
    feed_.setActive(true);
    showState();
    updateActions();
    if (!table_->currentIndex().isValid() && workspace_.current()) {
        const QModelIndex shown = sorted_->mapFromSource(model_->indexOf(workspace_.current()->key));
        if (shown.isValid()) table_->setCurrentIndex(shown);
    }
}

void RunsView::hideEvent(QHideEvent* event) {
    View::hideEvent(event);
    feed_.setActive(false);
}

QString RunsView::exportCsv() const {
    if (sorted_->rowCount() == 0) return {};
    QStringList header{QStringLiteral("run_id")};
    for (int column = 0; column < RunsTable::kColumns; ++column) header << RunsTable::id(column);
    QString csv = header.join(QLatin1Char(',')) + QLatin1Char('\n');
    for (int row = 0; row < sorted_->rowCount(); ++row) {
        const auto key = model_->keyOf(sorted_->mapToSource(sorted_->index(row, 0)));
        QStringList cells{key ? QString::number(key->runId) : QString()};
        for (int column = 0; column < RunsTable::kColumns; ++column) {
            const QVariant value = sorted_->index(row, column).data(RunsTable::PlainRole);
            const bool isNumber = value.metaType().id() == QMetaType::Double;
            cells << (!value.isValid() || (isNumber && std::isinf(value.toDouble())) ? QString()
                      : isNumber ? QString::number(value.toDouble(), 'g', 12)
                                 : quotedCell(value.toString()));
        }
        csv += cells.join(QLatin1Char(',')) + QLatin1Char('\n');
    }
    return csv;
}

bool RunsView::exportImage(const QString& path, QSize size) {
    return paintToFile(path, {size, pictureScale(*this), tr("Runs"), stateText()},
                       [&](QPainter& painter, bool) { paintTable(painter, size); });
}

/// As many columns and rows as fit, and how many more there are.
void RunsView::paintTable(QPainter& painter, QSize size) const {
    constexpr int kMargin = 16, kPadding = 6;
    const Theme& theme = Theme::current();
    painter.fillRect(QRect({0, 0}, size), theme.plotBackground);
    QFont bold = QApplication::font();
    bold.setBold(true);
    const int line = QFontMetrics(QApplication::font()).height() + 8;
    const QRect area = QRect({0, 0}, size).adjusted(kMargin, kMargin, -kMargin, -kMargin);
    const auto draw = [&](const QRect& place, int alignment, const QString& text, const QFont& font,
                          const QColor& colour) {
        painter.setFont(font);
        painter.setPen(colour);
        painter.drawText(place, alignment | Qt::AlignVCenter,
                         QFontMetrics(font).elidedText(text, Qt::ElideRight, place.width()));
    };
    draw({area.left(), area.top(), area.width(), line}, Qt::AlignLeft,
         model_->rowCount() == 0 ? tr("Runs: none is open") : tr("Runs: %1").arg(stateText()), bold, theme.text);
    const int rows = sorted_->rowCount();
    const auto widthOf = [&](int column) { // a picture has no scroll bar: columns are as narrow as their texts allow
        constexpr int kRowsLookedAt = 100, kWidest = 240, kDot = 18;
        const QFontMetrics strong(bold), texts(column == RunsTable::Run ? bold : QApplication::font());
        int width = strong.horizontalAdvance(RunsTable::title(column));
        for (int row = 0; row < std::min(rows, kRowsLookedAt); ++row)
            width = std::max(width, texts.horizontalAdvance(sorted_->index(row, column).data().toString()) +
                                        (column == RunsTable::Run ? kDot : 0));
        constexpr int kRounding = 4; // texts are measured in fractions of pixels
        return std::min(width + kRounding, kWidest) + 2 * kPadding;
    };
    struct Shown {
        int column, left, width;
    };
    std::vector<Shown> columns;
    const QHeaderView* header = table_->header();
    int left = area.left(), hidden = 0;
    for (int visual = 0; visual < header->count(); ++visual) {
        const int column = header->logicalIndex(visual);
        if (header->isSectionHidden(column)) continue;
        const int width = widthOf(column);
        if (hidden > 0 || (left + width > area.right() && !columns.empty())) {
            ++hidden;
            continue;
        }
        columns.push_back({column, left, std::min(width, area.right() - left)});
        left += width;
    }
    int top = area.top() + line + 4;
    const auto cell = [&](const Shown& shown) {
        return QRect(shown.left, top, shown.width, line).adjusted(0, 0, -2 * kPadding, 0);
    };
    const auto alignmentOf = [&](const QVariant& value) { return value.toInt() & int(Qt::AlignHorizontal_Mask); };
    for (const Shown& shown : columns)
        draw(cell(shown), alignmentOf(model_->headerData(shown.column, Qt::Horizontal, Qt::TextAlignmentRole)),
             RunsTable::title(shown.column), bold, theme.mutedText);
    top += line;
    painter.setPen(QPen(theme.border, 1));
    painter.drawLine(area.left(), top, area.right(), top);
    const int room = std::max(0, (area.bottom() - top) / line - 1);
    for (int row = 0; row < std::min(rows, room); ++row, top += line)
        for (const Shown& shown : columns) {
            const QModelIndex index = sorted_->index(row, shown.column);
            QRect place = cell(shown);
            if (const QVariant dot = index.data(Qt::DecorationRole); dot.isValid()) {
                dot.value<QIcon>().paint(&painter, QRect(place.left(), place.center().y() - 5, 12, 12));
                place.adjust(18, 0, 0, 0);
            }
            const QVariant colour = index.data(Qt::ForegroundRole);
            draw(place, alignmentOf(index.data(Qt::TextAlignmentRole)), index.data().toString(),
                 index.data(Qt::FontRole).isValid() ? bold : QApplication::font(),
                 colour.isValid() ? colour.value<QBrush>().color() : theme.text);
        }
    QStringList more;
    if (rows > room) more << tr("%1 more runs").arg(formatCount(rows - room));
    if (hidden > 0) more << tr("%1 more columns").arg(hidden);
    if (!more.isEmpty())
        draw({area.left(), area.bottom() - line, area.width(), line}, Qt::AlignLeft,
             tr("and %1").arg(more.join(QStringLiteral(", "))), QApplication::font(), theme.mutedText);
}

void RunsView::resetZoom() { search_->clear(); }
void RunsView::undoZoom() {
    if (search_->hasFocus()) search_->undo(); // the keys are the same: they belong to what has the focus
}
void RunsView::redoZoom() {
    if (search_->hasFocus()) search_->redo();
}

void RunsView::applyTheme(const Theme&) { table_->viewport()->update(); }

QVariantMap RunsView::remembered() const {
    QStringList ids; // a state belongs to these columns
    for (int column = 0; column < RunsTable::kColumns; ++column) ids << RunsTable::id(column);
    return {{QStringLiteral("columns"), ids.join(QLatin1Char(' '))},
            {QStringLiteral("header"), QString::fromLatin1(table_->header()->saveState().toBase64())}};
}

void RunsView::recall(const QVariantMap& state) {
    if (state.value(QStringLiteral("columns")) != remembered().value(QStringLiteral("columns"))) return;
    QHeaderView* header = table_->header();
    const QByteArray saved = QByteArray::fromBase64(state.value(QStringLiteral("header")).toString().toLatin1());
    if (saved.isEmpty() || !header->restoreState(saved)) return;
    header->setSectionHidden(RunsTable::Run, false);
    if (header->sortIndicatorSection() >= 0 && header->sortIndicatorSection() < RunsTable::kColumns)
        table_->sortByColumn(header->sortIndicatorSection(), header->sortIndicatorOrder());
}

View* makeRunsView(Workspace& workspace, QWidget* parent) { return new RunsView(workspace, parent); }

} // namespace kvscope::ui
