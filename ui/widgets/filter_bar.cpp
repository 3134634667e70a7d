#include "ui/widgets/filter_bar.h"

#include "ui/frame/shortcuts.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/workspace.h"

#include <QAction>
#include <QComboBox>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QSignalBlocker>
#include <QStyle>

#include <algorithm>
#include <limits>
#include <optional>

namespace kvscope::ui {

namespace {

void setRole(QWidget* widget, const char* role) {
    if (widget->property("role").toString() == QLatin1String(role)) return;
    widget->setProperty("role", QString::fromLatin1(role));
    widget->style()->unpolish(widget); // only this makes the style sheet look at the property again
    widget->style()->polish(widget);
}

/// How many layers or KV heads the current run has, by what the field is for. 0 if the number is not known, and for
/// steps, of which a live run gets more.
int countOf(const Workspace& workspace, const QLineEdit* field) {
    const OpenRun* run = workspace.current();
    if (!run) return 0;
    if (field->objectName() == QLatin1String("filterLayers")) return run->row.layers;
    return field->objectName() == QLatin1String("filterHeads") ? run->row.kvHeads : 0;
}

/// The first index that the set names and that is not below `count`. An open range such as "5-" names only its first
/// index.
std::optional<int> firstBeyond(const IndexSet& set, int count) {
    for (const auto& [first, last] : set.ranges())
        if (first >= count || (last >= count && last < std::numeric_limits<int>::max())) return std::max(first, count);
    return std::nullopt;
}

/// The indices that the text of a field means. Nothing if the text is no list of numbers, or names an index that the
/// current run does not have; `why` then receives the reason, unless it has a reason already.
std::optional<IndexSet> setIn(const Workspace& workspace, const QLineEdit* field, QString* why = nullptr) {
    const auto set = IndexSet::fromText(field->text());
    QString problem;
    const int count = countOf(workspace, field);
    if (!set)
        problem = FilterBar::tr("%1: “%2” is not a list of numbers and ranges such as 0-3, 7")
                      .arg(field->accessibleName(), field->text());
    else if (const auto beyond = count > 0 ? firstBeyond(*set, count) : std::nullopt)
        problem = FilterBar::tr("%1: there is no %2, this run has 0 to %3")
                      .arg(field->accessibleName())
                      .arg(*beyond)
                      .arg(count - 1);
    if (why && why->isEmpty()) *why = problem;
    return problem.isEmpty() ? set : std::nullopt;
}

} // namespace

FilterBar::FilterBar(Workspace& workspace, QWidget* parent) : QToolBar(tr("Filter"), parent), workspace_(workspace) {
    setObjectName(QStringLiteral("filterBar"));
    setMovable(false);
    setContextMenuPolicy(Qt::PreventContextMenu);
    addWidget(new MutedLabel(tr("  Filter  ")));
    layers_ = addField("filterLayers", tr("Layers"), tr("all layers"),
                       tr("Layers that count, for example 0-3, 7 or 12- for the twelfth and all above"), 11);
    heads_ =
        addField("filterHeads", tr("KV heads"), tr("all KV heads"), tr("KV heads that count, for example 0, 2-3"), 11);
    steps_ = addField("filterSteps", tr("Steps"), tr("all steps"), tr("Steps that count, for example 100-200"), 13);
    fromCursor_ = new QToolButton;
    fromCursor_->setObjectName(QStringLiteral("filterSelectedSteps"));
    fromCursor_->setText(tr("Selected steps"));
    fromCursor_->setToolTip(tr("Count only the steps selected with Ctrl and drag in a plot"));
    addWidget(fromCursor_);
    component_ = new QComboBox;
    component_->setObjectName(QStringLiteral("filterComponent"));
    component_->setAccessibleName(tr("Component"));
    component_->setToolTip(tr("One stage of a step, or all of them"));
    component_->addItem(tr("all components"), QString());
    for (const auto& name : kStageNames)
        component_->addItem(QString::fromUtf8(name.data()), QString::fromUtf8(name.data()));
    for (const auto& name : kStepStageNames)
        component_->addItem(QString::fromUtf8(name.data()), QString::fromUtf8(name.data()));
    component_->addItem(QString::fromUtf8(kOtherName.data()), QString::fromUtf8(kOtherName.data()));
    addWidget(component_);
    text_ = addField("filterText", tr("Text"), tr("text"),
                     tr("Text that names of spans, tokens or blocks hold; case does not matter"), 14);
    clear_ = new QToolButton;
    clear_->setObjectName(QStringLiteral("filterClear"));
    clear_->setText(tr("× Clear filter"));
    clear_->setToolTip(tr("Count everything again"));
    QAction* clearAction = addWidget(clear_);
    clearAction->setVisible(false);
    problem_ = new QLabel;
    problem_->setTextFormat(Qt::PlainText);
    problem_->setObjectName(QStringLiteral("filterProblem"));
    problem_->setProperty("role", QStringLiteral("danger"));
    problem_->setContentsMargins(8, 0, 0, 0);
    addWidget(problem_);

    connect(component_, &QComboBox::currentIndexChanged, this, &FilterBar::apply);
    connect(fromCursor_, &QToolButton::clicked, this, [this] {
        const Cursor& cursor = workspace_.cursor();
        if (cursor.firstStep < 0) return;
        steps_->setText(IndexSet({{cursor.firstStep, cursor.lastStep}}).text());
        apply();
    });
    connect(clear_, &QToolButton::clicked, this, [this] { workspace_.setFilter({}), display({}); });
    const auto follow = [this] { fromCursor_->setEnabled(workspace_.cursor().firstStep >= 0); };
    connect(&workspace_, &Workspace::cursorChanged, this, follow);
    connect(&workspace_, &Workspace::filterChanged, this, [this, clearAction] {
        clearAction->setVisible(!workspace_.filter().empty());
        display(workspace_.filter());
    });
    // A run may have what the run before it did not have.
    connect(&workspace_, &Workspace::currentChanged, this, [this] {
        if (!problem().isEmpty()) apply();
    });
    follow();
    markActive();
}

QLineEdit* FilterBar::addField(const char* name, const QString& title, const QString& placeholder, const QString& help,
                               int characters) {
    auto* field = new QLineEdit;
    field->setObjectName(QLatin1String(name));
    field->setAccessibleName(title);
    field->setPlaceholderText(placeholder);
    field->setToolTip(help);
    field->setFixedWidth(std::max(field->fontMetrics().averageCharWidth() * characters,
                                  field->fontMetrics().horizontalAdvance(placeholder)) +
                         24);
    connect(field, &QLineEdit::editingFinished, this, &FilterBar::apply);
    auto* escape = new QAction(tr("Empty the field; back to the view"), field);
    setShortcutGroup(escape, tr("Filter"));
    escape->setShortcut(Qt::Key_Escape);
    escape->setShortcutContext(Qt::WidgetShortcut);
    connect(escape, &QAction::triggered, this, [this, field] {
        if (field->text().isEmpty()) return emit left();
        field->clear();
        apply();
    });
    field->addAction(escape);
    // The holder's margins keep the fields apart by six pixels.
    auto* holder = new QWidget;
    holder->setSizePolicy(QSizePolicy::Fixed, QSizePolicy::Preferred);
    auto* row = new QHBoxLayout(holder);
    row->setContentsMargins(0, 2, 6, 2);
    row->addWidget(field);
    addWidget(holder);
    return field;
}

void FilterBar::edit() {
    setVisible(true);
    layers_->setFocus(Qt::ShortcutFocusReason);
    layers_->selectAll();
}

QString FilterBar::problem() const { return problem_->text(); }

/// Puts the fields into the filter of the workspace. If a field's text cannot be used, the bar shows why, and that part
/// of the filter stays as it was.
void FilterBar::apply() {
    Filter filter = workspace_.filter();
    QString problem;
    const auto read = [&](const QLineEdit* field, IndexSet& part) {
        if (const auto set = setIn(workspace_, field, &problem)) part = *set;
    };
    read(layers_, filter.layers);
    read(heads_, filter.kvHeads);
    read(steps_, filter.steps);
    filter.component = component_->currentData().toString();
    filter.text = text_->text().trimmed();
    problem_->setText(problem);
    markActive();
    workspace_.setFilter(filter);
}

void FilterBar::display(const Filter& filter) {
    const QSignalBlocker quiet(component_);
    const auto write = [this](QLineEdit* field, const IndexSet& part) {
        const auto typed = setIn(workspace_, field);
        // A text that cannot be used stays, so that the user can mend it.
        if (typed && *typed != part) field->setText(part.text());
    };
    if (filter.empty())
        for (QLineEdit* field : {layers_, heads_, steps_}) field->clear();
    write(layers_, filter.layers);
    write(heads_, filter.kvHeads);
    write(steps_, filter.steps);
    component_->setCurrentIndex(std::max(0, component_->findData(filter.component)));
    if (text_->text().trimmed() != filter.text) text_->setText(filter.text);
    if (filter.empty()) problem_->clear();
    markActive();
}

void FilterBar::markActive() {
    for (QLineEdit* field : {layers_, heads_, steps_}) {
        const auto set = setIn(workspace_, field);
        setRole(field, !set ? "danger" : set->all() ? "" : "active");
    }
    setRole(text_, text_->text().trimmed().isEmpty() ? "" : "active");
    setRole(component_, component_->currentIndex() > 0 ? "active" : "");
}

} // namespace kvscope::ui
