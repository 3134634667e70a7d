#include "ui/widgets/serve_dialog.h"

#include "base/error.h"
#include "core/model/model.h"
#include "core/serve/scheduler_options.h"
#include "core/serve/serves.h"
#include "ui/frame/as_written.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/parameter_panel.h"

#include <QAbstractItemView>
#include <QClipboard>
#include <QComboBox>
#include <QDir>
#include <QDoubleSpinBox>
#include <QFile>
#include <QFileDialog>
#include <QFileInfo>
#include <QFontDatabase>
#include <QFormLayout>
#include <QGuiApplication>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QScrollArea>
#include <QScrollBar>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QSplitter>
#include <QStandardItemModel>
#include <QToolButton>
#include <QVBoxLayout>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kLinesKept = 2000;
constexpr int kMostMiB = 1 << 24; // 16 TiB

/// SparseServe's own selection and knobs (docs/serving.md).
constexpr const char* kSparseServeMethod = "quest";
const ServerRequest::Settings& sparseServeSettings() {
    static const ServerRequest::Settings settings{
        {"bound", "cuboid-mean"}, {"block_size", "32"}, {"total_blocks", "64"}, {"skip_layers", "0"}};
    return settings;
}
ServerRequest::Settings sparseServeKnobs(Backend backend) {
    return {{"offload", "true"},
            {"transfers", "kernel"},
            {"working_set_control", "true"},
            {"prefill", "layers"},
            {"cache", backend == Backend::Cpu ? "global-lru" : "partition"}};
}

template <class Widget> Widget* withHelp(Widget* widget, const char* name, const QString& title, const QString& help) {
    widget->setObjectName(QLatin1String(name));
    widget->setAccessibleName(title);
    widget->setToolTip(help);
    widget->setWhatsThis(help);
    ignoreWheelUnlessFocused(widget);
    return widget;
}

QFormLayout* formIn(QVBoxLayout* body) {
    auto* form = new QFormLayout;
    form->setContentsMargins(0, 0, 0, 0);
    form->setHorizontalSpacing(8);
    form->setVerticalSpacing(4);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    body->addLayout(form);
    return form;
}

MutedLabel* mutedIn(QVBoxLayout* body, const char* name) {
    auto* label = new MutedLabel;
    label->setObjectName(QLatin1String(name));
    label->setWordWrap(true);
    body->addWidget(label);
    return label;
}

void chooseData(QComboBox* combo, const QVariant& data) {
    if (const int index = combo->findData(data); index >= 0) combo->setCurrentIndex(index);
}

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
    if (!file.open(QIODevice::ReadOnly)) return false;
    while (!file.atEnd()) {
        const QByteArray line = file.readLine(1 << 16).trimmed();
        if (!line.isEmpty() && !line.startsWith('#')) return true;
    }
    return false;
}

} // namespace

ServeDialog::ServeDialog(ServerProcess& server, QWidget* parent) : QDialog(parent), server_(server) {
    setObjectName(QStringLiteral("serveDialog"));
    setWindowTitle(tr("Serve"));
    applying_ = true;
    auto* columns = new QSplitter;
    columns->setObjectName(QStringLiteral("serveColumns"));
    columns->setChildrenCollapsible(false);
    columns->setHandleWidth(1);
    columns->addWidget(makeChoices());
    columns->addWidget(makeServer());
    columns->setStretchFactor(0, 0);
    columns->setStretchFactor(1, 1);
    columns->setSizes({400, 560});
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(16, 14, 16, 14);
    layout->setSpacing(10);
    layout->addWidget(columns, 1);
    makeFooter(layout);
    setMinimumSize(640, 400);
    resize(980, 660);
    listMethods();
    showMethod();
    applying_ = false;
    connect(&server_, &ServerProcess::changed, this, &ServeDialog::showServer);
    connect(&server_, &ServerProcess::logged, log_, &QPlainTextEdit::appendPlainText);
    showServer();
}

QWidget* ServeDialog::makeChoices() {
    auto* scroll = new QScrollArea;
    scroll->setObjectName(QStringLiteral("serveScroll"));
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    choices_ = new QWidget;
    auto* layout = new QVBoxLayout(choices_);
    layout->setContentsMargins(0, 0, 8, 0);
    layout->setSpacing(4);
    makePreset(layout);
    makeModel(layout);
    makeMemory(layout);
    makeAddress(layout);
    makeKnobs(layout);
    layout->addStretch();
    for (QComboBox* combo : choices_->findChildren<QComboBox*>()) { // long names are elided
        combo->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
        combo->setMinimumContentsLength(8);
    }
    scroll->setWidget(choices_);
    scroll->setMinimumWidth(330);
    return scroll;
}

void ServeDialog::makePreset(QVBoxLayout* layout) {
    auto* section = new Section(tr("Preset"));
    layout->addWidget(section);
    preset_ =
        withHelp(new QComboBox, "servePreset", tr("Preset"),
                 tr("SparseServe: the selection, the transfers and the scheduling of its paper. A preset sets the "
                    "method, its parameters and the knobs; model, memory and address stay."));
    preset_->addItem(tr("Defaults of KVScope"), int(Preset::Defaults));
    preset_->addItem(tr("SparseServe"), int(Preset::SparseServe));
    preset_->addItem(tr("Own settings"), int(Preset::Own));
    section->body()->addWidget(preset_);
    presetNote_ = mutedIn(section->body(), "servePresetNote");
    connect(preset_, &QComboBox::currentIndexChanged, this, &ServeDialog::applyPreset);
}

void ServeDialog::makeModel(QVBoxLayout* layout) {
    auto* section = new Section(tr("Model and method"));
    layout->addWidget(section);
    QFormLayout* form = formIn(section->body());
    model_ = withHelp(new QComboBox, "serveModel", tr("Model"),
                      tr("The embedded model, a folder with config.json, or a GGUF file. The server loads it itself."));
    for (const std::string& name : embeddedModels())
        model_->addItem(tr("%1 (embedded)").arg(QString::fromStdString(name)), QString::fromStdString(name));
    model_->addItem(tr("Folder…"));
    model_->addItem(tr("GGUF file…"));
    model_->setCurrentIndex(std::max(0, model_->findData(QString::fromLatin1(kDefaultModel))));
    pickedName_ = modelName();
    backend_ = withHelp(new QComboBox, "serveBackend", tr("Run on"),
                        tr("The CPU, where both tiers are host memory; or an NVIDIA GPU, where blocks cross PCIe."));
    backend_->addItem(tr("CPU"), int(Backend::Cpu));
    backend_->addItem(tr("NVIDIA GPU"), int(Backend::Cuda));
    threads_ = withHelp(new QSpinBox, "serveThreads", tr("Threads"), tr("Threads of the CPU backend."));
    threads_->setRange(0, 1024);
    threads_->setSpecialValueText(tr("all cores"));
    method_ = withHelp(new QComboBox, "serveMethod", tr("Method"),
                       tr("How each KV head chooses the blocks it attends to. Methods that cannot serve are grey."));
    form->addRow(tr("Model"), model_);
    form->addRow(tr("Run on"), backend_);
    form->addRow(tr("Threads"), threads_);
    form->addRow(tr("Method"), method_);
    modelNote_ = mutedIn(section->body(), "serveModelNote");
    methodSummary_ = mutedIn(section->body(), "serveMethodSummary");
    parameters_ = new ParameterPanel;
    parameters_->setObjectName(QStringLiteral("serveParameters"));
    section->body()->addWidget(parameters_);
    connect(model_, &QComboBox::currentIndexChanged, this, &ServeDialog::pickModel);
    connect(backend_, &QComboBox::currentIndexChanged, this, [this] {
        listMethods();
        if (preset_->currentData().toInt() == int(Preset::SparseServe)) applyPreset(); // a backend refuses some of it
        revalidate();
    });
    connect(threads_, &QSpinBox::valueChanged, this, &ServeDialog::revalidate);
    connect(method_, &QComboBox::currentIndexChanged, this, [this] {
        showMethod();
        edited();
    });
    connect(parameters_, &ParameterPanel::changed, this, &ServeDialog::edited);
}

void ServeDialog::makeMemory(QVBoxLayout* layout) {
    auto* section = new Section(tr("Memory"));
    layout->addWidget(section);
    QFormLayout* form = formIn(section->body());
    const ServerRequest defaults;
    const auto add = [&](const char* name, const QString& title, int value, const QString& help) {
        auto* spin = withHelp(new QSpinBox, name, title, help);
        spin->setRange(1, kMostMiB);
        spin->setValue(value);
        spin->setSuffix(tr(" MiB"));
        spin->setStepType(QAbstractSpinBox::AdaptiveDecimalStepType);
        form->addRow(title, spin);
        connect(spin, &QSpinBox::valueChanged, this, &ServeDialog::revalidate);
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

void ServeDialog::makeAddress(QVBoxLayout* layout) {
    auto* section = new Section(tr("Address and trace"));
    layout->addWidget(section);
    QFormLayout* form = formIn(section->body());
    address_ =
        withHelp(new QLineEdit(ServerRequest().host), "serveAddress", tr("Address"),
                 tr("Where the server listens. 127.0.0.1 is this machine alone; an address that others can reach "
                    "needs a key file."));
    port_ = withHelp(new QSpinBox, "servePort", tr("Port"), tr("The TCP port, 1 to 65535; 0 takes one that is free."));
    port_->setRange(0, 65535);
    port_->setSpecialValueText(tr("any that is free"));
    port_->setValue(ServerRequest().port);
    keyFile_ = withHelp(new QLineEdit, "serveKeyFile", tr("Key file"),
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
    record_ = withHelp(new QComboBox, "serveRecord", tr("Record"),
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
    connect(address_, &QLineEdit::textChanged, this, &ServeDialog::revalidate);
    connect(port_, &QSpinBox::valueChanged, this, &ServeDialog::revalidate);
    connect(keyFile_, &QLineEdit::textChanged, this, &ServeDialog::revalidate);
    connect(browse_, &QToolButton::clicked, this, &ServeDialog::chooseKeyFile);
}

void ServeDialog::makeKnobs(QVBoxLayout* layout) {
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
    connect(knobs_, &ParameterPanel::changed, this, &ServeDialog::edited);
}

QWidget* ServeDialog::makeAddressRow(QLineEdit*& line, QPushButton*& copy, const char* name, const QString& title) {
    auto* row = new QWidget;
    auto* layout = new QHBoxLayout(row);
    layout->setContentsMargins(0, 0, 0, 0);
    line = new QLineEdit;
    line->setObjectName(QLatin1String(name));
    line->setReadOnly(true);
    line->setAccessibleName(title);
    line->setFont(QFontDatabase::systemFont(QFontDatabase::FixedFont));
    copy = new QPushButton(tr("Copy"));
    copy->setObjectName(QLatin1String(name) + QStringLiteral("Copy"));
    copy->setAccessibleName(tr("Copy: %1").arg(title));
    copy->setToolTip(tr("Copy: %1").arg(title));
    copy->setAutoDefault(false);
    connect(copy, &QPushButton::clicked, this, [line] { QGuiApplication::clipboard()->setText(line->text()); });
    layout->addWidget(line, 1);
    layout->addWidget(copy);
    return row;
}

QWidget* ServeDialog::makeServer() {
    auto* right = new QWidget;
    auto* layout = new QVBoxLayout(right);
    layout->setContentsMargins(14, 4, 0, 0);
    layout->setSpacing(8);
    dot_ = new QLabel(QStringLiteral("●"));
    dot_->setObjectName(QStringLiteral("serveDot"));
    state_ = new QLabel;
    state_->setObjectName(QStringLiteral("serveState"));
    state_->setTextFormat(Qt::PlainText);
    state_->setProperty("role", QStringLiteral("title"));
    auto* heading = new QHBoxLayout;
    heading->addWidget(dot_);
    heading->addWidget(state_, 1);
    layout->addLayout(heading);
    sentence_ = mutedIn(layout, "serveSentence");
    sentence_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    sentence_->setMinimumHeight(2 * sentence_->fontMetrics().lineSpacing());
    sentence_->setAlignment(Qt::AlignTop | Qt::AlignLeft);
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(8);
    form->setVerticalSpacing(6);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    form->addRow(tr("Clients use"), makeAddressRow(url_, copyUrl_, "serveUrl", tr("the server's address for clients")));
    form->addRow(tr("Try it"), makeAddressRow(curl_, copyCurl_, "serveCurl", tr("a curl line that asks the server")));
    layout->addLayout(form);
    auto* title = new MutedLabel(tr("What the server says"));
    layout->addWidget(title);
    log_ = new QPlainTextEdit;
    log_->setObjectName(QStringLiteral("serveLog"));
    log_->setAccessibleName(tr("What the server says"));
    log_->setReadOnly(true);
    log_->setTabChangesFocus(true);
    log_->setMaximumBlockCount(kLinesKept);
    log_->setFont(QFontDatabase::systemFont(QFontDatabase::FixedFont));
    log_->setPlaceholderText(
        tr("Nothing yet. The server starts with the command line that would start it in a terminal."));
    layout->addWidget(log_, 1);
    right->setMinimumWidth(260);
    return right;
}

void ServeDialog::makeFooter(QVBoxLayout* layout) {
    reason_ = new MutedLabel;
    reason_->setObjectName(QStringLiteral("serveReason"));
    reason_->setWordWrap(true);
    start_ = new QPushButton(tr("Start Server"));
    start_->setObjectName(QStringLiteral("serveStart"));
    start_->setDefault(true);
    stop_ = new QPushButton(tr("Stop"));
    stop_->setObjectName(QStringLiteral("serveStop"));
    stop_->setAutoDefault(false);
    auto* hide = new QPushButton(tr("Close"));
    hide->setObjectName(QStringLiteral("serveClose"));
    hide->setAutoDefault(false);
    hide->setToolTip(tr("Close this dialog; a server that runs goes on, and the status bar says so"));
    connect(start_, &QPushButton::clicked, this, [this] {
        revalidate();
        if (!problem_.isEmpty()) return;
        log_->clear();
        server_.start(request());
    });
    connect(stop_, &QPushButton::clicked, &server_, &ServerProcess::stop);
    connect(hide, &QPushButton::clicked, this, &QDialog::hide);
    auto* row = new QHBoxLayout;
    row->addWidget(reason_, 1);
    row->addWidget(hide);
    row->addWidget(stop_);
    row->addWidget(start_);
    layout->addLayout(row);
}

QString ServeDialog::modelName() const { return model_->currentData().toString(); }
Backend ServeDialog::backend() const { return Backend(backend_->currentData().toInt()); }
const MethodEntry& ServeDialog::method() const { return findMethod(method_->currentData().toString().toStdString()); }
const Model* ServeDialog::known() const { return loadedName_ == modelName() ? loaded_.get() : nullptr; }

void ServeDialog::setModel(const QString& nameOrPath, std::shared_ptr<const Model> model) {
    loaded_ = std::move(model);
    loadedName_ = loaded_ ? nameOrPath : QString();
    if (!modelPicked_ && loaded_ && !server_.isRunning()) listModel(nameOrPath);
    showMethod();
    revalidate();
}

/// The last two entries of the list open a dialog, for a folder and for a file.
void ServeDialog::pickModel(int index) {
    QString name = model_->itemData(index).toString();
    if (name.isEmpty())
        name = index == model_->count() - 1
                   ? QFileDialog::getOpenFileName(this, tr("Choose a GGUF model; of a split one the first part"), {},
                                                  tr("GGUF models (*.gguf);;All files (*)"))
                   : QFileDialog::getExistingDirectory(this, tr("Choose a model folder"));
    modelPicked_ = modelPicked_ || !name.isEmpty();
    listModel(name.isEmpty() ? pickedName_ : name); // cancelled: the model picked before stays
    showMethod();
    revalidate();
}

void ServeDialog::listModel(const QString& nameOrPath) {
    const QSignalBlocker quiet(model_);
    int index = model_->findData(nameOrPath);
    if (index < 0) {
        index = model_->count() - 2;
        model_->insertItem(index, QFileInfo(nameOrPath).fileName(), nameOrPath);
        model_->setItemData(index, asWritten(nameOrPath), Qt::ToolTipRole);
    }
    model_->setCurrentIndex(index);
    pickedName_ = nameOrPath;
}

void ServeDialog::chooseKeyFile() {
    const QString file = QFileDialog::getOpenFileName(this, tr("The file with the keys"));
    if (!file.isEmpty()) keyFile_->setText(file);
}

/// Lists all methods; those that cannot serve on the backend say why and cannot be chosen.
void ServeDialog::listMethods() {
    const QVariant chosen = method_->count() > 0 ? method_->currentData() : QVariant(QStringLiteral("nosa"));
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

void ServeDialog::showMethod() {
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

void ServeDialog::applyPreset() {
    const auto preset = Preset(preset_->currentData().toInt());
    if (preset != Preset::Own) {
        const bool quiet = std::exchange(applying_, true);
        chooseData(method_,
                   preset == Preset::SparseServe ? QString::fromLatin1(kSparseServeMethod) : QStringLiteral("nosa"));
        showMethod();
        setValuesOf(*parameters_, preset == Preset::SparseServe ? mapOf(sparseServeSettings()) : QVariantMap());
        setValuesOf(*knobs_, preset == Preset::SparseServe ? mapOf(sparseServeKnobs(backend())) : QVariantMap());
        applying_ = quiet;
    }
    QString note;
    if (preset == Preset::SparseServe) {
        note = tr("Quest with cuboid-mean bounds, 64 blocks of 32 tokens in every layer; blocks gathered by a kernel, "
                  "admission by working sets, prompts cut by layers");
        note +=
            backend() == Backend::Cpu
                ? tr(", one LRU pool for all rows and layers.")
                : tr(". The GPU has no pool for all rows: a fixed part of the device for every row (cache=partition) "
                     "takes the place of SparseServe's LRU.");
    }
    presetNote_->setText(note);
    presetNote_->setVisible(!note.isEmpty());
    revalidate();
}

/// Called when the user has changed the method, a parameter or a knob.
void ServeDialog::edited() {
    if (applying_) return;
    chooseData(preset_, int(Preset::Own));
    revalidate();
}

ServerRequest ServeDialog::request() const {
    ServerRequest request;
    request.model = modelName();
    request.method = method().name;
    // A preset holds also where a checkpoint has other defaults than those that are known here.
    const bool sparseServe = preset_->currentData().toInt() == int(Preset::SparseServe);
    request.settings = sparseServe ? sparseServeSettings() : parameters_->settings();
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

SelectionSpec ServeDialog::specOf(const Model& model) const {
    const MethodEntry& entry = method();
    ParameterValues values = resolveDefaults(entry, model.config());
    for (const auto& [key, value] : parameters_->settings())
        values.set(parametersFor(entry, model.config()), key, value);
    return entry.make(values, model.config());
}

/// Why the method cannot serve as it is set; empty: it can, as far as is known here.
QString ServeDialog::findRefusalOfMethod() const {
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
        const SelectionSpec spec = specOf(*model);
        if (pooled && (spec.ownDeviceTier || spec.unitTokens() != spec.blockSize))
            return tr("%1 keeps what is on the device by its own rule, so that no pool of all rows can. Choose "
                      "cache=partition.")
                .arg(title);
    } catch (const Error& error) {
        return tr("The method cannot run like this: %1").arg(QString::fromStdString(oneLine(error)));
    }
    return {};
}

/// Why these knobs cannot be; empty: they can.
QString ServeDialog::findRefusalOfKnobs() const {
    serve::SchedulerOptions options;
    try {
        ParameterValues values = serve::schedulerDefaults();
        for (const auto& [key, value] : knobs_->settings()) values.set(serve::schedulerParameters(), key, value);
        options = serve::schedulerOptions(values);
    } catch (const Error& error) {
        return QString::fromStdString(oneLine(error));
    }
    if (backend() == Backend::Cpu) return {};
    const auto refuse = [](const QString& what, const char* mend) {
        return tr("The GPU does not serve %1. Choose %2 under Scheduler.").arg(what, QLatin1String(mend));
    };
    if (options.prefill != serve::PrefillPlan::Layers) return refuse(tr("prompts in chunks"), "prefill=layers");
    if (options.parking != serve::Parking::Device)
        return refuse(tr("with activations of prompts anywhere but on the device"), "parking=device");
    if (!options.offload) return {};
    if (options.cache != serve::CachePlan::Partition)
        return refuse(tr("with one pool of slots for all rows"), "cache=partition");
    if (options.transfers != serve::TransferPlan::Kernel)
        return refuse(tr("with a copy call for every block"), "transfers=kernel");
    return {};
}

QString ServeDialog::findProblem() const {
    if (server_.isRunning()) return tr("A server runs. Stop it before you start another one.");
    if (!QFileInfo(server_.program()).isExecutable())
        return tr("%1 is not there. The server is the program kvscope-cli, which lies beside this one.")
            .arg(QDir::toNativeSeparators(server_.program()));
    if (const QString name = modelName(); QFileInfo(name).isAbsolute() && !QFileInfo::exists(name))
        return tr("The model %1 is not there any more. Choose another one.").arg(QDir::toNativeSeparators(name));
    if (const QString refusal = findRefusalOfMethod(); !refusal.isEmpty()) return refusal;
    if (const QString refusal = findRefusalOfKnobs(); !refusal.isEmpty()) return refusal;
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

void ServeDialog::revalidate() {
    if (applying_) return;
    threads_->setEnabled(backend() == Backend::Cpu);
    problem_ = findProblem();
    reason_->setText(server_.isRunning() ? QString() : problem_);
    start_->setEnabled(problem_.isEmpty());
    start_->setToolTip(problem_.isEmpty() ? tr("Start kvscope-cli serve and record it; the window shows it live")
                                          : asWritten(problem_));
}

void ServeDialog::showServer() {
    using State = ServerProcess::State;
    const Theme& theme = Theme::current();
    const auto [title, colour] = [&]() -> std::pair<QString, QColor> {
        switch (server_.state()) {
        case State::Off:
            return {tr("No server runs"), theme.mutedText};
        case State::Loading:
            return {tr("Loading"), theme.warning};
        case State::Ready:
            return {tr("Ready"), theme.ok};
        case State::Stopping:
            return {tr("Stopping"), theme.warning};
        case State::Ended:
            return {tr("Ended"), theme.mutedText};
        case State::Failed:
            break;
        }
        return {tr("Failed"), theme.danger};
    }();
    const bool running = server_.isRunning();
    dot_->setStyleSheet(QStringLiteral("color: %1;").arg(colour.name()));
    state_->setText(title);
    sentence_->setText(server_.state() == State::Off
                           ? tr("Start one, and point clients of OpenAI's API at its address. It is recorded while it "
                                "answers, and the window shows its requests live.")
                           : server_.sentence());
    const QString url = server_.address().isEmpty() ? QString() : server_.address() + QStringLiteral("/v1");
    url_->setText(url);
    url_->setCursorPosition(0);
    curl_->setText(server_.curlLine());
    curl_->setCursorPosition(0);
    curl_->setToolTip(asWritten(server_.curlLine()));
    for (QWidget* widget : std::initializer_list<QWidget*>{url_, copyUrl_, curl_, copyCurl_})
        widget->setEnabled(!url.isEmpty());
    choices_->setEnabled(!running);
    start_->setVisible(!running);
    stop_->setVisible(running);
    const bool stopping = server_.state() == State::Stopping;
    stop_->setText(stopping ? tr("Stop Now") : tr("Stop"));
    stop_->setToolTip(stopping ? tr("Cancel the requests that still run")
                               : tr("Admit nothing more; requests that run have 30 s to end"));
    revalidate();
}

QVariantMap ServeDialog::values() const {
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

void ServeDialog::setValues(const QVariantMap& values) {
    if (values.isEmpty()) return;
    applying_ = true;
    const QString model = values.value(QStringLiteral("model")).toString();
    if (!model.isEmpty() && (model_->findData(model) >= 0 || QFileInfo::exists(model))) {
        modelPicked_ = true;
        listModel(model);
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
    revalidate();
}

void ServeDialog::changeEvent(QEvent* event) {
    QDialog::changeEvent(event);
    if (event->type() == QEvent::PaletteChange && dot_ != nullptr && stop_ != nullptr) showServer();
}

} // namespace kvscope::ui
