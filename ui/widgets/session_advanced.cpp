#include "ui/widgets/session_advanced.h"

#include "core/cache/cache_policy.h"
#include "ui/frame/small_widgets.h"
#include "ui/widgets/form_helpers.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QFormLayout>
#include <QSpinBox>
#include <QVBoxLayout>

#include <string>
#include <string_view>
#include <utility>

namespace kvscope::ui {
namespace {

QDoubleSpinBox* makeDouble(double low, double high, double value, double step, const char* name, const QString& tip) {
    auto* spin = named(new QDoubleSpinBox, name, tip);
    spin->setRange(low, high);
    spin->setSingleStep(step);
    spin->setValue(value);
    return spin;
}

QString wordOf(KvType type) { return QString::fromStdString(std::string(nameOf(type))); }

} // namespace

SessionAdvanced::SessionAdvanced(QVBoxLayout* layout, QObject* parent) : QObject(parent) {
    section_ = new Section(tr("Advanced"), false);
    section_->setObjectName(QStringLiteral("advanced"));
    layout->addWidget(section_);
    QFormLayout* form = addForm(section_->body());
    addSamplingRows(form);
    addTierRows(form);
    addLinkRows(form);
    addRecordRows(form);
    for (QSpinBox* spin : {topK_, seed_, deviceSlots_})
        connect(spin, &QSpinBox::valueChanged, this, &SessionAdvanced::changed);
    for (QDoubleSpinBox* spin : {temperature_, topP_, linkGbps_})
        connect(spin, &QDoubleSpinBox::valueChanged, this, &SessionAdvanced::changed);
    for (QComboBox* combo : {kvType_, cachePolicy_, link_, level_})
        connect(combo, &QComboBox::currentIndexChanged, this, &SessionAdvanced::changed);
    for (QCheckBox* check : {stopAtEos_, offload_, oracle_})
        connect(check, &QCheckBox::toggled, this, &SessionAdvanced::changed);
}

void SessionAdvanced::addSamplingRows(QFormLayout* form) {
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

void SessionAdvanced::addTierRows(QFormLayout* form) {
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

void SessionAdvanced::addLinkRows(QFormLayout* form) {
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

void SessionAdvanced::addRecordRows(QFormLayout* form) {
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
    connect(recordGpu_, &QCheckBox::toggled, this, &SessionAdvanced::showRecordGpu);
    connect(level_, &QComboBox::currentIndexChanged, this, &SessionAdvanced::showRecordGpu);
    form->addRow(tr("Record"), level_);
    form->addRow(QString(), recordGpu_);
    form->addRow(QString(), recordCalls_);
    form->addRow(QString(), pcieCounting_);
    form->addRow(oracle_);
}

void SessionAdvanced::showRecordGpu() {
    const bool possible = gpu_ && level_->currentIndex() == int(RecordLevel::Full);
    recordGpu_->setVisible(possible);
    recordCalls_->setVisible(possible);
    recordCalls_->setEnabled(recordGpu_->isChecked());
    pcieCounting_->setVisible(possible);
    pcieCounting_->setEnabled(recordGpu_->isChecked());
}

void SessionAdvanced::setBackend(Backend backend) {
    gpu_ = backend == Backend::Cuda;
    link_->setEnabled(!gpu_);
    linkGbps_->setEnabled(!gpu_ && link_->currentData().toString().isEmpty());
    showRecordGpu();
}

void SessionAdvanced::setPooled(bool pooled) {
    deviceSlots_->setEnabled(pooled);
    cachePolicy_->setEnabled(pooled);
}

void SessionAdvanced::refresh() {
    const bool sampled = temperature_->value() > 0;
    for (QWidget* widget : {static_cast<QWidget*>(topP_), static_cast<QWidget*>(topK_), static_cast<QWidget*>(seed_)})
        widget->setEnabled(sampled);
    linkGbps_->setVisible(link_->currentData().toString().isEmpty());
    setPooled(offloads());
}

bool SessionAdvanced::offloads() const { return offload_->isChecked(); }

bool SessionAdvanced::measuresOracle() const { return oracle_->isChecked(); }

int SessionAdvanced::deviceSlots() const { return deviceSlots_->value(); }

void SessionAdvanced::read(SessionOptions& options) const {
    options.stopAtEos = stopAtEos_->isChecked();
    options.sampling.temperature = temperature_->value();
    options.sampling.topP = topP_->value();
    options.sampling.topK = topK_->value();
    options.sampling.seed = std::uint64_t(seed_->value());
    if (deviceSlots_->isEnabledTo(section_)) {
        if (deviceSlots_->value() > 0) options.deviceKvBlocks = deviceSlots_->value();
        options.cachePolicy = cachePolicy_->currentData().toString().toStdString();
    }
    options.offload = offload_->isChecked();
    options.kvType = kvTypeNamed(kvType_->currentData().toString().toStdString());
    const QString link = link_->currentData().toString();
    options.link =
        Link::parse(link.isEmpty() ? QString::number(linkGbps_->value(), 'g', 10).toStdString() : link.toStdString());
    options.oracle = oracle_->isChecked();
}

void SessionAdvanced::read(SessionRequest& request) const {
    request.level = RecordLevel(level_->currentIndex());
    request.recordGpu = recordGpu_->isChecked();
    request.recordCalls = recordCalls_->isChecked();
    request.pcieCounting = PcieCounting(pcieCounting_->currentData().toInt());
}

QVariantMap SessionAdvanced::values() const {
    return {{"stopAtEos", stopAtEos_->isChecked()},
            {"temperature", temperature_->value()},
            {"topP", topP_->value()},
            {"topK", topK_->value()},
            {"seed", seed_->value()},
            {"offload", offload_->isChecked()},
            {"kvType", kvType_->currentData()},
            {"deviceSlots", deviceSlots_->value()},
            {"cachePolicy", cachePolicy_->currentData()},
            {"link", link_->currentIndex()},
            {"linkGbps", linkGbps_->value()},
            {"level", level_->currentIndex()},
            {"oracle", oracle_->isChecked()},
            {"recordGpu", recordGpu_->isChecked()},
            {"recordCalls", recordCalls_->isChecked()},
            {"pcieCounters", pcieCounting_->currentData()},
            {"advanced", section_->isExpanded()}};
}

void SessionAdvanced::setValues(const QVariantMap& values) {
    const auto restore = [&](const char* key, auto&& set) {
        if (const auto found = values.constFind(QLatin1String(key)); found != values.constEnd()) set(*found);
    };
    restore("stopAtEos", [&](const QVariant& v) { stopAtEos_->setChecked(v.toBool()); });
    restore("temperature", [&](const QVariant& v) { temperature_->setValue(v.toDouble()); });
    restore("topP", [&](const QVariant& v) { topP_->setValue(v.toDouble()); });
    restore("topK", [&](const QVariant& v) { topK_->setValue(v.toInt()); });
    restore("seed", [&](const QVariant& v) { seed_->setValue(v.toInt()); });
    restore("offload", [&](const QVariant& v) { offload_->setChecked(v.toBool()); });
    restore("kvType", [&](const QVariant& v) { chooseData(kvType_, v); });
    restore("deviceSlots", [&](const QVariant& v) { deviceSlots_->setValue(v.toInt()); });
    restore("cachePolicy", [&](const QVariant& v) { chooseData(cachePolicy_, v); });
    restore("link", [&](const QVariant& v) { link_->setCurrentIndex(v.toInt()); });
    restore("linkGbps", [&](const QVariant& v) { linkGbps_->setValue(v.toDouble()); });
    restore("level", [&](const QVariant& v) { level_->setCurrentIndex(v.toInt()); });
    restore("recordGpu", [&](const QVariant& v) { recordGpu_->setChecked(v.toBool()); });
    restore("recordCalls", [&](const QVariant& v) { recordCalls_->setChecked(v.toBool()); });
    restore("pcieCounters", [&](const QVariant& v) { chooseData(pcieCounting_, v); });
    restore("oracle", [&](const QVariant& v) { oracle_->setChecked(v.toBool()); });
    restore("advanced", [&](const QVariant& v) { section_->setExpanded(v.toBool()); });
}

QVariantMap SessionAdvanced::valuesOf(const SessionOptions& options) const {
    int link = link_->findData(QString::fromStdString(options.link.name));
    if (link < 0) link = link_->count() - 1; // the last one is a bandwidth
    return {{"stopAtEos", options.stopAtEos},
            {"temperature", options.sampling.temperature},
            {"topP", options.sampling.topP},
            {"topK", options.sampling.topK},
            {"seed", QVariant::fromValue(options.sampling.seed)},
            {"offload", options.offload},
            {"kvType", options.kvType ? wordOf(*options.kvType) : QString()},
            {"deviceSlots", int(options.deviceKvBlocks.value_or(0))},
            {"cachePolicy", QString::fromStdString(options.cachePolicy)},
            {"link", link},
            {"linkGbps", options.link.gigabytesPerSecond},
            {"oracle", options.oracle}};
}

} // namespace kvscope::ui
