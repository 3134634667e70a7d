#include "ui/widgets/tune_options.h"

#include "base/error.h"
#include "ui/widgets/form_helpers.h"

#include <QCheckBox>
#include <QComboBox>
#include <QFileDialog>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QSpinBox>

#include <algorithm>
#include <initializer_list>

namespace kvscope::ui {
namespace {

constexpr int kFileItem = 2; // of the prompt sets

QDoubleSpinBox* amountField(const char* name, double most, int decimals, double value, const QString& help) {
    auto* spin = named(new QDoubleSpinBox, name, help);
    spin->setRange(0, most);
    spin->setDecimals(decimals);
    spin->setValue(value);
    return spin;
}

QLineEdit* listField(const char* name, const QString& otherwise, const QString& help) {
    auto* edit = named(new QLineEdit, name, help);
    edit->setPlaceholderText(otherwise);
    return edit;
}

/// "512, 1024" as numbers. @throws Error(BadInput) naming what is none
std::vector<int> numbersOf(const QLineEdit& edit, const QString& what) {
    std::vector<int> numbers;
    if (edit.text().trimmed().isEmpty()) return numbers;
    for (const QString& part : edit.text().split(QLatin1Char(','))) {
        bool valid = false;
        numbers.push_back(part.trimmed().toInt(&valid));
        if (!valid || numbers.back() < 1)
            throw Error(ErrorKind::BadInput,
                        QObject::tr("%1: '%2' is not a number of tokens").arg(what, part.trimmed()).toStdString(),
                        "write numbers with commas between them");
    }
    return numbers;
}

} // namespace

TuneOptions::TuneOptions(QWidget* parent) : QWidget(parent) {
    auto* form = new QFormLayout(this);
    form->setContentsMargins(0, 0, 0, 0);
    addLoad(form);
    addQuality(form);
    addCandidates(form);
    connect(link_, &QComboBox::currentIndexChanged, this, &TuneOptions::changed);
    connect(prompts_, &QComboBox::activated, this, [this](int index) {
        if (index == kFileItem) chooseFile();
    });
    connect(prompts_, &QComboBox::currentIndexChanged, this, [this] {
        const bool needles = prompts_->currentIndex() == 0;
        measure_->setCurrentIndex(
            measure_->findData(int(needles ? QualityMeasure::Answered : QualityMeasure::Agreement)));
        emit changed();
    });
}

/// The memory, the link and the sequences.
void TuneOptions::addLoad(QFormLayout* form) {
    const TuneRequest usual;
    memory_ = amountField("tuneMemory", 1e7, 1, 0, tr("Device memory for the KV cache of all sequences"));
    memory_->setSuffix(QStringLiteral(" MiB"));
    memory_->setSpecialValueText(tr("no limit"));
    form->addRow(tr("Memory"), memory_);
    link_ = named(new QComboBox, "tuneLink", tr("Over which blocks travel; modelled on the CPU"));
    link_->addItem(QStringLiteral("PCIe 5 x16"), QStringLiteral("pcie5"));
    link_->addItem(QStringLiteral("PCIe 4 x16"), QStringLiteral("pcie4"));
    link_->addItem(tr("Other…"));
    linkGbps_ = amountField("tuneLinkGbps", 1e5, 1, 55.5, tr("1e9 bytes per second"));
    linkGbps_->setSuffix(QStringLiteral(" GB/s"));
    linkGbps_->setMinimum(0.1);
    link_->setAccessibleName(tr("Link"));
    linkGbps_->setAccessibleName(tr("Bandwidth of the link"));
    auto* linkRow = new QHBoxLayout;
    linkRow->addWidget(link_, 1);
    linkRow->addWidget(linkGbps_);
    form->addRow(tr("Link"), linkRow);
    batch_ = countField("tuneBatch", 1, 256, usual.batch, tr("Sequences decoded together"), tr("sequences"));
    form->addRow(tr("Batch"), batch_);
}

/// The prompts, and how good their answers must be.
void TuneOptions::addQuality(QFormLayout* form) {
    const PromptSetSize size;
    const TuneRequest usual;
    prompts_ = named(new QComboBox, "tunePrompts", tr("The prompts on which the answers are judged"));
    prompts_->addItem(tr("Needles"), QStringLiteral("needles"));
    prompts_->addItem(tr("Document"), QStringLiteral("document"));
    prompts_->addItem(tr("File…"));
    form->addRow(tr("Prompts"), prompts_);
    count_ = countField("tuneCount", 1, 10'000, size.prompts, tr("Prompts of the set"), tr("prompts"));
    form->addRow(tr("Number"), count_);
    context_ = countField("tuneContext", 16, 1 << 22, size.tokens, tr("Tokens of each prompt"), tr("tokens"));
    form->addRow(tr("Context"), context_);
    newTokens_ =
        countField("tuneNewTokens", 2, 100'000, usual.newTokens, tr("Generated for every prompt"), tr("tokens"));
    form->addRow(tr("Generate"), newTokens_);
    measure_ = named(new QComboBox, "tuneMeasure",
                     tr("Prompts whose text begins with the answer, or tokens that full attention chooses too"));
    measure_->addItem(tr("Prompts answered"), int(QualityMeasure::Answered));
    measure_->addItem(tr("Tokens as full attention"), int(QualityMeasure::Agreement));
    form->addRow(tr("Judged by"), measure_);
    floor_ = amountField("tuneFloor", 100, 0, 100 * usual.floor, tr("The least share that is good enough"));
    floor_->setSuffix(QStringLiteral(" %"));
    sure_ = named(new QCheckBox(tr("surely")), "tuneSure",
                  tr("The lower end of the share's 95 % interval must reach the floor"));
    floor_->setAccessibleName(tr("Least share of good answers"));
    auto* floorRow = new QHBoxLayout;
    floorRow->addWidget(floor_, 1);
    floorRow->addWidget(sure_);
    form->addRow(tr("At least"), floorRow);
}

/// What is tried, and where it runs.
void TuneOptions::addCandidates(QFormLayout* form) {
    const TuneRequest usual;
    methods_ = listField("tuneMethods", tr("all that the model has"), tr("Names with commas, such as full, nosa"));
    form->addRow(tr("Methods"), methods_);
    budgets_ = listField("tuneBudgets", tr("half, once, twice the own"), tr("Tokens attended, with commas"));
    form->addRow(tr("Budgets"), budgets_);
    blocks_ = listField("tuneBlocks", tr("each method's own"), tr("Tokens of a block, with commas"));
    form->addRow(tr("Block sizes"), blocks_);
    runs_ =
        countField("tuneRuns", 1, 10'000, usual.runs, tr("How many of the best predicted are run"), tr("candidates"));
    form->addRow(tr("Run the best"), runs_);
    more_ = countField("tuneMore", 0, 10'000, usual.more, tr("Others that are run while none of these is good enough"),
                       tr("others"));
    form->addRow(tr("then up to"), more_);
    backend_ = named(new QComboBox, "tuneBackend", tr("Where the candidates run"));
    backend_->addItem(tr("CPU"), int(Backend::Cpu));
    backend_->addItem(tr("NVIDIA GPU"), int(Backend::Cuda));
    form->addRow(tr("On"), backend_);
}

void TuneOptions::setMostTokens(int positions) { context_->setMaximum(std::max(16, positions - newTokens_->value())); }

void TuneOptions::setRunning(bool running) {
    for (QWidget* field :
         std::initializer_list<QWidget*>{memory_, link_, batch_, prompts_, newTokens_, measure_, floor_, sure_,
                                         methods_, budgets_, blocks_, runs_, more_, backend_})
        field->setEnabled(!running);
    linkGbps_->setEnabled(!running);
    linkGbps_->setVisible(link_->currentData().toString().isEmpty());
    const bool ofFile = prompts_->currentIndex() == kFileItem;
    count_->setEnabled(!running && !ofFile);
    context_->setEnabled(!running && !ofFile);
}

bool TuneOptions::hasPrompts() const { return !prompts_->currentData().toString().isEmpty(); }

void TuneOptions::chooseFile() {
    const QString file = QFileDialog::getOpenFileName(this, tr("Prompts, one JSON object a line"), {},
                                                      tr("JSON lines (*.jsonl *.json);;All files (*)"));
    if (file.isEmpty()) return prompts_->setCurrentIndex(0);
    prompts_->setItemData(kFileItem, file);
    prompts_->setItemText(kFileItem, QFileInfo(file).fileName());
    emit changed();
}

TuningTask TuneOptions::task() const {
    TuningTask task;
    TuneRequest& request = task.request;
    request.deviceBytes = std::int64_t(memory_->value() * 1048576);
    const QString link = link_->currentData().toString();
    request.link = Link::parse((link.isEmpty() ? QString::number(linkGbps_->value()) : link).toStdString());
    request.backend = Backend(backend_->currentData().toInt());
    request.batch = batch_->value();
    request.newTokens = newTokens_->value();
    request.measure = QualityMeasure(measure_->currentData().toInt());
    request.floor = floor_->value() / 100;
    request.sure = sure_->isChecked();
    request.runs = runs_->value();
    request.more = more_->value();
    for (const QString& method : methods_->text().split(QLatin1Char(','), Qt::SkipEmptyParts))
        request.grid.methods.push_back(method.trimmed().toStdString());
    request.grid.budgets = numbersOf(*budgets_, tr("Budgets"));
    request.grid.blockSizes = numbersOf(*blocks_, tr("Block sizes"));
    task.prompts = prompts_->currentData().toString().toStdString();
    task.size.tokens = context_->value();
    task.size.prompts = count_->value();
    return task;
}

} // namespace kvscope::ui
