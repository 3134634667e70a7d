#include "ui/frame/fact_table.h"

#include "ui/frame/as_written.h"
#include "ui/frame/definitions.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"

#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QEvent>
#include <QGridLayout>
#include <QLabel>

#include <map>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr qsizetype kLongValue = 30; // characters: may be cut
} // namespace

FactTable::FactTable(QWidget* parent) : QWidget(parent), grid_(new QGridLayout(this)) {
    grid_->setContentsMargins(0, 0, 0, 0);
    grid_->setHorizontalSpacing(10);
    grid_->setVerticalSpacing(3);
    grid_->setColumnStretch(1, 1);
    grid_->setColumnMinimumWidth(0, 104);
    auto* copy = new QAction(tr("Copy as table"), this);
    connect(copy, &QAction::triggered, this, [this] {
        std::map<int, QString> lines; // by place in the grid
        for (auto row = rows_.constBegin(); row != rows_.constEnd(); ++row)
            if (!row->value->isHidden())
                lines[grid_->indexOf(row->value)] =
                    row.key() + QLatin1Char('\t') + row->value->text() + QLatin1Char('\n');
        QString text;
        for (const auto& [place, line] : lines) text += line;
        QApplication::clipboard()->setText(text);
    });
    addAction(copy);
    setContextMenuPolicy(Qt::ActionsContextMenu);
}

void FactTable::set(const QString& name, const QString& value, const char* definition) {
    auto row = rows_.find(name);
    if (row == rows_.end()) {
        auto* nameLabel = new MutedLabel;
        nameLabel->setAlignment(Qt::AlignLeft | Qt::AlignTop);
        if (definition) {
            nameLabel->setTextFormat(Qt::RichText); // a link to what the word means
            nameLabel->setTextInteractionFlags(Qt::LinksAccessibleByMouse | Qt::LinksAccessibleByKeyboard);
            if (const Definition* found = findDefinition(QLatin1String(definition))) {
                const QString tip = QStringLiteral("<p>%1</p>").arg(QString::fromUtf8(found->text).toHtmlEscaped());
                nameLabel->setToolTip(tip);
                nameLabel->setWhatsThis(tip);
            }
            connect(nameLabel, &QLabel::linkActivated, this, &FactTable::definitionRequested);
        }
        auto* valueLabel = new MeasuredLabel;
        valueLabel->setTextFormat(Qt::PlainText); // the value may be text of a file
        valueLabel->setWordWrap(true);
        valueLabel->setAlignment(Qt::AlignLeft | Qt::AlignTop);
        valueLabel->setTextInteractionFlags(Qt::TextSelectableByMouse);
        // A long path has no place to wrap: it is cut, and must not widen the panel for all other rows.
        valueLabel->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
        const int line = grid_->rowCount();
        grid_->addWidget(nameLabel, line, 0);
        grid_->addWidget(valueLabel, line, 1);
        row = rows_.insert(name, {nameLabel, valueLabel, QString::fromLatin1(definition ? definition : "")});
        writeName(name, *row);
    }
    row->set = true;
    row->value->setText(value);
    row->value->setToolTip(value.size() > kLongValue ? asWritten(value) : QString());
    row->name->setVisible(!value.isEmpty());
    row->value->setVisible(!value.isEmpty());
}

void FactTable::writeName(const QString& name, const Row& row) {
    if (row.definition.isEmpty()) {
        row.name->setText(name);
        return;
    }
    // The link has the colour of plain names, because a column of links would be louder than the values.
    row.name->setText(QStringLiteral("<a href=\"%1\" style=\"text-decoration:none; color:%2\">%3&nbsp;<sup>?</sup></a>")
                          .arg(row.definition, Theme::current().mutedText.name(), name.toHtmlEscaped()));
}

void FactTable::changeEvent(QEvent* event) {
    QWidget::changeEvent(event);
    if (event->type() != QEvent::PaletteChange) return;
    for (auto row = rows_.constBegin(); row != rows_.constEnd(); ++row) writeName(row.key(), row.value());
}

QString FactTable::value(const QString& name) const {
    const auto row = rows_.constFind(name);
    return row == rows_.constEnd() || row->value->isHidden() ? QString() : row->value->text();
}

FactTable::Update::Update(FactTable* table) : table_(table) {
    for (Row& row : table_->rows_) row.set = false;
}

FactTable::Update::~Update() {
    bool any = false;
    for (const Row& row : std::as_const(table_->rows_)) {
        any = any || (row.set && !row.value->isHidden());
        if (row.set) continue;
        row.name->hide();
        row.value->hide();
    }
    table_->setVisible(any); // rows that are hidden leave no gap
}

} // namespace kvscope::ui
