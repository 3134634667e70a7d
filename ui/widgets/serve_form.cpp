#include "ui/widgets/serve_form.h"

#include "base/error.h"
#include "core/model/model.h"
#include "core/serve/scheduler_options.h"
#include "core/serve/serves.h"
#include "ui/frame/as_written.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/parameter_panel.h"

#include <QComboBox>
#include <QDir>
#include <QDoubleSpinBox>
#include <QFile>
#include <QFileDialog>
#include <QFileInfo>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QScrollArea>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QStandardItemModel>
#include <QToolButton>
#include <QVBoxLayout>

#include <algorithm>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr int kMostMiB = 1 << 24; // 16 TiB

QVariantMap mapOf(const ServerRequest::Settings& settings) {
    QVariantMap map;
    for (const auto& [key, value] : settings) map[QString::fromStdString(key)] = QString::fromStdString(value);
    return map;
}

void setValuesOf(ParameterPanel& panel, const QVariantMap& map) {
    panel.resetAll();
    for (auto entry = map.constBegin(); entry != map.constEnd(); ++entry)
        panel.setValue(entry.key().toStdString(), entry.value().toString().toStdString());
}

/// Whether the file has a line that is a key: neither empty nor a remark.
bool holdsKey(const QString& path) {
    QFile file(path);
    if (!QFileInfo(path).isFile() || !file.open(QIODevice::ReadOnly)) return false; // a pipe would stop the window
    while (!file.atEnd()) {
        const QByteArray line = file.readLine(1 << 16).trimmed();
        if (!line.isEmpty() && !line.startsWith('#')) return true;
    }
    return false;
}

} // namespace

ServeForm::ServeForm(QWidget* parent) : QScrollArea(parent) {
    setObjectName(QStringLiteral("serveScroll"));
    setWidgetResizable(true);
    setFrameShape(QFrame::NoFrame);
    setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    applying_ = true;
    auto* choices = new QWidget;
    auto* layout = new QVBoxLayout(choices);
    layout->setContentsMargins(0, 0, 8, 0);
    layout->setSpacing(4);
    makePreset(layout);
    makeModel(layout);
    makeMemory(layout);
    makeAddress(layout);
    makeKnobs(layout);
    layout->addStretch();
    for (QComboBox* combo : choices->findChildren<QComboBox*>()) { // long names are elided
        combo->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
        combo->setMinimumContentsLength(8);
    }
    setWidget(choices);
    setMinimumWidth(330);
    listMethods();
    showMethod();
    applying_ = false;
}

void ServeForm::makePreset(QVBoxLayout* layout) {
    auto* section = new Section(tr("Preset"));
    layout->addWidget(section);
    preset_ = named(new QComboBox, "servePreset", tr("Preset"),
                    tr("SparseServe: the selection, the transfers and the scheduling of its paper. A preset sets the "
                       "method, its parameters and the knobs; model, memory and address stay."));
    preset_->addItem(tr("Defaults of KVScope"), int(ServePreset::Defaults));
    preset_->addItem(tr("SparseServe"), int(ServePreset::SparseServe));
    preset_->addItem(tr("Own settings"), int(ServePreset::Own));
    section->body()->addWidget(preset_);
    presetNote_ = addMuted(section->body(), "servePresetNote");
    presetNote_->hide(); // the preset that is chosen at first needs no note
    connect(preset_, &QComboBox::currentIndexChanged, this, &ServeForm::applyPreset);
}

void ServeForm::makeModel(QVBoxLayout* layout) {
    auto* section = new Section(tr("Model and method"));
    layout->addWidget(section);
    QFormLayout* form = addForm(section->body());
    model_ = named(new QComboBox, "serveModel", tr("Model"),
                   tr("The embedded model, a folder with config.json, or a GGUF file. The server loads it itself."));
    for (const std::string& name : embeddedModels())
        model_->addItem(tr("%1 (embedded)").arg(QString::fromStdString(name)), QString::fromStdString(name));
    addModelDialogs(model_);
    model_->setCurrentIndex(std::max(0, model_->findData(QString::fromLatin1(kDefaultModel))));
    pickedName_ = modelName();
    backend_ = named(new QComboBox, "serveBackend", tr("Run on"),
                     tr("The CPU, where both tiers are host memory; or an NVIDIA GPU, where blocks cross PCIe."));
    backend_->addItem(tr("CPU"), int(Backend::Cpu));
    backend_->addItem(tr("NVIDIA GPU"), int(Backend::Cuda));
    threads_ = named(new QSpinBox, "serveThreads", tr("Threads"), tr("Threads of the CPU backend."));
    threads_->setRange(0, 1024);
    threads_->setSpecialValueText(tr("all cores"));
    method_ = named(new QComboBox, "serveMethod", tr("Method"),
                    tr("How each KV head chooses the blocks it attends to. Methods that cannot serve are grey."));
    form->addRow(tr("Model"), model_);
    form->addRow(tr("Run on"), backend_);
    form->addRow(tr("Threads"), threads_);
    form->addRow(tr("Method"), method_);
    modelNote_ = addMuted(section->body(), "serveModelNote");
    methodSummary_ = addMuted(section->body(), "serveMethodSummary");
    parameters_ = new ParameterPanel;
    parameters_->setObjectName(QStringLiteral("serveParameters"));
    section->body()->addWidget(parameters_);
    connect(model_, &QComboBox::currentIndexChanged, this, &ServeForm::pickModel);
    connect(backend_, &QComboBox::currentIndexChanged, this, [this] {
        listMethods();
        if (preset_->currentData().toInt() == int(ServePreset::SparseServe))
            applyPreset(); // a backend refuses some of it
        changedByUser();
    });
    connect(threads_, &QSpinBox::valueChanged, this, &ServeForm::changedByUser);
    connect(method_, &QComboBox::currentIndexChanged, this, [this] {
        showMethod();
        edited();
    });
    connect(parameters_, &ParameterPanel::changed, this, &ServeForm::edited);
}

void ServeForm::makeMemory(QVBoxLayout* layout) {
    auto* section = new Section(tr("Memory"));
    layout->addWidget(section);
    QFormLayout* form = addForm(section->body());
    const ServerRequest defaults;
    const auto add = [&](const char* name, const QString& title, int value, const QString& help) {
        auto* spin = named(new QSpinBox, name, title, help);
        spin->setRange(1, kMostMiB);
        spin->setValue(value);
        spin->setSuffix(tr(" MiB"));
        spin->setStepType(QAbstractSpinBox::AdaptiveDecimalStepType);
        form->addRow(title, spin);
        connect(spin, &QSpinBox::valueChanged, this, &ServeForm::changedByUser);
        return spin;
    };
    device_ = add("serveDevice", tr("Device KV"), defaults.deviceMiB,
                  tr("Device memory for cached blocks, index and newest blocks of all requests, in MiB (2²⁰ bytes). "
                     "Working sets must fit what is left of it."));
    host_ = add("serveHost", tr("Host KV"), defaults.hostMiB,
                tr("Host memory for all keys and values, in MiB. A request reserves its prompt and all new tokens at "
                   "admission."));
    scratch_ = add("serveScratch", tr("Scratch"), defaults.scratchMiB,
                   tr("Device memory for prompts that are being read, in MiB."));
}

void ServeForm::makeAddress(QVBoxLayout* layout) {
    auto* section = new Section(tr("Address and trace"));
    layout->addWidget(section);
    QFormLayout* form = addForm(section->body());
    address_ = named(new QLineEdit(ServerRequest().host), "serveAddress", tr("Address"),
                     tr("Where the server listens. 127.0.0.1 is this machine alone; an address that others can reach "
                        "needs a key file."));
    port_ = named(new QSpinBox, "servePort", tr("Port"), tr("The TCP port, 1 to 65535; 0 takes one that is free."));
    port_->setRange(0, 65535);
    port_->setSpecialValueText(tr("any that is free"));
    port_->setValue(ServerRequest().port);
    keyFile_ = named(new QLineEdit, "serveKeyFile", tr("Key file"),
                     tr("A file with the keys that clients must have, one a line. Keys are written nowhere."));
    keyFile_->setPlaceholderText(tr("no key is asked for"));
    browse_ = new QToolButton;
    browse_->setObjectName(QStringLiteral("serveBrowse"));
    browse_->setText(QStringLiteral("…"));
    browse_->setToolTip(tr("Choose the file with the keys"));
    browse_->setAccessibleName(tr("Choose the file with the keys"));
    auto* keys = new QHBoxLayout;
    keys->addWidget(keyFile_, 1);
    keys->addWidget(browse_);
    record_ = named(new QComboBox, "serveRecord", tr("Record"),
                    tr("The trace has every request and iteration. Besides, of every decode step: hits and bytes of "
                       "each row; the selected blocks too; their scores too."));
    record_->addItem(tr("Requests and iterations"), QStringLiteral("serving"));
    record_->addItem(tr("and counters of rows"), QStringLiteral("counters"));
    record_->addItem(tr("and selected blocks"), QStringLiteral("selections"));
    record_->addItem(tr("and blocks with scores"), QStringLiteral("full"));
    form->addRow(tr("Address"), address_);
    form->addRow(tr("Port"), port_);
    form->addRow(tr("Key file"), keys);
    form->addRow(tr("Record"), record_);
    connect(address_, &QLineEdit::textChanged, this, &ServeForm::changedByUser);
    connect(port_, &QSpinBox::valueChanged, this, &ServeForm::changedByUser);
    connect(keyFile_, &QLineEdit::textChanged, this, &ServeForm::changedByUser);
    connect(browse_, &QToolButton::clicked, this, &ServeForm::chooseKeyFile);
}

void ServeForm::makeKnobs(QVBoxLayout* layout) {
    knobSection_ = new Section(tr("Scheduler"), false);
    knobSection_->setObjectName(QStringLiteral("serveKnobSection"));
    layout->addWidget(knobSection_);
    knobs_ = new ParameterPanel;
    knobs_->setObjectName(QStringLiteral("serveKnobs"));
    knobs_->setParameters(serve::schedulerParameters(), serve::schedulerDefaults());
    for (QDoubleSpinBox* spin : knobs_->findChildren<QDoubleSpinBox*>())
        spin->setStepType(QAbstractSpinBox::AdaptiveDecimalStepType); // their ranges go to hours
    for (QSpinBox* spin : knobs_->findChildren<QSpinBox*>())
        spin->setStepType(QAbstractSpinBox::AdaptiveDecimalStepType);
    knobSection_->body()->addWidget(knobs_);
    connect(knobs_, &ParameterPanel::changed, this, &ServeForm::edited);
}

QString ServeForm::modelName() const { return model_->currentData().toString(); }
Backend ServeForm::backend() const { return Backend(backend_->currentData().toInt()); }
const MethodEntry& ServeForm::method() const { return findMethod(method_->currentData().toString().toStdString()); }
const Model* ServeForm::known() const { return loadedName_ == modelName() ? loaded_.get() : nullptr; }

void ServeForm::setModel(const QString& nameOrPath, std::shared_ptr<const Model> model, bool choose) {
    loaded_ = std::move(model);
    loadedName_ = loaded_ ? nameOrPath : QString();
    if (!modelPicked_ && loaded_ && choose) listModel(model_, pickedName_ = nameOrPath);
    showMethod();
    changedByUser();
}

/// The last two entries of the list open a dialog, for a folder and for a file.
void ServeForm::pickModel(int index) {
    QString name = model_->itemData(index).toString();
    if (name.isEmpty()) name = askForModel(this, model_, index);
    modelPicked_ = modelPicked_ || !name.isEmpty();
    if (!name.isEmpty()) pickedName_ = name; // cancelled: the model picked before stays
    listModel(model_, pickedName_);
    showMethod();
    changedByUser();
}

void ServeForm::chooseKeyFile() {
    const QString file = QFileDialog::getOpenFileName(this, tr("The file with the keys"));
    if (!file.isEmpty()) keyFile_->setText(file);
}

/// Lists all methods; those that cannot serve on the backend say why and cannot be chosen.
void ServeForm::listMethods() {
    const QVariant chosen =
        method_->count() > 0 ? method_->currentData() : QVariant(QString::fromLatin1(kDefaultMethod));
    const QSignalBlocker quiet(method_);
    method_->clear();
    for (const MethodEntry& entry : methods()) {
        method_->addItem(QString::fromStdString(entry.title), QString::fromStdString(entry.name));
        const int index = method_->count() - 1;
        const QString why = QString::fromStdString(serve::whyNotServed(entry, backend()));
        method_->setItemData(index, asWritten(why.isEmpty() ? QString::fromStdString(entry.summary) : why),
                             Qt::ToolTipRole);
        if (auto* items = qobject_cast<QStandardItemModel*>(method_->model()))
            items->item(index)->setEnabled(why.isEmpty());
    }
    chooseData(method_, chosen);
}

void ServeForm::showMethod() {
    const QString name = method_->currentData().toString();
    const Model* model = known();
    modelNote_->setText(model ? QString() : tr("The server examines this model when it loads it."));
    modelNote_->setVisible(model == nullptr);
    if (name == shownMethod_ && model == shownModel_) return;
    const bool sameMethod = name == shownMethod_;
    const ServerRequest::Settings before = parameters_->settings();
    const MethodEntry& entry = method();
    ParameterValues defaults;
    if (model)
        defaults = resolveDefaults(entry, model->config());
    else
        for (const Parameter& parameter : entry.parameters) defaults.assign(parameter.key, parameter.defaultValue);
    const bool quiet = std::exchange(applying_, true);
    parameters_->setParameters(model ? parametersFor(entry, model->config()) : entry.parameters, defaults);
    parameters_->tabAfter(method_);
    if (sameMethod) setValuesOf(*parameters_, mapOf(before));
    applying_ = quiet;
    shownMethod_ = name, shownModel_ = model;
    methodSummary_->setText(QString::fromStdString(entry.summary));
}

void ServeForm::applyPreset() {
    const auto preset = ServePreset(preset_->currentData().toInt());
    QString note;
    if (preset != ServePreset::Own) {
        const PresetValues values = presetValues(preset);
        const bool quiet = std::exchange(applying_, true);
        chooseData(method_, values.method);
        showMethod();
        setValuesOf(*parameters_, mapOf(values.settings));
        setValuesOf(*knobs_, mapOf(values.knobs));
        applying_ = quiet;
        note = values.note;
    }
    presetNote_->setText(note);
    presetNote_->setVisible(!note.isEmpty());
    changedByUser();
}

void ServeForm::changedByUser() {
    if (applying_) return;
    threads_->setEnabled(backend() == Backend::Cpu);
    emit changed();
}

/// Called when the user has changed the method, a parameter or a knob.
void ServeForm::edited() {
    if (applying_) return;
    chooseData(preset_, int(ServePreset::Own));
    changedByUser();
}

ServerRequest ServeForm::request() const {
    ServerRequest request;
    request.model = modelName();
    request.method = method().name;
    // A preset holds also where a checkpoint has other defaults than those that are known here.
    const bool sparseServe = preset_->currentData().toInt() == int(ServePreset::SparseServe);
    request.settings = sparseServe ? presetValues(ServePreset::SparseServe).settings : parameters_->settings();
    request.knobs = knobs_->settings();
    request.backend = backend();
    request.threads = request.backend == Backend::Cpu ? threads_->value() : 0;
    request.deviceMiB = device_->value(), request.hostMiB = host_->value(), request.scratchMiB = scratch_->value();
    request.host = address_->text().trimmed();
    request.keyFile = keyFile_->text().trimmed();
    request.port = port_->value();
    request.record = record_->currentData().toString();
    request.recordModelPath = recordModelPath_;
    return request;
}

/// The method's parameters as the form has them. @throws Error(BadInput)
ParameterValues ServeForm::valuesFor(const Model& model) const {
    ParameterValues values = resolveDefaults(method(), model.config());
    for (const auto& [key, value] : parameters_->settings())
        values.set(parametersFor(method(), model.config()), key, value);
    return values;
}

/// Why the method cannot serve as it is set; empty: it can, as far as is known here.
QString ServeForm::findRefusalOfMethod() const {
    const MethodEntry& entry = method();
    const QString title = QString::fromStdString(entry.title);
    if (const std::string why = serve::whyNotServed(entry, backend()); !why.empty())
        return tr("%1 cannot serve: %2. Choose another method.").arg(title, QString::fromStdString(why));
    const Model* model = known();
    if (!model) return {};
    if (model->config().diffusion)
        return tr("%1 denoises blocks of tokens, and requests are decoded token by token. Choose another model.")
            .arg(QString::fromStdString(model->name()));
    if (!hasWeightsFor(entry, *model))
        return tr("%1 needs %2, and %3 has none. Choose another method or a checkpoint trained for it.")
            .arg(title, QString::fromStdString(entry.needs), QString::fromStdString(model->name()));
    const bool pooled =
        knobs_->findChild<QComboBox*>(QStringLiteral("param_cache"))->currentText() == QLatin1String("global-lru");
    try {
        const ParameterValues values = valuesFor(*model);
        if (const auto lack = findLack(entry, values, *model)) throw *lack;
        const SelectionSpec spec = entry.make(values, model->config());
        if (pooled && (spec.ownDeviceTier || spec.unitTokens() != spec.blockSize))
            return tr("%1 keeps what is on the device by its own rule, so that no pool of all rows can. Choose "
                      "cache=partition.")
                .arg(title);
    } catch (const Error& error) {
        return tr("The method cannot run like this: %1")
            .arg(withTitles(QString::fromStdString(oneLine(error)), parametersFor(entry, model->config())));
    }
    return {};
}

/// Why these knobs cannot be; empty: they can.
QString ServeForm::findRefusalOfKnobs() const {
    serve::SchedulerOptions options;
    try {
        ParameterValues values = serve::schedulerDefaults();
        for (const auto& [key, value] : knobs_->settings()) values.set(serve::schedulerParameters(), key, value);
        options = serve::schedulerOptions(values);
    } catch (const Error& error) {
        return withTitles(QString::fromStdString(oneLine(error)), serve::schedulerParameters());
    }
    const Model* model = known(); // how a method moves its blocks is known with its model
    if (model == nullptr) return {};
    try {
        const ParameterValues values = valuesFor(*model);
        const SelectionSpec spec = method().make(values, model->config());
        const MethodUse use{values, spec, model->config(), backend(), options.offload, model};
        if (const auto refusal = serve::whyNotWithKnobs(method(), use, options))
            return withTitles(QString::fromStdString(oneLine(*refusal)), serve::schedulerParameters());
    } catch (const Error&) { // findRefusalOfMethod says it
    }
    return {};
}

/// Why no server can listen there; empty: one can.
QString ServeForm::findRefusalOfAddress() const {
    const QString host = address_->text().trimmed(), keys = keyFile_->text().trimmed();
    if (host.isEmpty()) return tr("Give an address to listen on: 127.0.0.1 is this machine alone.");
    if (!keys.isEmpty() && !QFileInfo(keys).isReadable())
        return tr("The key file %1 cannot be read.").arg(QDir::toNativeSeparators(keys));
    if (!keys.isEmpty() && !holdsKey(keys))
        return tr("The key file %1 holds no key. Write one a line.").arg(QDir::toNativeSeparators(keys));
    if (keys.isEmpty() && !isLoopbackAddress(host))
        return tr("%1 can be reached from other machines. Give a key file, or listen on 127.0.0.1.").arg(host);
    return {};
}

QString ServeForm::problem() const {
    if (const QString name = modelName(); QFileInfo(name).isAbsolute() && !QFileInfo::exists(name))
        return tr("The model %1 is not there any more. Choose another one.").arg(QDir::toNativeSeparators(name));
    for (const QString& refusal : {findRefusalOfMethod(), findRefusalOfKnobs()})
        if (!refusal.isEmpty()) return refusal;
    return findRefusalOfAddress();
}

QVariantMap ServeForm::values() const {
    return {{"preset", preset_->currentData()},
            {"model", modelPicked_ ? modelName() : QString()},
            {"backend", backend_->currentData()},
            {"threads", threads_->value()},
            {"method", method_->currentData()},
            {"settings", mapOf(parameters_->settings())},
            {"knobs", mapOf(knobs_->settings())},
            {"device", device_->value()},
            {"host", host_->value()},
            {"scratch", scratch_->value()},
            {"address", address_->text()},
            {"port", port_->value()},
            {"keyFile", keyFile_->text()},
            {"record", record_->currentData()},
            {"scheduler", knobSection_->isExpanded()}};
}

void ServeForm::setValues(const QVariantMap& values) {
    if (values.isEmpty()) return;
    applying_ = true;
    const QString model = values.value(QStringLiteral("model")).toString();
    if (!model.isEmpty() && (model_->findData(model) >= 0 || QFileInfo::exists(model))) {
        modelPicked_ = true;
        listModel(model_, pickedName_ = model);
    }
    chooseData(backend_, values.value(QStringLiteral("backend")));
    listMethods();
    chooseData(method_, values.value(QStringLiteral("method")));
    showMethod();
    setValuesOf(*parameters_, values.value(QStringLiteral("settings")).toMap());
    setValuesOf(*knobs_, values.value(QStringLiteral("knobs")).toMap());
    const auto setNumber = [&](QSpinBox* spin, const char* key) {
        if (const auto found = values.constFind(QLatin1String(key)); found != values.constEnd())
            spin->setValue(found->toInt());
    };
    setNumber(threads_, "threads");
    setNumber(device_, "device"), setNumber(host_, "host"), setNumber(scratch_, "scratch");
    setNumber(port_, "port");
    address_->setText(values.value(QStringLiteral("address"), address_->text()).toString());
    keyFile_->setText(values.value(QStringLiteral("keyFile")).toString());
    chooseData(record_, values.value(QStringLiteral("record")));
    knobSection_->setExpanded(values.value(QStringLiteral("scheduler")).toBool());
    applying_ = false;
    chooseData(preset_, values.value(QStringLiteral("preset"))); // sets what it stands for
    changedByUser();
}

} // namespace kvscope::ui
