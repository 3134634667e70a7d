#include "ui/views/cache/cache_controls.h"

#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/widgets/slider_field.h"

#include <QCheckBox>
#include <QComboBox>
#include <QEvent>
#include <QHeaderView>
#include <QPushButton>
#include <QScrollBar>
#include <QSignalBlocker>
#include <QTableWidget>
#include <QVBoxLayout>

#include <cmath>

namespace kvscope::ui {

namespace {

constexpr int kRowHeight = 23;
enum Column { Title, Recorded, Asked, Change, kColumns };

/// As high as its rows.
class NumberTable final : public QTableWidget {
public:
    using QTableWidget::QTableWidget;
    QSize sizeHint() const override {
        return {300, horizontalHeader()->sizeHint().height() + verticalHeader()->defaultSectionSize() * rowCount() + 2};
    }
    QSize minimumSizeHint() const override { return {160, sizeHint().height()}; }
};

} // namespace

CacheControls::CacheControls(QWidget* parent) : QScrollArea(parent) {
    setFrameShape(QFrame::NoFrame);
    setWidgetResizable(true);
    setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Preferred);
    auto* content = new QWidget;
    auto* column = new QVBoxLayout(content);
    column->setContentsMargins(2, 0, 8, 0);
    column->setSpacing(5);

    makePolicy(column);
    makeSliders(column);
    makeTable(column);
    reproduction_ = new QLabel;
    reproduction_->setObjectName(QStringLiteral("reproduction"));
    reproduction_->setWordWrap(true);
    reproduction_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    column->addWidget(reproduction_);
    column->addStretch();
    setWidget(content);

    enableParts();
}

void CacheControls::makePolicy(QVBoxLayout* column) {
    auto* policyRow = new QHBoxLayout;
    auto* policyLabel = new MutedLabel(tr("Policy"));
    policy_ = new QComboBox;
    policy_->setObjectName(QStringLiteral("policy"));
    policy_->setAccessibleName(tr("Policy"));
    policy_->setToolTip(tr("Which resident block leaves when another is loaded"));
    for (const ReplayPolicyEntry& policy : replayPolicies()) {
        policy_->addItem(QString::fromStdString(policy.name));
        policy_->setItemData(policy_->count() - 1, QString::fromStdString(policy.help), Qt::ToolTipRole);
    }
    policyLabel->setBuddy(policy_);
    ignoreWheelUnlessFocused(policy_);
    policyRow->addWidget(policyLabel, 1);
    policyRow->addWidget(policy_);
    column->addLayout(policyRow);
    connect(policy_, &QComboBox::currentIndexChanged, this, [this] {
        if (!quiet_) emit changed();
    });
}

void CacheControls::makeSliders(QVBoxLayout* column) {
    using Spread = SliderField::Spread;
    slots_ = new SliderField(QStringLiteral("slots"), tr("Cache size"), tr("slots"),
                             tr("Block slots per sequence, layer and KV head; with a shared pool, per layer and KV "
                                "head. At least what the largest selection needs."),
                             {1, 1, 0, Spread::Linear});
    bandwidth_ = new SliderField(QStringLiteral("bandwidth"), tr("Link bandwidth"), tr("GB/s"),
                                 tr("Host to device; GB is 10⁹ bytes. PCIe 4 x16 reaches about 25, PCIe 5 x16 55."),
                                 {0.1, 1000, 2, Spread::Logarithmic});
    latency_ = new SliderField(QStringLiteral("latency"), tr("Link latency"), tr("µs"),
                               tr("Per transfer: each layer of each step loads its misses in one."),
                               {0, 1000, 1, Spread::Quadratic});
    ahead_ = new SliderField(QStringLiteral("ahead"), tr("Load ahead"), tr("layers"),
                             tr("Guess a layer's misses that many layers before its attention needs them; 0 loads on "
                                "demand. Moves time, not misses."),
                             {0, 1, 0, Spread::Linear});
    accuracy_ = new SliderField(QStringLiteral("accuracy"), tr("Right guesses"), QStringLiteral("%"),
                                tr("Share of the blocks loaded ahead that the layer does need; the others are loaded "
                                   "in vain, and what they should have been on demand."),
                                {0, 100, 0, Spread::Linear});
    for (SliderField* field : {slots_, bandwidth_, latency_, ahead_, accuracy_}) {
        column->addWidget(field);
        connect(field, &SliderField::changed, this, [this] {
            enableParts();
            if (!quiet_) emit changed();
        });
    }
    accuracy_->setValue(100);
    shared_ = new QCheckBox(tr("One pool for all sequences"));
    shared_->setObjectName(QStringLiteral("sharedPool"));
    shared_->setToolTip(tr("All sequences of the batch share the slots of a layer and KV head"));
    asRecorded_ = new QPushButton(tr("As recorded"));
    asRecorded_->setObjectName(QStringLiteral("asRecorded"));
    asRecorded_->setToolTip(tr("Back to the recorded policy, size and link"));
    asRecorded_->setAutoDefault(false);
    auto* last = new QHBoxLayout;
    last->addWidget(shared_, 1);
    last->addWidget(asRecorded_, 0, Qt::AlignRight);
    column->addLayout(last);
    column->addSpacing(4);
    connect(shared_, &QCheckBox::toggled, this, &CacheControls::sharedPoolChanged);
    connect(asRecorded_, &QPushButton::clicked, this, [this] { setQuestion(recorded_); });
}

void CacheControls::makeTable(QVBoxLayout* column) {
    table_ = new NumberTable(0, kColumns);
    table_->setObjectName(QStringLiteral("whatIfNumbers"));
    table_->setAccessibleName(tr("Recorded and predicted numbers"));
    table_->setEditTriggers(QAbstractItemView::NoEditTriggers);
    table_->setSelectionBehavior(QAbstractItemView::SelectRows);
    table_->setShowGrid(false);
    table_->setAlternatingRowColors(true);
    table_->setFrameShape(QFrame::NoFrame);
    table_->setTabKeyNavigation(false); // Tab goes on to the next control
    table_->setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    table_->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    table_->verticalHeader()->hide();
    table_->verticalHeader()->setDefaultSectionSize(kRowHeight);
    table_->verticalHeader()->setMinimumSectionSize(kRowHeight);
    table_->horizontalHeader()->setHighlightSections(false);
    table_->horizontalHeader()->setMinimumSectionSize(40);
    table_->horizontalHeader()->setSectionResizeMode(QHeaderView::Stretch);
    for (const Column whole : {Title, Change}) // "−33.3 points" was cut
        table_->horizontalHeader()->setSectionResizeMode(whole, QHeaderView::ResizeToContents);
    table_->setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Fixed);
    column->addWidget(table_);
}

QSize CacheControls::sizeHint() const {
    // Wide enough for four columns of numbers, whatever the font.
    const int wide = fontMetrics().horizontalAdvance(QStringLiteral("Exposed transfer  ≈ 123,456,789  ≈ 123,456,789")) +
                     60 + verticalScrollBar()->sizeHint().width();
    return {wide, 320};
}

void CacheControls::setRun(const WhatIf& whatIf, const WhatIfQuestion& question) {
    quiet_ = true;
    recorded_ = whatIf.recorded();
    slots_->setRange(whatIf.smallestSlots(), whatIf.largestSlots());
    bandwidth_->setRange(std::min(0.1, recorded_.gbps), std::max(1000.0, recorded_.gbps));
    latency_->setRange(0, std::max(1000.0, recorded_.latencyUs));
    ahead_->setRange(0, std::max(whatIf.trace().run.layers, 1));
    shared_->setVisible(whatIf.trace().run.sequences > 1);
    quiet_ = false;
    const QSignalBlocker blocker(this);
    setQuestion(question);
}

WhatIfQuestion CacheControls::question() const {
    WhatIfQuestion question;
    question.policy = policy_->currentText().toStdString();
    question.size = int(std::lround(slots_->value()));
    // The boxes show rounded numbers. A number that nobody has changed stands for the recorded, unrounded one.
    const auto unrounded = [](double shown, double recorded, double step) {
        return std::abs(shown - recorded) <= step / 2 * (1 + 1e-9) ? recorded : shown;
    };
    question.gbps = unrounded(bandwidth_->value(), recorded_.gbps, 0.01);
    question.latencyUs = unrounded(latency_->value(), recorded_.latencyUs, 0.1);
    question.layersAhead = int(std::lround(ahead_->value()));
    question.accuracy = accuracy_->value() / 100;
    return question;
}

void CacheControls::setQuestion(const WhatIfQuestion& wanted) {
    const WhatIfQuestion before = question();
    quiet_ = true;
    policy_->setCurrentText(QString::fromStdString(wanted.policy));
    slots_->setValue(wanted.size);
    bandwidth_->setValue(wanted.gbps);
    latency_->setValue(wanted.latencyUs);
    ahead_->setValue(wanted.layersAhead);
    accuracy_->setValue(100 * wanted.accuracy);
    quiet_ = false;
    enableParts();
    if (!(question() == before)) emit changed();
}

bool CacheControls::sharedPool() const { return shared_->isChecked(); }

void CacheControls::setSharedPool(bool shared) {
    const QSignalBlocker blocker(shared_);
    shared_->setChecked(shared);
}

void CacheControls::enableParts() { accuracy_->setEnabled(ahead_->value() > 0); }

void CacheControls::setNumbers(const std::vector<CacheNumber>& numbers) {
    numbers_ = numbers;
    fillTable();
}

void CacheControls::setReproduction(const QString& text, bool good) {
    good_ = good;
    reproductionText_ = text;
    const QColor colour = good ? Theme::current().ok : Theme::current().danger;
    reproduction_->setText(
        QStringLiteral("<span style=\"color:%1\">%2</span>").arg(colour.name(), text.toHtmlEscaped()));
    reproduction_->setAccessibleName(text);
    reproduction_->setVisible(!text.isEmpty());
}

void CacheControls::fillTable() {
    const Theme& theme = Theme::current();
    table_->setHorizontalHeaderLabels({QString(), tr("Recorded"), tr("What if"), tr("Change")});
    table_->setRowCount(int(numbers_.size()));
    for (int row = 0; row < table_->rowCount(); ++row) {
        const CacheNumber& number = numbers_[row];
        const QString texts[] = {number.title, number.text(number.a), number.asked(), shortDifference(number)};
        const int verdict = number.verdict();
        for (int column = 0; column < kColumns; ++column) {
            QTableWidgetItem* item = table_->item(row, column);
            if (!item) table_->setItem(row, column, item = new QTableWidgetItem);
            item->setText(texts[column]);
            item->setToolTip(QStringLiteral("<p>%1</p>").arg(number.help.toHtmlEscaped()));
            item->setTextAlignment((column == Title ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
            QColor colour = column == Title && number.title.startsWith(QLatin1Char(' ')) ? theme.mutedText : theme.text;
            if (column == Recorded || (column == Asked && number.estimated)) colour = theme.mutedText;
            if (column == Change)
                colour = number.estimated || verdict == 0 ? theme.mutedText : verdict > 0 ? theme.ok : theme.danger;
            item->setForeground(colour);
        }
    }
    for (int column = 0; column < kColumns; ++column)
        if (auto* item = table_->horizontalHeaderItem(column))
            item->setTextAlignment((column == Title ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
    table_->updateGeometry();
}

/// The column scrolls only up and down: if it were narrower than its parts, it would cut them.
QSize CacheControls::minimumSizeHint() const {
    return {widget()->minimumSizeHint().width() + verticalScrollBar()->sizeHint().width(), 120};
}

void CacheControls::resizeEvent(QResizeEvent* event) {
    QScrollArea::resizeEvent(event);
    table_->setColumnHidden(Recorded, width() < 0.9 * sizeHint().width()); // the change still says it
}

void CacheControls::changeEvent(QEvent* event) {
    QScrollArea::changeEvent(event);
    if (event->type() != QEvent::PaletteChange && event->type() != QEvent::StyleChange) return;
    if (!numbers_.empty()) fillTable();
    if (!reproductionText_.isEmpty()) setReproduction(reproductionText_, good_);
}

} // namespace kvscope::ui
