#include "ui/views/roofline/roofline_controls.h"

#include "base/error.h"
#include "core/model/model.h"
#include "core/select/method.h"
#include "core/transfer/link.h"
#include "ui/frame/small_widgets.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QHBoxLayout>
#include <QLabel>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QToolButton>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

const QString kOfRun = QStringLiteral("run"); // data of the picker entries that stand for the run's own
const QString kUnknown = QStringLiteral("?"); // data of the entries for what the run's trace does not say

/// Shapes of models that are compiled in, loaded once.
const std::vector<ModelShape>& embeddedShapes() {
    static const std::vector<ModelShape> shapes = [] {
        std::vector<ModelShape> list;
        for (const std::string& name : embeddedModels())
            if (name != kDiffusionModel) // the model of costs is of steps that decode token by token
                list.push_back(shapeOf(*Model::load(name)));
        return list;
    }();
    return shapes;
}

ModelConfig configOfShape(const ModelShape& shape) { return configOf(shape, 1 << 20); }

} // namespace

RooflineControls::RooflineControls(QWidget* view) : ToolStrip(view) {
    try {
        gpus_ = GpuTable::load();
    } catch (const Error& error) {
        problem_ = QString::fromStdString(oneLine(error));
    }
    axis_ = addPicker("axis", tr("Along"), tr("The number that is varied from left to right"));
    axis_->addItems({tr("Batch"), tr("Context"), tr("Hit rate"), tr("k_q / k")});
    family_ = addPicker("family", tr("Curves"), tr("What differs from curve to curve"));
    family_->addItems({tr("Cache placement"), tr("Batch size, offloaded")});
    shape_ = addPicker("shape", tr("Model"), tr("The shape whose bytes and operations are counted, weights in bf16"));
    method_ = addPicker("method", tr("Method"), tr("The sparse method, with its default budgets"));
    gpu_ = addPicker("gpu", tr("GPU"), tr("From the GPU table; kvscope-cli roofline --measure adds this machine"));
    link_ = addPicker("link", tr("Link"), tr("Host to device, as transfers of KV blocks reach it"));

    context_ = new QSpinBox;
    context_->setRange(64, 1 << 22);
    context_->setSingleStep(1024);
    context_->setGroupSeparatorShown(true);
    context_->setSuffix(tr(" tokens"));
    context_->setValue(16384);
    place(context_, "context", tr("Context"), tr("Tokens of each sequence"));
    batch_ = new QSpinBox;
    batch_->setRange(1, 4096);
    batch_->setValue(16);
    place(batch_, "batch", tr("Batch"),
          tr("Sequences that want to be decoded; those that do not fit the memory wait for the others"));
    hitRate_ = new QDoubleSpinBox;
    hitRate_->setRange(0, 100);
    hitRate_->setDecimals(1);
    hitRate_->setSuffix(tr(" %"));
    hitRate_->setValue(95);
    place(hitRate_, "hitRate", tr("Hit rate"),
          tr("Share of the selected blocks that are on the device already; at least 1 - k_q / k"));
    queryShare_ = new QDoubleSpinBox;
    queryShare_->setRange(0, 1);
    queryShare_->setDecimals(3);
    queryShare_->setSingleStep(0.05);
    place(
        queryShare_, "queryShare", tr("k_q / k"),
        tr("Share of the selected blocks that the query may change from one step to the next: the hit rate never falls "
           "below 1 - k_q / k between two block openings"));
    kvGib_ = new QDoubleSpinBox;
    kvGib_->setRange(0, 10000);
    kvGib_->setDecimals(1);
    kvGib_->setSuffix(tr(" GiB"));
    kvGib_->setSpecialValueText(tr("all free"));
    place(kvGib_, "kvMemory", tr("KV memory"),
          tr("Device memory for the KV cache: set it to compare the curves at equal memory"));
    logarithmic_ = new QCheckBox(tr("Logarithmic"));
    logarithmic_->setObjectName(QStringLiteral("logarithmic"));
    logarithmic_->setToolTip(tr("Tokens per second on a logarithmic axis"));
    logarithmic_->setChecked(true);
    layout()->addWidget(logarithmic_);
    asRun_ = new QToolButton;
    asRun_->setObjectName(QStringLiteral("asRun"));
    asRun_->setText(tr("As the run"));
    asRun_->setProperty("framed", true);
    asRun_->setToolTip(tr("Model, GPU, method, context, batch and hit rate of the run in front"));
    asRun_->setStyleSheet(QStringLiteral("padding: 1px 10px; min-height: 0")); // as high as the pickers beside it
    logarithmic_->setFixedHeight(axis_->sizeHint().height());
    layout()->addWidget(asRun_);
    connect(asRun_, &QToolButton::clicked, this, &RooflineControls::adoptRun);

    fillShapes();
    fillGpus();
    fillMethods();
    const auto byHand = [this] { touched(); };
    for (QComboBox* box : {family_, gpu_, link_}) connect(box, &QComboBox::currentIndexChanged, this, byHand);
    connect(shape_, &QComboBox::currentIndexChanged, this, [this] {
        if (filling_) return;
        methodChanged();
        touched();
    });
    connect(method_, &QComboBox::currentIndexChanged, this, [this] {
        if (filling_) return;
        methodChanged();
        touched();
    });
    connect(axis_, &QComboBox::currentIndexChanged, this, &RooflineControls::axisChanged);
    for (QSpinBox* box : {context_, batch_}) connect(box, &QSpinBox::valueChanged, this, byHand);
    for (QDoubleSpinBox* box : {hitRate_, kvGib_}) connect(box, &QDoubleSpinBox::valueChanged, this, byHand);
    connect(queryShare_, &QDoubleSpinBox::valueChanged, this, [this](double share) {
        hitRate_->setMinimum(std::ceil(1000 * (1 - share)) / 10);
        touched();
    });
    connect(logarithmic_, &QCheckBox::toggled, this, &RooflineControls::changed);
    for (QWidget* editor :
         {static_cast<QWidget*>(context_), static_cast<QWidget*>(batch_), static_cast<QWidget*>(hitRate_),
          static_cast<QWidget*>(queryShare_), static_cast<QWidget*>(kvGib_)})
        ignoreWheelUnlessFocused(editor);
    methodChanged();
    enable();
}

QComboBox* RooflineControls::addPicker(const char* name, const QString& label, const QString& help) {
    auto* picker = new QComboBox;
    picker->setSizeAdjustPolicy(QComboBox::AdjustToContents);
    place(picker, name, label, help);
    return picker;
}

void RooflineControls::place(QWidget* editor, const char* name, const QString& label, const QString& help) {
    auto* box = new QWidget(this);
    auto* row = new QHBoxLayout(box);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(6);
    auto* caption = new MutedLabel(label, box);
    caption->setBuddy(editor);
    editor->setObjectName(QLatin1String(name));
    editor->setAccessibleName(label);
    editor->setToolTip(help);
    row->addWidget(caption);
    row->addWidget(editor);
    layout()->addWidget(box);
}

void RooflineControls::fillShapes() {
    const QSignalBlocker quiet(shape_);
    const QString before = shape_->currentData().toString();
    shape_->clear();
    if (run_ && !runShape_) shape_->addItem(tr("not known (of the run)"), kUnknown);
    if (runShape_) shape_->addItem(tr("%1 (of the run)").arg(QString::fromStdString(runShape_->name)), kOfRun);
    for (const ModelShape& shape : modelShapes())
        shape_->addItem(QString::fromStdString(shape.name), QString::fromStdString(shape.name));
    for (const ModelShape& shape : embeddedShapes())
        shape_->addItem(QString::fromStdString(shape.name), QString::fromStdString(shape.name));
    const int same = shape_->findData(before.isEmpty() ? QStringLiteral("nosa-8b") : before);
    shape_->setCurrentIndex(std::max(0, same >= 0 ? same : shape_->findData(QStringLiteral("nosa-8b"))));
}

void RooflineControls::fillMethods() {
    const QSignalBlocker quiet(method_);
    const QString before = method_->currentData().toString();
    method_->clear();
    if (run_ && !run_->method.dense)
        method_->addItem(tr("%1 (as recorded)").arg(QString::fromStdString(methodTitle(run_->row.method))), kOfRun);
    for (const MethodEntry& method : methods())
        if (method.name != "full")
            method_->addItem(QString::fromStdString(method.title), QString::fromStdString(method.name));
    const QString usual = QString::fromLatin1(kDefaultMethod);
    const int same = method_->findData(before.isEmpty() ? usual : before);
    method_->setCurrentIndex(std::max(0, same >= 0 ? same : method_->findData(usual)));
}

void RooflineControls::fillGpus() {
    for (const GpuSpec& gpu : gpus_.all())
        gpu_->addItem(gpu.name == kLocalGpu || gpu.name == kLocalCpu
                          ? tr("%1 (this machine, measured)").arg(QString::fromStdString(gpu.title))
                          : QString::fromStdString(gpu.title),
                      QString::fromStdString(gpu.name));
    gpu_->setCurrentIndex(gpu_->findData(QString::fromStdString(gpus_.preferred().name)));
    link_->addItem(tr("The GPU's own"), QString());
    for (const char* name : {"pcie4", "pcie5"}) {
        const Link link = Link::parse(name);
        link_->addItem(tr("PCIe %1 x16, %2 GB/s").arg(QLatin1Char(name[4])).arg(link.gigabytesPerSecond),
                       QLatin1String(name));
    }
    for (const int rate : {13, 100, 200, 450}) link_->addItem(tr("%1 GB/s").arg(rate), QString::number(rate));
}

RooflineChoice RooflineControls::choice() const {
    RooflineChoice choice;
    const QString shape = shape_->currentData().toString();
    if (shape == kOfRun && runShape_) {
        choice.shape = *runShape_;
    } else {
        choice.shape = modelShapes().front();
        for (const ModelShape& known : modelShapes())
            if (shape.toStdString() == known.name) choice.shape = known;
        for (const ModelShape& known : embeddedShapes())
            if (shape.toStdString() == known.name) choice.shape = known;
    }
    const QString gpu = gpu_->currentData().toString();
    choice.known = shape != kUnknown && gpu != kUnknown;
    choice.gpu = gpu == kUnknown ? gpus_.preferred() : gpus_.get(gpu.toStdString());
    const QString link = link_->currentData().toString();
    if (!link.isEmpty()) choice.gpu.linkGbps = Link::parse(link.toStdString()).gigabytesPerSecond;
    const QString method = method_->currentData().toString();
    if (method == kOfRun && run_) {
        choice.method = run_->method;
        choice.methodTitle = QString::fromStdString(methodTitle(run_->row.method));
    } else {
        const MethodEntry& entry = findMethod(method.toStdString());
        const ModelConfig config = configOfShape(choice.shape);
        choice.method = entry.make(resolveDefaults(entry, config), config);
        choice.methodTitle = QString::fromStdString(entry.title);
    }
    choice.context = context_->value();
    choice.batch = batch_->value();
    choice.hitRate = hitRate_->value() / 100;
    choice.kvGib = kvGib_->value();
    choice.bytesPerElement = choice.gpu.name == kLocalCpu ? 4 : 2; // the CPU backend keeps float32
    choice.axis = RooflineAxis(axis_->currentIndex());
    choice.family = RooflineFamily(family_->currentIndex());
    return choice;
}

bool RooflineControls::logarithmic() const { return logarithmic_->isChecked(); }

double RooflineControls::queryShare() const { return queryShare_->value(); }

void RooflineControls::setRun(const std::optional<MeasuredRun>& run, const std::optional<ModelShape>& shape) {
    run_ = run;
    runShape_ = shape;
    const QString before = method_->currentData().toString();
    fillShapes();
    offerUnknownMachine();
    fillMethods();
    if (method_->currentData().toString() != before || before == kOfRun) methodChanged();
    asRun_->setEnabled(run_.has_value());
    if (run_ && !byHand_)
        adoptRun();
    else
        emit changed();
}

/// An entry for the machine of a run that the table does not have, first of the pickers', while such a run is in front.
bool RooflineControls::knowsModel() const { return shape_->currentData().toString() != kUnknown; }
bool RooflineControls::knowsMachine() const { return gpu_->currentData().toString() != kUnknown; }

void RooflineControls::offerUnknownMachine() {
    const QSignalBlocker quiet(gpu_);
    const bool wanted = run_ && gpuOfRun(gpus_, run_->row) == nullptr;
    const int at = gpu_->findData(kUnknown);
    if (wanted == (at >= 0)) return;
    if (wanted)
        gpu_->insertItem(0, tr("not in the table (of the run)"), kUnknown);
    else
        gpu_->removeItem(at);
    if (gpu_->currentIndex() < 0 || (!wanted && gpu_->currentData().toString().isEmpty()))
        gpu_->setCurrentIndex(gpu_->findData(QString::fromStdString(gpus_.preferred().name)));
}

void RooflineControls::adoptRun() {
    if (!run_) return;
    filling_ = true;
    shape_->setCurrentIndex(shape_->findData(runShape_ ? kOfRun : kUnknown));
    if (!run_->method.dense) method_->setCurrentIndex(method_->findData(kOfRun));
    if (const GpuSpec* gpu = gpuOfRun(gpus_, run_->row))
        gpu_->setCurrentIndex(gpu_->findData(QString::fromStdString(gpu->name)));
    else
        gpu_->setCurrentIndex(gpu_->findData(kUnknown));
    link_->setCurrentIndex(0);
    methodChanged();
    context_->setValue(int(std::lround(run_->context)));
    batch_->setValue(int(std::lround(run_->batch)));
    if (!std::isnan(run_->hitRate)) hitRate_->setValue(100 * run_->hitRate);
    filling_ = false;
    byHand_ = false;
    emit changed();
}

void RooflineControls::methodChanged() {
    const QSignalBlocker quiet(queryShare_);
    const double share = kvscope::queryShare(choice().method);
    queryShare_->setValue(share);
    const QSignalBlocker quietToo(hitRate_);
    hitRate_->setMinimum(std::ceil(1000 * (1 - share)) / 10);
}

void RooflineControls::axisChanged() {
    enable();
    emit changed();
}

void RooflineControls::enable() {
    const auto axis = RooflineAxis(axis_->currentIndex());
    const bool batches =
        RooflineFamily(family_->currentIndex()) == RooflineFamily::Batches && axis != RooflineAxis::Batch;
    family_->setEnabled(axis != RooflineAxis::Batch);
    batch_->setEnabled(axis != RooflineAxis::Batch && !batches);
    context_->setEnabled(axis != RooflineAxis::Context);
    hitRate_->setEnabled(axis != RooflineAxis::HitRate && axis != RooflineAxis::QueryShare);
    queryShare_->setEnabled(axis != RooflineAxis::QueryShare);
    asRun_->setEnabled(run_.has_value());
}

void RooflineControls::touched() {
    if (filling_) return;
    byHand_ = true;
    enable();
    emit changed();
}

} // namespace kvscope::ui
