// Lays out the widgets of the session form; session_form.cpp has what they do.
#include "core/cache/cache_policy.h"
#include "core/model/model.h"
#include "ui/frame/small_widgets.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/parameter_panel.h"
#include "ui/widgets/prompt_editor.h"
#include "ui/widgets/session_form.h"

#include <QCheckBox>
#include <QComboBox>
#include <QCoreApplication>
#include <QDoubleSpinBox>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QPointer>
#include <QPushButton>
#include <QScrollArea>
#include <QScrollBar>
#include <QSpinBox>
#include <QThreadPool>
#include <QToolButton>
#include <QVBoxLayout>

namespace kvscope::ui {
namespace {

QDoubleSpinBox* makeDouble(double low, double high, double value, double step, const char* name, const QString& tip) {
    auto* spin = named(new QDoubleSpinBox, name, tip);
    spin->setRange(low, high);
    spin->setSingleStep(step);
    spin->setValue(value);
    return spin;
}

} // namespace

SessionForm::SessionForm(QWidget* parent) : QWidget(parent) {
    loading_ = true;
    auto* scroll = new QScrollArea;
    scroll->setObjectName(QStringLiteral("sessionScroll"));
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    auto* page = new QWidget;
    auto* sections = new QVBoxLayout(page);
    sections->setContentsMargins(8, 4, 8, 8);
    sections->setSpacing(4);
    makeModelSection(sections);
    makePromptSection(sections);
    makeMethodSection(sections);
    makeAdvancedSection(sections);
    sections->addStretch();
    scroll->setWidget(page);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(0);
    layout->addWidget(scroll, 1);
    makeFooter(layout);
    setMinimumSize(240, 190);                             // the footer below the sections, which scroll, is never cut
    for (QComboBox* combo : findChildren<QComboBox*>()) { // long names are elided and do not widen the panel
        combo->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
        combo->setMinimumContentsLength(8);
    }
    setMinimumWidth(std::max(page->minimumSizeHint().width() + scroll->verticalScrollBar()->sizeHint().width() + 2,
                             layout->minimumSize().width())); // the buttons below stand in one row
    setFocusProxy(model_);
    loading_ = false;
    showMethod();
}

SessionForm::~SessionForm() = default;

void SessionForm::makeModelSection(QVBoxLayout* layout) {
    auto* section = new Section(tr("Model"));
    layout->addWidget(section);
    model_ = named(new QComboBox, "model",
                   tr("The embedded model, a Hugging Face folder with config.json, tokenizer.json and safetensors "
                      "files, or a GGUF file. A folder or GGUF file can also be dropped on the window."));
    model_->setAccessibleName(tr("Model"));
    for (const std::string& name : embeddedModels())
        model_->addItem(tr("%1 (embedded)").arg(QString::fromStdString(name)), QString::fromStdString(name));
    addModelDialogs(model_);
    model_->setCurrentIndex(std::max(0, model_->findData(QString::fromLatin1(kDefaultModel))));
    pickedName_ = modelName();
    modelDetails_ = named(new QToolButton, "modelDetails",
                          tr("What was understood of the model: attention, positions, methods, memory of each tier."));
    modelDetails_->setText(tr("Details"));
    modelDetails_->setEnabled(false);
    auto* row = new QHBoxLayout;
    row->addWidget(model_, 1);
    row->addWidget(modelDetails_);
    section->body()->addLayout(row);
    modelFacts_ = addMuted(section->body(), "modelFacts");
    modelFacts_->setText(tr("Loading…"));
    modelMessage_ = new InlineMessage;
    modelMessage_->setObjectName(QStringLiteral("modelMessage"));
    section->body()->addWidget(modelMessage_);
    backend_ = named(new QComboBox, "backend",
                     tr("The CPU models the link's time; a GPU moves blocks over PCIe and measures it."));
    backend_->setAccessibleName(tr("Run on"));
    backend_->addItem(tr("Run on the CPU"), int(Backend::Cpu));
    backend_->addItem(tr("Run on an NVIDIA GPU"), int(Backend::Cuda));
    section->body()->addWidget(backend_);
    backendFacts_ = addMuted(section->body(), "backendFacts");
    backendFacts_->hide();
    connect(backend_, &QComboBox::currentIndexChanged, this, &SessionForm::chooseBackend);
    connect(model_, &QComboBox::currentIndexChanged, this, &SessionForm::modelPicked);
    connect(modelDetails_, &QToolButton::clicked, this, &SessionForm::showModelPage);
}

void SessionForm::showRecordGpu() {
    const bool possible =
        backend_->currentData().toInt() == int(Backend::Cuda) && level_->currentIndex() == int(RecordLevel::Full);
    recordGpu_->setVisible(possible);
    recordCalls_->setVisible(possible);
    recordCalls_->setEnabled(recordGpu_->isChecked());
    pcieCounting_->setVisible(possible);
    pcieCounting_->setEnabled(recordGpu_->isChecked());
}

void SessionForm::chooseBackend() {
    const bool gpu = backend_->currentData().toInt() == int(Backend::Cuda);
    link_->setEnabled(!gpu);
    linkGbps_->setEnabled(!gpu && link_->currentData().toString().isEmpty());
    showRecordGpu();
    backendFacts_->setVisible(gpu);
    revalidate();
    if (!gpu || backendAsked_) return;
    backendAsked_ = true;
    backendFacts_->setText(tr("Looking for a GPU…"));
    // Opening the GPU driver takes a while, so it is done on a worker thread.
    QThreadPool::globalInstance()->start([this, guard = QPointer<SessionForm>(this)] {
        QString text, problem;
        try {
            text = QString::fromStdString(describeGpu());
        } catch (const Error& error) {
            problem = QString::fromStdString(oneLine(error));
        }
        QMetaObject::invokeMethod(
            QCoreApplication::instance(),
            [this, guard, text, problem] {
                if (!guard) return;
                backendFacts_->setText(problem.isEmpty() ? text : tr("No GPU was found"));
                backendProblem_ = problem;
                revalidate();
            },
            Qt::QueuedConnection);
    });
}

/// The last two entries of the list open a dialog: the last one to choose a GGUF file, the one before it to choose a
/// folder.
void SessionForm::modelPicked(int index) {
    QString name = model_->itemData(index).toString();
    if (name.isEmpty()) name = ui::askForModel(this, model_, index);
    if (name.isEmpty()) // the user cancelled: the model picked before stays
        listModel(pickedName_);
    else
        chooseModel(name);
}

void SessionForm::listModel(const QString& nameOrPath) { ui::listModel(model_, pickedName_ = nameOrPath); }

void SessionForm::chooseModel(const QString& nameOrPath) {
    listModel(nameOrPath);
    modelProblem_.clear();
    modelMessage_->clear();
    if (nameOrPath != loadedName_) {
        modelFacts_->setText(tr("Loading…"));
        modelDetails_->setEnabled(false); // the details are those of the model before
    }
    revalidate();
    emit modelRequested(nameOrPath);
}

QString SessionForm::modelName() const { return model_->currentData().toString(); }

void SessionForm::makePromptSection(QVBoxLayout* layout) {
    auto* section = new Section(tr("Prompt"));
    layout->addWidget(section);
    prompt_ = new PromptEditor;
    section->body()->addWidget(prompt_);
    QFormLayout* form = addForm(section->body());
    sequences_ =
        numberField("sequences", 1, kMostSequences, 1,
                    tr("Sequences decoded together. Needle prompts differ by their seed, other prompts repeat."));
    maxNewTokens_ =
        numberField("maxNewTokens", 1, 100000, 128, tr("Decoding ends after so many new tokens."), tr("tokens"));
    sequences_->setAccessibleName(tr("Sequences"));
    form->addRow(alignedLabel(tr("Sequences")), sequences_);
    form->addRow(tr("Generate"), maxNewTokens_);
    connect(prompt_, &PromptEditor::changed, this, &SessionForm::revalidate);
    connect(sequences_, &QSpinBox::valueChanged, this, &SessionForm::revalidate);
    connect(maxNewTokens_, &QSpinBox::valueChanged, this, &SessionForm::revalidate);
}

void SessionForm::makeMethodSection(QVBoxLayout* layout) {
    auto* section = new Section(tr("Method"));
    layout->addWidget(section);
    method_ = named(new QComboBox, "method", tr("How each KV head chooses the blocks it attends to."));
    method_->setAccessibleName(tr("Method"));
    for (const MethodEntry& entry : methods()) {
        method_->addItem(QString::fromStdString(entry.title), QString::fromStdString(entry.name));
        method_->setItemData(method_->count() - 1,
                             QStringLiteral("<p>%1</p><p>%2</p>")
                                 .arg(QString::fromStdString(entry.summary).toHtmlEscaped(),
                                      QString::fromStdString(entry.source).toHtmlEscaped()),
                             Qt::ToolTipRole);
    }
    method_->setCurrentIndex(std::max(0, method_->findData(QString::fromStdString(SessionOptions().method))));
    section->body()->addWidget(method_);
    methodSummary_ = addMuted(section->body(), "methodSummary");
    parameters_ = new ParameterPanel;
    parameters_->setObjectName(QStringLiteral("parameters"));
    section->body()->addWidget(parameters_);
    parameterMessage_ = new InlineMessage(nullptr, false);
    parameterMessage_->setObjectName(QStringLiteral("parameterMessage"));
    section->body()->addWidget(parameterMessage_);
    budget_ = addMuted(section->body(), "budget");
    connect(method_, &QComboBox::currentIndexChanged, this, &SessionForm::showMethod);
    connect(parameters_, &ParameterPanel::changed, this, &SessionForm::revalidate);
}

void SessionForm::makeAdvancedSection(QVBoxLayout* layout) {
    advanced_ = new Section(tr("Advanced"), false);
    advanced_->setObjectName(QStringLiteral("advanced"));
    layout->addWidget(advanced_);
    QFormLayout* form = addForm(advanced_->body());
    addSamplingRows(form);
    addTierRows(form);
    addLinkRows(form);
    addRecordRows(form);
    for (QSpinBox* spin : {topK_, seed_, deviceSlots_})
        connect(spin, &QSpinBox::valueChanged, this, &SessionForm::revalidate);
    for (QDoubleSpinBox* spin : {temperature_, topP_, linkGbps_})
        connect(spin, &QDoubleSpinBox::valueChanged, this, &SessionForm::revalidate);
    for (QComboBox* combo : {kvType_, cachePolicy_, link_, level_})
        connect(combo, &QComboBox::currentIndexChanged, this, &SessionForm::revalidate);
    for (QCheckBox* check : {stopAtEos_, offload_, oracle_})
        connect(check, &QCheckBox::toggled, this, &SessionForm::revalidate);
}

void SessionForm::addSamplingRows(QFormLayout* form) {
    temperature_ =
        makeDouble(0, 10, 0, 0.1, "temperature", tr("0: always the most likely token. Above: tokens are drawn."));
    temperature_->setSpecialValueText(tr("0 (greedy)"));
    topP_ = makeDouble(0.01, 1, 1, 0.05, "topP",
                       tr("Draw among the most likely tokens that hold this share of probability."));
    topK_ = numberField("topK", 0, 100000, 0, tr("Draw among so many most likely tokens; 0: all."));
    topK_->setSpecialValueText(tr("all"));
    seed_ = numberField("samplingSeed", 0, 1 << 30, 0, tr("The same seed draws the same tokens."));
    stopAtEos_ =
        named(new QCheckBox(tr("Stop at the end-of-text token")), "stopAtEos", tr("Off: always generate all tokens."));
    stopAtEos_->setChecked(true);
    temperature_->setAccessibleName(tr("Temperature"));
    form->addRow(alignedLabel(tr("Temperature")), temperature_);
    form->addRow(tr("Top-p"), topP_);
    form->addRow(tr("Top-k"), topK_);
    form->addRow(tr("Seed"), seed_);
    form->addRow(stopAtEos_);
}

void SessionForm::addTierRows(QFormLayout* form) {
    offload_ = named(
        new QCheckBox(tr("Keep the KV cache in host memory")), "offload",
        tr("On: the device tier holds only some blocks, and misses are copied over the link. Off: every block stays "
           "resident."));
    offload_->setChecked(true);
    deviceSlots_ =
        numberField("deviceSlots", 0, 1 << 20, 0,
                    tr("Block slots of the device tier for every sequence, layer and KV head."), tr("blocks"));
    deviceSlots_->setSpecialValueText(tr("as the budget"));
    kvType_ = named(new QComboBox, "kvType",
                    tr("Type of full KV blocks, on the device, on the host and on the link. The newest block keeps the "
                       "backend's own type until it is full."));
    kvType_->addItem(tr("The backend's own type"), QLatin1String(""));
    for (const std::string_view name : kKvTypeNames)
        kvType_->addItem(QString::fromStdString(std::string(name)), QString::fromStdString(std::string(name)));
    cachePolicy_ = named(new QComboBox, "cachePolicy", tr("Which resident block makes room for a missing one."));
    cachePolicy_->addItem(tr("Automatic"), QLatin1String(""));
    cachePolicy_->setItemData(0, tr("Least recently used where the device has slots to spare, else keep selected."),
                              Qt::ToolTipRole);
    for (const CachePolicy& policy : cachePolicies()) {
        cachePolicy_->addItem(QString::fromStdString(policy.title), QString::fromStdString(policy.name));
        cachePolicy_->setItemData(cachePolicy_->count() - 1, QString::fromStdString(policy.help), Qt::ToolTipRole);
    }
    form->addRow(offload_);
    form->addRow(tr("Device KV"), deviceSlots_);
    form->addRow(tr("KV blocks as"), kvType_);
    form->addRow(tr("Cache policy"), cachePolicy_);
}

void SessionForm::addLinkRows(QFormLayout* form) {
    link_ = named(new QComboBox, "link",
                  tr("Link between host memory and device tier. On the CPU backend blocks are really copied and "
                     "the link's time is modelled: bytes / bandwidth + latency."));
    for (const char* name : {"pcie4", "pcie5"}) {
        const Link link = Link::parse(name);
        link_->addItem(tr("%1, %2 GB/s").arg(QString::fromLatin1(name)).arg(link.gigabytesPerSecond),
                       QString::fromLatin1(name));
    }
    link_->setCurrentIndex(link_->findData(QString::fromStdString(Link().name)));
    link_->addItem(tr("Custom…"), QString());
    linkGbps_ = makeDouble(0.01, 10000, Link().gigabytesPerSecond, 1, "linkGbps", tr("Bandwidth; GB is 10⁹ bytes."));
    linkGbps_->setSuffix(tr(" GB/s"));
    form->addRow(tr("Link (modelled)"), link_);
    linkGbps_->setAccessibleName(tr("Link bandwidth"));
    form->addRow(QString(), linkGbps_);
}

void SessionForm::addRecordRows(QFormLayout* form) {
    level_ = named(new QComboBox, "recordLevel",
                   tr("Counters: times, hits, bytes. Selections: also every selected block. Full: also "
                      "its score."));
    for (const char* name : {"Counters", "Selections", "Full"}) level_->addItem(tr(name));
    level_->setCurrentIndex(int(RecordLevel::Full));
    oracle_ =
        named(new QCheckBox(tr("Oracle: captured attention (slow)")), "oracle",
              tr("Also computes the full attention of every step to measure how much of it the selection captures."));
    recordGpu_ =
        named(new QCheckBox(tr("GPU kernels and PCIe counters")), "recordGpu",
              tr("At level Full on a GPU: every kernel and copy through CUPTI, and the link's own byte counters."
                 " Steps take a few percent longer."));
    recordGpu_->setChecked(true);
    recordGpu_->hide();
    recordCalls_ =
        named(new QCheckBox(tr("CUDA calls")), "recordCalls",
              tr("With the kernels: what the host asked the CUDA runtime and driver for, with arrows to what each call"
                 " started. A dozen spans a step."));
    recordCalls_->setChecked(true);
    recordCalls_->hide();
    pcieCounting_ =
        named(new QComboBox, "pcieCounters",
              tr("Who counts the bytes on the GPU's link. PM sampling: every 50 microseconds, with the memory's "
                 "traffic beside it; needs the driver's permission. NVML: every 5 milliseconds. Automatic "
                 "takes the first that works."));
    pcieCounting_->setAccessibleName(tr("PCIe counters"));
    for (const auto& [counting, title] : {std::pair(PcieCounting::Auto, tr("PCIe counters: automatic")),
                                          {PcieCounting::Pm, tr("PCIe counters: PM sampling")},
                                          {PcieCounting::Nvml, tr("PCIe counters: NVML")},
                                          {PcieCounting::Off, tr("No PCIe counters")}})
        pcieCounting_->addItem(title, int(counting));
    pcieCounting_->hide();
    connect(recordGpu_, &QCheckBox::toggled, this, &SessionForm::showRecordGpu);
    connect(level_, &QComboBox::currentIndexChanged, this, &SessionForm::showRecordGpu);
    form->addRow(tr("Record"), level_);
    form->addRow(QString(), recordGpu_);
    form->addRow(QString(), recordCalls_);
    form->addRow(QString(), pcieCounting_);
    form->addRow(oracle_);
}

void SessionForm::makeFooter(QVBoxLayout* layout) {
    auto* footer = new QFrame;
    footer->setObjectName(QStringLiteral("formFooter"));
    auto* body = new QVBoxLayout(footer);
    body->setContentsMargins(12, 6, 12, 10);
    body->setSpacing(6);
    estimate_ = addMuted(body, "estimate");
    estimate_->setToolTip(tr("Blocks of keys and values in float32, for the whole batch at its final length."));
    runMessage_ = new InlineMessage;
    runMessage_->setObjectName(QStringLiteral("runMessage"));
    body->addWidget(runMessage_);
    reason_ = addMuted(body, "runReason");
    run_ = new QPushButton(tr("Run"));
    run_->setObjectName(QStringLiteral("runButton"));
    run_->setProperty("primary", true);
    queue_ = named(new QPushButton(tr("Queue")), "queueButton",
                   tr("Run this session when those before it have ended; at once if none runs (F7)"));
    queue_->setAccessibleName(tr("Add to Queue"));
    sweep_ = named(new QPushButton(tr("Sweep…")), "sweepButton",
                   tr("Queue a run for every combination of values of some settings (Ctrl+F7)"));
    auto* row = new QHBoxLayout;
    row->setSpacing(6);
    row->addWidget(run_, 1);
    for (QPushButton* button : {run_, queue_, sweep_}) button->setMinimumHeight(32);
    row->addWidget(queue_);
    row->addWidget(sweep_);
    body->addLayout(row);
    layout->addWidget(footer);
    connect(run_, &QPushButton::clicked, this, &SessionForm::run);
    connect(queue_, &QPushButton::clicked, this, &SessionForm::addToQueue);
    connect(sweep_, &QPushButton::clicked, this, &SessionForm::sweep);
}

} // namespace kvscope::ui
