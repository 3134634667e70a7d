#include "ui/views/sql/sql_schema.h"

#include "ui/look/theme.h"

#include <QHeaderView>
#include <QLineEdit>
#include <QRegularExpression>
#include <QTreeWidget>
#include <QVBoxLayout>

#include <utility>

namespace kvscope::ui {

SqlSchema::SqlSchema(QWidget* parent) : QWidget(parent), filter_(new QLineEdit), tree_(new QTreeWidget) {
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 8, 0);
    filter_->setObjectName(QStringLiteral("schemaFilter"));
    filter_->setPlaceholderText(tr("Find a table or column"));
    filter_->setAccessibleName(tr("Find a table or column"));
    filter_->setClearButtonEnabled(true);
    tree_->setObjectName(QStringLiteral("schema"));
    tree_->setAccessibleName(tr("Tables, views and their columns"));
    tree_->setToolTip(tr("Enter or a double click puts a name into the query"));
    tree_->setHeaderHidden(true);
    tree_->setMinimumWidth(150); // names stay readable in a narrow window
    tree_->setColumnCount(2);
    tree_->setIndentation(14);
    tree_->setUniformRowHeights(true);
    tree_->header()->setStretchLastSection(false);
    tree_->header()->setMinimumSectionSize(10); // types give way before the tree scrolls sideways
    tree_->header()->setSectionResizeMode(0, QHeaderView::ResizeToContents);
    tree_->header()->setSectionResizeMode(1, QHeaderView::Stretch);
    column->addWidget(filter_);
    column->addWidget(tree_, 1);
    connect(filter_, &QLineEdit::textChanged, this, &SqlSchema::filter);
    connect(tree_, &QTreeWidget::itemActivated, this, [this](QTreeWidgetItem* item) { choose(item); });
}

bool SqlSchema::isEmpty() const { return tree_->topLevelItemCount() == 0; }

void SqlSchema::setTables(const std::vector<SqlTableInfo>& tables) {
    tree_->clear();
    const auto tip = [](const QString& head, const std::string& help) {
        return QStringLiteral("<p><b>%1</b></p><p>%2</p>")
            .arg(head.toHtmlEscaped(), QString::fromStdString(help).toHtmlEscaped());
    };
    QTreeWidgetItem* group = nullptr;
    const auto begin = [&](const QString& title) {
        group = new QTreeWidgetItem(tree_, {title});
        group->setFlags(Qt::ItemIsEnabled);
        group->setExpanded(true);
    };
    bool views = false, others = false;
    for (const SqlTableInfo& table : tables) {
        if (table.view && !std::exchange(views, true)) begin(tr("Views"));
        if (!table.view && !std::exchange(others, true)) begin(tr("Tables"));
        auto* item = new QTreeWidgetItem(group, {QString::fromStdString(table.name)});
        item->setToolTip(0, tip(QString::fromStdString(table.name), table.help));
        for (const SqlColumnInfo& column : table.columns) {
            auto* leaf =
                new QTreeWidgetItem(item, {QString::fromStdString(column.name), QString::fromStdString(column.type)});
            for (int i = 0; i < 2; ++i)
                leaf->setToolTip(
                    i, tip(QString::fromStdString(table.name + '.' + column.name + ": " + column.type), column.help));
            leaf->setForeground(1, Theme::current().mutedText);
        }
    }
    filter(filter_->text());
}

void SqlSchema::filter(const QString& text) {
    for (int g = 0; g < tree_->topLevelItemCount(); ++g) {
        QTreeWidgetItem* group = tree_->topLevelItem(g);
        for (int t = 0; t < group->childCount(); ++t) {
            QTreeWidgetItem* table = group->child(t);
            const bool named = table->text(0).contains(text, Qt::CaseInsensitive);
            bool any = named;
            for (int c = 0; c < table->childCount(); ++c) {
                const bool fits = named || table->child(c)->text(0).contains(text, Qt::CaseInsensitive);
                table->child(c)->setHidden(!fits);
                any = any || fits;
            }
            table->setHidden(!any);
            table->setExpanded(any && !named && !text.isEmpty());
        }
    }
}

void SqlSchema::choose(const QTreeWidgetItem* item) {
    if (!item->parent()) return; // "Views", "Tables"
    QString name = item->text(0);
    if (name.contains(QRegularExpression(QStringLiteral("\\W"))))
        name = QStringLiteral("\"%1\"").arg(name.replace(QLatin1Char('"'), QLatin1String("\"\"")));
    emit nameChosen(name);
}

} // namespace kvscope::ui
