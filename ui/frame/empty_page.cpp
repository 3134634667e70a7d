#include "ui/frame/empty_page.h"

#include "ui/frame/as_written.h"
#include "ui/frame/home_window.h"

#include <QAction>
#include <QEvent>
#include <QHBoxLayout>
#include <QLabel>
#include <QPointer>
#include <QPushButton>
#include <QVBoxLayout>

#include <utility>

namespace kvscope::ui {

namespace {

/// A row of buttons. If the page is too narrow for the row, the buttons stand below each other, and a text that is
/// still too long is elided. The accessible name of a button is its whole text.
class ButtonRow final : public QWidget {
public:
    explicit ButtonRow(QWidget* page) : QWidget(page), page_(page) {
        // Otherwise the row's own least width would keep the page so wide that the buttons are never put below each
        // other.
        setMinimumWidth(1);
        page->installEventFilter(this);
    }

    void arrange() {
        auto* row = static_cast<QBoxLayout*>(layout());
        const QMargins margins = page_->layout()->contentsMargins();
        const int room = page_->width() - margins.left() - margins.right();
        QList<QPushButton*> buttons;
        int wanted = 0;
        for (int i = 0; i < row->count(); ++i) {
            auto* button = static_cast<QPushButton*>(row->itemAt(i)->widget());
            button->setText(buttonText(button->accessibleName()));
            button->setToolTip({});
            wanted += button->sizeHint().width() + (i > 0 ? row->spacing() : 0);
            buttons << button;
        }
        row->setDirection(wanted > room ? QBoxLayout::TopToBottom : QBoxLayout::LeftToRight);
        for (QPushButton* button : std::as_const(buttons)) {
            const int tooWide = button->sizeHint().width() - room;
            if (tooWide <= 0) continue;
            const QString whole = button->accessibleName();
            const QFontMetrics metrics = button->fontMetrics();
            button->setText(
                buttonText(metrics.elidedText(whole, Qt::ElideRight, metrics.horizontalAdvance(whole) - tooWide)));
            button->setToolTip(asWritten(whole));
        }
    }

private:
    bool eventFilter(QObject* watched, QEvent* event) override {
        if (watched == page_ && (event->type() == QEvent::Resize || event->type() == QEvent::Show)) arrange();
        return QWidget::eventFilter(watched, event);
    }
    QWidget* page_;
};

} // namespace

EmptyPage::EmptyPage(QWidget* parent)
    : QWidget(parent), title_(new QLabel), text_(new QLabel), actions_(new ButtonRow(this)),
      row_(new QHBoxLayout(actions_)) {
    QFont large = title_->font();
    large.setPointSizeF(large.pointSizeF() * 1.35);
    large.setBold(true);
    title_->setFont(large);
    text_->setProperty("role", QStringLiteral("muted"));
    for (QLabel* label : {title_, text_}) {
        label->setTextFormat(Qt::PlainText); // names of runs may look like markup
        label->setAlignment(Qt::AlignCenter);
        label->setWordWrap(true);
        label->setMaximumWidth(620);
    }
    // When a view becomes empty, the page gets the focus, and not a button such as Stop.
    setFocusPolicy(Qt::StrongFocus);
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
    setAccessibleName(title);
    const auto old = actions_->findChildren<QPushButton*>(QString(), Qt::FindDirectChildrenOnly);
    for (QPushButton* button : old) { // deleted later: the user may just have pressed this button
        button->hide();
        button->setObjectName({});
        row_->removeWidget(button);
        button->deleteLater();
    }
    int shown = 0;
    for (const EmptyAction& action : actions) {
        if (!action.act) continue;
        auto* button = new QPushButton(buttonText(action.text), actions_);
        button->setObjectName(QStringLiteral("emptyAction%1").arg(shown++));
        connect(button, &QPushButton::clicked, this, action.act);
        button->setAccessibleName(action.text); // the whole text, even if the shown text is elided
        row_->addWidget(button);
    }
    actions_->setVisible(shown > 0);
    static_cast<ButtonRow*>(actions_)->arrange();
}

QString EmptyPage::text() const { return title_->text() + QLatin1Char('\n') + text_->text(); }

EmptyAction windowAction(const QWidget& from, const char* name, const QString& text) {
    const QPointer<QAction> action = homeOf(from)->findChild<QAction*>(QLatin1String(name));
    if (!action) return {text, {}};
    return {text, [action] {
                if (action) action->trigger();
            }};
}

} // namespace kvscope::ui
