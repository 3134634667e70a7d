#include "ui/views/sql/sql_query_bar.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QToolButton>

#include <algorithm>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr int kBuiltInRole = Qt::UserRole + 1; // of an entry: whether the query comes with the program

} // namespace

SqlQueryBar::SqlQueryBar(std::function<QString()> text, QWidget* parent)
    : QWidget(parent), text_(std::move(text)), list_(new QComboBox), save_(new QToolButton), remove_(new QToolButton),
      naming_(new QWidget), name_(new QLineEdit) {
    list_->setObjectName(QStringLiteral("sqlQueries"));
    list_->setAccessibleName(tr("Saved queries"));
    list_->setToolTip(tr("Queries to begin with, and your own"));
    list_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    list_->setMinimumContentsLength(30);
    list_->setMinimumWidth(110); // a narrow view shows the beginning of the name
    save_->setObjectName(QStringLiteral("sqlSave"));
    save_->setText(tr("Save…"));
    save_->setToolTip(tr("Keep this query under a name"));
    remove_->setObjectName(QStringLiteral("sqlRemove"));
    remove_->setText(tr("Delete"));
    remove_->setToolTip(tr("Forget the chosen query of your own"));
    name_->setObjectName(QStringLiteral("sqlName"));
    name_->setAccessibleName(tr("Name of the query"));
    name_->setPlaceholderText(tr("Name, then Enter; Esc to leave it"));
    name_->setMinimumWidth(220);
    auto* naming = new QHBoxLayout(naming_);
    naming->setContentsMargins(0, 0, 0, 0);
    naming->addWidget(name_);
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(6);
    for (QWidget* widget : std::initializer_list<QWidget*>{list_, save_, remove_, naming_}) row->addWidget(widget);
    naming_->hide();

    connect(list_, &QComboBox::activated, this, &SqlQueryBar::choose);
    connect(save_, &QToolButton::clicked, this, [this] { setNaming(true); });
    connect(remove_, &QToolButton::clicked, this, [this] {
        const QString problem = queries_.remove(list_->currentText());
        if (!problem.isEmpty()) emit failed(problem);
        fill();
    });
    connect(name_, &QLineEdit::returnPressed, this, &SqlQueryBar::save);
    fill();
}

bool SqlQueryBar::isOwn(int index) const { return !list_->itemData(index, kBuiltInRole).toBool(); }

void SqlQueryBar::fill() {
    const QString before = list_->currentText();
    list_->clear();
    bool own = false;
    for (const SavedQuery& query : queries_.all()) {
        if (!query.builtIn && !std::exchange(own, true)) list_->insertSeparator(list_->count());
        list_->addItem(query.name, query.sql);
        list_->setItemData(list_->count() - 1, query.builtIn, kBuiltInRole);
    }
    list_->setCurrentIndex(std::max(0, list_->findText(before)));
    remove_->setEnabled(isOwn(list_->currentIndex()));
}

void SqlQueryBar::choose(int index) {
    remove_->setEnabled(isOwn(index));
    emit chosen(list_->itemData(index).toString());
}

bool SqlQueryBar::isNaming() const { return naming_->isVisible(); }

void SqlQueryBar::setNaming(bool naming) {
    naming_->setVisible(naming);
    save_->setVisible(!naming);
    remove_->setVisible(!naming);
    if (!naming) {
        emit named();
        return;
    }
    name_->setText(isOwn(list_->currentIndex()) ? list_->currentText() : QString());
    name_->selectAll();
    name_->setFocus();
}

void SqlQueryBar::save() {
    const QString problem = queries_.save(name_->text(), text_());
    if (!problem.isEmpty()) {
        emit failed(problem);
        return;
    }
    const QString name = name_->text().trimmed();
    setNaming(false);
    fill();
    list_->setCurrentIndex(std::max(0, list_->findText(name)));
    remove_->setEnabled(true);
    emit saved(name);
}

} // namespace kvscope::ui
