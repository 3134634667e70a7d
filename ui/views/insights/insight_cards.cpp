#include "ui/views/insights/insight_cards.h"

#include "base/indexed.h"
#include "ui/frame/as_written.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"

#include <QAbstractListModel>
#include <QHBoxLayout>
#include <QPainter>
#include <QPushButton>
#include <QRegularExpression>
#include <QResizeEvent>
#include <QScrollBar>
#include <QStyledItemDelegate>

#include <algorithm>

namespace kvscope::ui {

class InsightModel final : public QAbstractListModel {
    Q_OBJECT
public:
    using QAbstractListModel::QAbstractListModel;
    void set(std::vector<Insight> insights) {
        beginResetModel();
        insights_ = std::move(insights);
        endResetModel();
    }
    const Numbered<Insight>& insights() const { return insights_; }
    int rowCount(const QModelIndex& parent = {}) const override { return parent.isValid() ? 0 : int(insights_.size()); }
    QVariant data(const QModelIndex& index, int role) const override {
        if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
        const Insight& insight = insights_[index.row()];
        const QString severity = insight.severity == Severity::Alarm ? tr("Alarm") : tr("Note");
        if (role == Qt::DisplayRole) return shownText(insight.title);
        if (role == Qt::AccessibleTextRole) return severity + QStringLiteral(": ") + shownText(insight.title);
        if (role == Qt::AccessibleDescriptionRole)
            return shownText(insight.detail) + QLatin1Char(' ') + shownText(insight.advice);
        if (role == Qt::ToolTipRole)
            return asWritten(tr("Click or press Enter to see it: %1").arg(placeOf(insight.evidence)));
        return {};
    }

private:
    Numbered<Insight> insights_;
};

namespace {

constexpr int kPadding = 10, kIcon = 18, kGap = 4, kSpacing = 6;
constexpr int kButtonRoom = 14; // more height for the last line of a card with buttons

class CardDelegate final : public QStyledItemDelegate {
public:
    CardDelegate(const InsightModel& model, QObject* parent) : QStyledItemDelegate(parent), model_(model) {}
    void paint(QPainter* painter, const QStyleOptionViewItem& option, const QModelIndex& index) const override {
        const bool marked = option.state & (QStyle::State_Selected | QStyle::State_MouseOver);
        drawInsight(painter, option.rect.adjusted(0, 0, 0, -kSpacing), option.font, insight(index), Theme::current(),
                    marked, insight(index).proposal ? kButtonRoom : 0);
    }
    QSize sizeHint(const QStyleOptionViewItem& option, const QModelIndex& index) const override {
        const auto* view = qobject_cast<const QListView*>(option.widget);
        const int width = view ? view->viewport()->width() : 600;
        const QRect area(0, 0, width, 0);
        const int buttons = insight(index).proposal ? kButtonRoom : 0;
        return {width,
                drawInsight(nullptr, area, option.font, insight(index), Theme::current(), false, buttons) + kSpacing};
    }

private:
    const Insight& insight(const QModelIndex& index) const { return model_.insights()[index.row()]; }
    const InsightModel& model_;
};

/// A disc with "!" or "i": told apart by shape and text, not by colour alone.
void drawSeverity(QPainter& painter, QRect place, Severity severity, const Theme& theme) {
    const QColor colour = severity == Severity::Alarm ? theme.danger : theme.accent;
    painter.setPen(Qt::NoPen);
    painter.setBrush(colour);
    if (severity == Severity::Alarm) {
        const QPointF triangle[] = {{place.center().x() + 0.5, double(place.top())},
                                    {place.right() + 1.0, place.bottom() + 1.0},
                                    {double(place.left()), place.bottom() + 1.0}};
        painter.drawPolygon(triangle, 3);
    } else {
        painter.drawEllipse(place);
    }
    QFont font = painter.font();
    font.setBold(true);
    font.setPixelSize(12);
    painter.setFont(font);
    painter.setPen(theme.base);
    painter.drawText(severity == Severity::Alarm ? place.adjusted(0, 4, 0, 2) : place, Qt::AlignCenter,
                     severity == Severity::Alarm ? QStringLiteral("!") : QStringLiteral("i"));
}

} // namespace

QString placeOf(const Evidence& evidence) {
    QString text;
    for (const ViewEntry& entry : views())
        if (evidence.view == entry.id) text = QObject::tr(entry.title);
    if (text.isEmpty()) text = QString::fromStdString(evidence.view);
    if (evidence.firstStep >= 0)
        text += evidence.firstStep == evidence.lastStep
                    ? QObject::tr(", step %1").arg(evidence.firstStep)
                    : QObject::tr(", steps %1–%2").arg(evidence.firstStep).arg(evidence.lastStep);
    if (evidence.layer >= 0) text += QObject::tr(", layer %1").arg(evidence.layer);
    if (evidence.kvHead >= 0) text += QObject::tr(", KV head %1").arg(evidence.kvHead);
    if (evidence.compareRun >= 0) text += QObject::tr(", against run %1").arg(evidence.compareRun);
    return text;
}

QString shownText(const std::string& text) {
    static const QRegularExpression micro(QStringLiteral("(\\d) us\\b")), range(QStringLiteral("(\\d)-(\\d)"));
    return withoutDirections(QString::fromStdString(text))
        .replace(micro, QStringLiteral("\\1 µs"))
        .replace(range, QStringLiteral("\\1–\\2"));
}

int drawInsight(QPainter* painter, const QRect& area, const QFont& font, const Insight& insight, const Theme& theme,
                bool selected, int roomBelow) {
    QFont bold = font, small = font;
    bold.setBold(true);
    small.setPointSizeF(std::max(7.5, font.pointSizeF() - 0.5));
    const int left = area.left() + kPadding + kIcon + kPadding, right = area.right() - kPadding;
    int y = area.top() + kPadding;
    struct Paragraph {
        QString text;
        const QFont* font;
        QColor colour;
        int below;
    };
    const QString price = insight.price ? QString::fromStdString(insight.price->text()) : QString();
    const Paragraph paragraphs[] = {
        {shownText(insight.title), &bold, theme.text, kGap},
        {price, &bold, theme.ok, kGap},
        {shownText(insight.detail), &small, theme.mutedText, kGap},
        {QObject::tr("Try: %1").arg(shownText(insight.advice)), &small, theme.text, kGap},
        {QObject::tr("Show in %1 →").arg(placeOf(insight.evidence)), &small, theme.accent, roomBelow},
    };
    const auto placeFor = [&](const Paragraph& paragraph) {
        const QFontMetrics metrics(*paragraph.font);
        const QRect room(left, y, std::max(80, right - left), 10'000);
        return metrics.boundingRect(room, Qt::AlignLeft | Qt::TextWordWrap, paragraph.text);
    };
    int height = 2 * kPadding;
    for (const Paragraph& paragraph : paragraphs)
        if (!paragraph.text.isEmpty()) height += placeFor(paragraph).height() + paragraph.below;
    if (!painter) return height;

    painter->save();
    painter->setRenderHint(QPainter::Antialiasing);
    painter->setPen(QPen(selected ? theme.accent : theme.border, 1));
    painter->setBrush(theme.raised);
    painter->drawRoundedRect(QRectF(area.left(), area.top(), area.width(), height).adjusted(0.5, 0.5, -0.5, -0.5), 6,
                             6);
    drawSeverity(*painter, {area.left() + kPadding, area.top() + kPadding, kIcon, kIcon}, insight.severity, theme);
    for (const Paragraph& paragraph : paragraphs) {
        if (paragraph.text.isEmpty()) continue;
        const QRect place = placeFor(paragraph);
        painter->setFont(*paragraph.font);
        painter->setPen(paragraph.colour);
        painter->drawText(QRect(left, y, std::max(80, right - left), place.height() + 2),
                          Qt::AlignLeft | Qt::AlignTop | Qt::TextWordWrap, paragraph.text);
        y += place.height() + paragraph.below;
    }
    painter->restore();
    return height;
}

InsightCards::InsightCards(QWidget* parent) : QListView(parent), model_(new InsightModel(this)) {
    setModel(model_);
    setItemDelegate(new CardDelegate(*model_, this));
    setObjectName(QStringLiteral("insights"));
    setAccessibleName(tr("Findings, the most important first"));
    setFrameShape(QFrame::NoFrame);
    setStyleSheet(QStringLiteral("QListView { background: transparent; border: none; padding: 0px; }"));
    setSelectionMode(QAbstractItemView::SingleSelection);
    setEditTriggers(QAbstractItemView::NoEditTriggers);
    setVerticalScrollMode(QAbstractItemView::ScrollPerPixel);
    setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    setMouseTracking(true);
    setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Maximum);
    verticalScrollBar()->setSingleStep(24);
    connect(this, &QListView::clicked, this, [this](const QModelIndex& index) { emit chosen(index.row()); });
    connect(this, &QListView::activated, this, [this](const QModelIndex& index) {
        if (hasFocus()) emit chosen(index.row());
    });
}

const Numbered<Insight>& InsightCards::insights() const { return model_->insights(); }

void InsightCards::setInsights(std::vector<Insight> insights, bool tries, const QString& whyNoRun, bool runs) {
    // A list that gets the focus makes its first card current without choosing it.
    const int row = selectionModel()->isSelected(currentIndex()) ? currentIndex().row() : -1;
    const std::string before = row >= 0 && row < int(this->insights().size()) ? this->insights()[row].id : "";
    model_->set(std::move(insights));
    for (int i = 0; i < model_->rowCount(); ++i)
        if (this->insights()[i].id == before) setCurrentIndex(model_->index(i));
    for (int i = 0; i < model_->rowCount(); ++i) addButtons(i, tries, whyNoRun, runs);
    updateGeometry();
}

/// Buttons at the foot of a card. What lies around them is the card's own: clicks go through to it.
void InsightCards::addButtons(int row, bool tries, const QString& whyNoRun, bool runs) {
    const std::optional<Proposal>& proposal = insights()[row].proposal;
    if (!proposal) return;
    tries = tries && proposal->canReplay();
    runs = runs && proposal->canRun();
    if (!tries && !runs) return;
    auto* foot = new QWidget;
    foot->setAttribute(Qt::WA_NoSystemBackground);
    auto* column = new QVBoxLayout(foot);
    column->setContentsMargins(kPadding, kPadding, kPadding, kPadding + kSpacing - 2);
    column->addStretch();
    auto* line = new QHBoxLayout;
    line->addStretch();
    column->addLayout(line);
    const auto add = [&](const char* name, const QString& text, const QString& tip) {
        auto* button = new QPushButton(text);
        button->setObjectName(QLatin1String(name));
        button->setToolTip(asWritten(tip));
        button->setAutoDefault(false);
        line->addWidget(button);
        return button;
    };
    if (tries)
        connect(add("tryProposal", tr("Try in What if"), tr("Replay the recorded selections with this change")),
                &QPushButton::clicked, this, [this, row] { emit tried(row); });
    if (runs) {
        QPushButton* button = add("runProposal", tr("Run this"),
                                  whyNoRun.isEmpty() ? tr("Run the shown run again with this change") : whyNoRun);
        button->setEnabled(whyNoRun.isEmpty());
        connect(button, &QPushButton::clicked, this, [this, row] { emit run(row); });
    }
    setIndexWidget(model_->index(row), foot);
}

QSize InsightCards::sizeHint() const {
    int height = 2;
    for (int row = 0; row < model_->rowCount(); ++row) height += sizeHintForRow(row);
    return {600, height};
}

void InsightCards::resizeEvent(QResizeEvent* event) {
    QListView::resizeEvent(event);
    if (event->size().width() == event->oldSize().width()) return;
    scheduleDelayedItemsLayout(); // texts wrap elsewhere
    updateGeometry();
}

} // namespace kvscope::ui

#include "insight_cards.moc"
