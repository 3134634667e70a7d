#include "ui/widgets/empty_page.h"

#include <QAction>
#include <QHBoxLayout>
#include <QLabel>
#include <QPointer>
#include <QPushButton>
#include <QVBoxLayout>

namespace kvscope::ui {

EmptyPage::EmptyPage(QWidget* parent)
    : QWidget(parent), title_(new QLabel), text_(new QLabel), actions_(new QWidget), row_(new QHBoxLayout(actions_)) {
    QFont large = title_->font();
    large.setPointSizeF(large.pointSizeF() * 1.35);
    large.setBold(true);
    title_->setFont(large);
    text_->setProperty("role", QStringLiteral("muted"));
    for (QLabel* label : {title_, text_}) {
        label->setAlignment(Qt::AlignCenter);
        label->setWordWrap(true);
        label->setMaximumWidth(620);
    }
    row_->setContentsMargins(0, 6, 0, 0);
    row_->setSpacing(8);
    auto* column = new QVBoxLayout(this);
    column->addStretch();
    for (QWidget* part : std::initializer_list<QWidget*>{title_, text_, actions_}) {
        auto* line = new QHBoxLayout;
        line->addStretch(1);
        line->addWidget(part, part == actions_ ? 0 : 20);
        line->addStretch(1);
        column->addLayout(line);
        column->addSpacing(6);
    }
    column->addStretch();
}

void EmptyPage::setTexts(const QString& title, const QString& text, const std::vector<EmptyAction>& actions) {
    title_->setText(title);
    text_->setText(text);
    const auto old = actions_->findChildren<QPushButton*>(QString(), Qt::FindDirectChildrenOnly);
    for (QPushButton* button : old) { // later: it may be the one that was just pressed
        button->hide();
        button->setObjectName({});
        row_->removeWidget(button);
        button->deleteLater();
    }
    int shown = 0;
    for (const EmptyAction& action : actions) {
        if (!action.act) continue;
        auto* button = new QPushButton(action.text, actions_);
        button->setObjectName(QStringLiteral("emptyAction%1").arg(shown++));
        connect(button, &QPushButton::clicked, this, action.act);
        row_->addWidget(button);
    }
    actions_->setVisible(shown > 0);
}

QString EmptyPage::text() const { return title_->text() + QLatin1Char('\n') + text_->text(); }

EmptyAction windowAction(const QWidget& from, const char* name, const QString& text) {
    const QPointer<QAction> action = from.window()->findChild<QAction*>(QLatin1String(name));
    if (!action) return {text, {}};
    return {text, [action] {
                if (action) action->trigger();
            }};
}

} // namespace kvscope::ui
