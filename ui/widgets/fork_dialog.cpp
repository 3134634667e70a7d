#include "ui/widgets/fork_dialog.h"

#include "base/error.h"
#include "core/cache/cache_policy.h"
#include "core/select/method.h"
#include "core/select/recorded_heads.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/parameter_panel.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDialogButtonBox>
#include <QFormLayout>
#include <QFrame>
#include <QPushButton>
#include <QScrollArea>
#include <QSpinBox>
#include <QVBoxLayout>

#include <algorithm>

namespace kvscope::ui {
namespace {

QSpinBox* makeSpin(const char* name, const QString& label, const QString& help, int least, int most, int value) {
    QSpinBox* spin = numberField(name, least, most, value, help);
    spin->setAccessibleName(label);
    return spin;
}

/// The recorded values of the method's parameters.
ParameterValues valuesOf(const MethodEntry& method, const SessionOptions& options) {
    ParameterValues values;
    for (const auto& [key, value] : options.settings) values.set(method.parameters, key, value);
    return values;
}

} // namespace

ForkDialog::ForkDialog(const RunKey& key, const RunRow& row, const RecordedSettings& recorded, const Cursor& cursor,
                       QWidget* parent)
    : QDialog(parent), key_(key), recorded_(recorded), sequence_(std::max(cursor.sequence, 0)) {
    setObjectName(QStringLiteral("forkDialog"));
    setWindowTitle(tr("Fork"));
    setAttribute(Qt::WA_DeleteOnClose);
    what_ = new MutedLabel;
    what_->setObjectName(QStringLiteral("forkWhat"));
    what_->setWordWrap(true);
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(12);
    form->setVerticalSpacing(6);
    addChoices(*form, row, cursor.step, cursor.block);
    parameters_ = new ParameterPanel;
    auto* scroll = new QScrollArea;
    scroll->setWidget(parameters_);
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    scroll->setMinimumHeight(120);
    buttons_ = new QDialogButtonBox(QDialogButtonBox::Ok | QDialogButtonBox::Cancel);
    QPushButton* run = buttons_->button(QDialogButtonBox::Ok);
    run->setText(tr("Run Fork"));
    run->setObjectName(QStringLiteral("forkRun"));
    connect(buttons_, &QDialogButtonBox::accepted, this, &QDialog::accept);
    connect(buttons_, &QDialogButtonBox::rejected, this, &QDialog::reject);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(16, 14, 16, 14);
    layout->setSpacing(10);
    layout->addWidget(what_);
    layout->addLayout(form);
    layout->addWidget(new MutedLabel(tr("Parameters of the method")));
    layout->addWidget(scroll, 1);
    message_ = new InlineMessage;
    message_->setObjectName(QStringLiteral("forkMessage"));
    layout->addWidget(message_);
    layout->addWidget(buttons_);
    connect(method_, &QComboBox::currentIndexChanged, this, &ForkDialog::showMethod);
    connect(step_, &QSpinBox::valueChanged, this, &ForkDialog::explain);
    connect(without_, &QCheckBox::toggled, block_, &QWidget::setEnabled);
    connect(resident_, &QCheckBox::toggled, this, [this](bool on) {
        slots_->setEnabled(!on);
        policy_->setEnabled(!on);
    });
    showMethod();
    explain();
    resizeOnScreen(*this, {440, 560});
}

void ForkDialog::addChoices(QFormLayout& form, const RunRow& row, int step, int block) {
    const SessionOptions& options = recorded_.options;
    const int last = std::max(0, row.steps - 1);
    step_ = makeSpin("forkStep", tr("From step"), tr("The first step that the fork makes by its own choice"), 0, last,
                     std::clamp(step, 0, last));
    method_ = named(new QComboBox, "forkMethod", tr("Method"), tr("Attention method from this step on"));
    for (const MethodEntry& method : methods())
        if (method.decodesTokens && (options.backend == Backend::Cpu || method.runsOnCuda()))
            method_->addItem(QString::fromStdString(method.title), QString::fromStdString(method.name));
    method_->setCurrentIndex(std::max(0, method_->findData(QString::fromStdString(options.method))));
    resident_ = named(new QCheckBox(tr("Every block stays on the device")), "forkResident", tr("Without offloading"),
                      tr("Nothing is transferred"));
    resident_->setChecked(!options.offload);
    resident_->setEnabled(options.offload); // a resident run has no recorded link to go back to
    slots_ = makeSpin("forkSlots", tr("Device slots"), tr("Block slots for every sequence, layer and KV head"), 0,
                      1 << 20, 0);
    slots_->setSpecialValueText(tr("as recorded, or as the method needs"));
    policy_ = named(new QComboBox, "forkPolicy", tr("Cache policy"), tr("Which block gives way to a missing one"));
    policy_->addItem(tr("as recorded, or the method's own"), QString());
    for (const CachePolicy& policy : cachePolicies())
        policy_->addItem(QString::fromStdString(policy.title), QString::fromStdString(policy.name));
    tokens_ = makeSpin("forkTokens", tr("New tokens"), tr("Tokens of each sequence, the given ones included"), 1,
                       1 << 20, options.maxNewTokens);
    without_ = named(new QCheckBox(tr("Without block")), "forkWithout", tr("Without a block"),
                     tr("From the step on no head that chooses blocks selects this one. On the CPU only"));
    block_ = makeSpin("forkBlock", tr("Block that is left out"), without_->toolTip(), 0, 1 << 24, std::max(block, 0));
    without_->setEnabled(options.backend == Backend::Cpu);
    block_->setEnabled(false);
    form.addRow(tr("From step"), step_);
    form.addRow(tr("Method"), method_);
    form.addRow(tr("Device slots"), slots_);
    form.addRow(tr("Cache policy"), policy_);
    form.addRow(QString(), resident_);
    form.addRow(tr("New tokens"), tokens_);
    form.addRow(without_, block_);
}

void ForkDialog::showMethod() {
    const std::string name = method_->currentData().toString().toStdString();
    const MethodEntry& method = findMethod(name);
    ParameterValues values;
    if (name == recorded_.options.method) {
        values = valuesOf(method, recorded_.options);
    } else {
        values = resolveDefaults(method, configOfHeads(recorded_.queryHeads, recorded_.kvHeads, recorded_.headDim));
    }
    parameters_->setParameters(method.parameters, values);
}

void ForkDialog::explain() {
    const int step = step_->value();
    what_->setText(
        step == 0   ? tr("The prompt is read again under these settings, and the fork writes all of its tokens.")
        : step == 1 ? tr("The prompt and the first recorded token are read again under these settings; from step 1 "
                         "on the fork chooses its own.")
                    : tr("The prompt and the first %1 recorded tokens are read again under these settings; from "
                         "step %1 on the fork chooses its own.")
                          .arg(formatCount(step)));
}

void ForkDialog::accept() {
    const std::string name = method_->currentData().toString().toStdString();
    const MethodEntry& method = findMethod(name);
    try {
        auto settings = parameters_->settings();
        if (name == recorded_.options.method) // those that were changed come last and count
            settings.insert(settings.begin(), recorded_.options.settings.begin(), recorded_.options.settings.end());
        specOf(method, settings, configOfHeads(recorded_.queryHeads, recorded_.kvHeads, recorded_.headDim));
    } catch (const Error& error) {
        message_->show(InlineMessage::Kind::Error,
                       withTitles(QString::fromStdString(oneLine(error)), method.parameters));
        return;
    }
    if (tokens_->value() <= step_->value()) {
        message_->show(
            InlineMessage::Kind::Error,
            tr("%1 new tokens end before step %2 writes one. Ask for at least %3.")
                .arg(formatCount(tokens_->value()), formatCount(step_->value()), formatCount(step_->value() + 1)));
        return;
    }
    QDialog::accept();
}

ForkRequest ForkDialog::request() const {
    ForkRequest fork;
    fork.key = key_;
    fork.step = step_->value();
    ForkChange& change = fork.change;
    const SessionOptions& options = recorded_.options;
    const std::string method = method_->currentData().toString().toStdString();
    if (method != options.method) change.method = method;
    change.settings = parameters_->settings();
    if (options.offload && resident_->isChecked()) change.offload = false;
    if (!resident_->isChecked()) {
        if (slots_->value() > 0) change.deviceKvBlocks = slots_->value();
        if (const QString policy = policy_->currentData().toString(); !policy.isEmpty())
            change.cachePolicy = policy.toStdString();
    }
    if (tokens_->value() != options.maxNewTokens) change.maxNewTokens = tokens_->value();
    if (without_->isChecked()) change.leftOut = LeftOutBlock{block_->value(), fork.step, sequence_};
    return fork;
}

} // namespace kvscope::ui
