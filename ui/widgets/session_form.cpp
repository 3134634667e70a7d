#include "ui/widgets/session_form.h"

#include "core/select/refusal.h"
#include "core/session/most_attended.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"
#include "ui/session/run_again.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/model_page.h"
#include "ui/widgets/parameter_panel.h"
#include "ui/widgets/prompt_editor.h"
#include "ui/widgets/session_advanced.h"
#include "ui/widgets/session_backend.h"
#include "ui/widgets/session_footer.h"

#include <QComboBox>
#include <QFileInfo>
#include <QMimeDatabase>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QToolButton>

#include <algorithm>

namespace kvscope::ui {

bool isModel(const QString& path) {
    const QFileInfo info(path);
    return info.isDir() ? QFileInfo::exists(path + QStringLiteral("/config.json"))
                        : info.isFile() && info.suffix().compare(QLatin1String("gguf"), Qt::CaseInsensitive) == 0;
}

void SessionForm::setModel(const QString& nameOrPath, std::shared_ptr<const Model> model) {
    rememberSettings();
    chosen_.loaded = std::move(model);
    chosen_.loadedName = nameOrPath;
    chosen_.problem.clear();
    modelMessage_->clear();
    listModel(nameOrPath); // shows the model as chosen; it is loaded and need not be requested
    const ModelConfig& config = chosen_.loaded->config();
    modelFacts_->setText(
        tr("%1 layers · %2 KV heads of %3 · %4 weights · context %5 tokens")
            .arg(config.layers)
            .arg(config.kvHeads)
            .arg(config.headDim)
            .arg(QString::fromLatin1(nameOf(chosen_.loaded->weightType())), formatCount(config.maxPositions)));
    modelDetails_->setEnabled(true);
    if (modelPage_) modelPage_->setModel(chosen_.loaded);
    prompt_->setModel(chosen_.loaded);
    shownMethod_.clear();
    showMethod();
}

void SessionForm::showModelPage() {
    if (!modelPage_) modelPage_ = new ModelPage(this);
    modelPage_->setModel(chosen_.loaded);
    modelPage_->show();
    modelPage_->raise();
}

void SessionForm::setModelProblem(const QString& sentence) {
    chosen_.problem = sentence;
    modelMessage_->show(InlineMessage::Kind::Error, sentence);
    modelFacts_->clear();
    revalidate();
}

void SessionForm::setRunProblem(const QString& sentence) { footer_->showError(sentence); }

void SessionForm::setRunning(bool running) {
    if (running_ == running) return;
    running_ = running;
    if (running) footer_->clearMessage();
    revalidate();
}

const MethodEntry& SessionForm::method() const { return findMethod(method_->currentData().toString().toStdString()); }

void SessionForm::rememberSettings() {
    if (!shownMethod_.isEmpty()) settings_[shownMethod_] = parameters_->settings();
}

void SessionForm::showMethod() {
    const QString name = method_->currentData().toString();
    if (shownMethod_ != name) {
        rememberSettings();
        const MethodEntry& entry = method();
        loading_ = true;
        ParameterValues defaults;
        if (chosen_.loaded)
            defaults = resolveDefaults(entry, chosen_.loaded->config());
        else
            for (const Parameter& parameter : entry.parameters) defaults.assign(parameter.key, parameter.defaultValue);
        parameters_->setParameters(chosen_.loaded ? parametersFor(entry, chosen_.loaded->config()) : entry.parameters,
                                   defaults);
        parameters_->tabAfter(method_);
        for (const auto& [key, value] : settings_.value(name)) parameters_->setValue(key, value);
        loading_ = false;
        // Without a model, the panel compares with the declared defaults only. When the model is loaded, setModel
        // clears shownMethod_, and the values are compared with the defaults of the model.
        shownMethod_ = name;
        methodSummary_->setText(QString::fromStdString(entry.summary));
        const QString needs = entry.needs.empty() ? tr("any checkpoint") : QString::fromStdString(entry.needs);
        const QString tip = QStringLiteral("<p><b>%1</b></p><p>%2</p><p>%3</p><p>%4</p>")
                                .arg(QString::fromStdString(entry.title).toHtmlEscaped(),
                                     QString::fromStdString(entry.summary).toHtmlEscaped(),
                                     tr("Source: %1").arg(QString::fromStdString(entry.source).toHtmlEscaped()),
                                     tr("Needs: %1").arg(needs.toHtmlEscaped()));
        method_->setToolTip(tip);
        methodSummary_->setToolTip(tip);
    }
    revalidate();
}

SessionOptions SessionForm::options() const {
    SessionOptions options;
    options.backend = backend_->backend();
    options.method = method().name;
    options.settings = parameters_->settings();
    options.maxNewTokens = maxNewTokens_->value();
    advanced_->read(options);
    return options;
}

SessionRequest SessionForm::request() const {
    SessionRequest request;
    request.model = modelName();
    request.source = prompt_->source();
    request.options = options();
    advanced_->read(request);
    return request;
}

bool SessionForm::takePrompt(const QString& file, const QWidget* over) {
    if (over != prompt_ && !prompt_->isAncestorOf(over)) return false;
    if (!QMimeDatabase().mimeTypeForFile(file).inherits(QStringLiteral("text/plain"))) return false;
    prompt_->chooseFile(file);
    return true;
}

bool SessionForm::hasModel() const { return chosen_.loaded != nullptr && chosen_.loadedName == modelName(); }

QString SessionForm::findProblem() {
    parameterMessage_->clear();
    budget_->hide();
    forecastNote_->hide();
    footer_->setEstimate({});
    if (!chosen_.problem.isEmpty()) return tr("The model could not be loaded.");
    if (!hasModel()) return tr("The model is being loaded.");

    if (options().backend == Backend::Cuda && !backend_->problem().isEmpty()) return backend_->problem();

    const MethodEntry& entry = method();
    const auto refuse = [&](const QString& words) {
        const QString sentence = withTitles(words, parametersFor(entry, chosen_.loaded->config()));
        parameterMessage_->show(InlineMessage::Kind::Error, sentence);
        return tr("The method cannot run like this: %1").arg(sentence);
    };
    if (!hasWeightsFor(entry, *chosen_.loaded))
        return refuse(tr("%1 needs %2, and %3 has none. Choose another method or a checkpoint trained for it.")
                          .arg(QString::fromStdString(entry.title), QString::fromStdString(entry.needs),
                               QString::fromStdString(chosen_.loaded->name())));
    SelectionSpec spec;
    ParameterValues values = resolveDefaults(entry, chosen_.loaded->config());
    try {
        for (const auto& [key, value] : parameters_->settings())
            values.set(parametersFor(entry, chosen_.loaded->config()), key, value);
        if (const auto lack = findLack(entry, values, *chosen_.loaded)) throw *lack;
        spec = entry.make(values, chosen_.loaded->config());
    } catch (const Error& error) {
        return refuse(QString::fromStdString(oneLine(error)));
    }
    const MethodUse use{
        values,          spec, chosen_.loaded->config(), options().backend, advanced_->offloads(), chosen_.loaded.get(),
        options().kvType};

    const bool pooled =
        advanced_->offloads() && !spec.dense && !spec.ownDeviceTier; // whether blocks go through the device tier
    advanced_->setPooled(pooled);
    try {
        if (const std::string policy = options().cachePolicy; !policy.empty())
            checkCachePolicy(policy, entry, spec, chosen_.loaded->config());
    } catch (const Error& error) {
        return tr("The session cannot run like this: %1. See Advanced.").arg(QString::fromStdString(oneLine(error)));
    }

    if (const QString problem = prompt_->problem(); !problem.isEmpty()) return problem;
    const std::optional<int> promptTokens = prompt_->tokens();
    if (!promptTokens) return tr("The prompt's tokens are being counted.");
    const int context = chosen_.loaded->config().maxPositions;
    if (std::int64_t(*promptTokens) + maxNewTokens_->value() - 1 > context)
        return tr("%1 prompt tokens and %2 new ones exceed the context of %3 tokens. Shorten the prompt or ask for "
                  "fewer.")
            .arg(formatCount(*promptTokens), formatCount(maxNewTokens_->value()), formatCount(context));

    const int tokens = *promptTokens + maxNewTokens_->value();
    if (const auto refusal = findRefusal(entry, use, tokens, chosen_.loaded.get()))
        return refuse(QString::fromStdString(oneLine(*refusal)));
    const int attended = mostAttended(entry, use, {*promptTokens, maxNewTokens_->value()});
    std::optional<std::int64_t> chosenSlots;
    if (pooled && advanced_->deviceSlots() > 0) chosenSlots = advanced_->deviceSlots();
    const KvEstimate estimate = estimateKv(*chosen_.loaded, entry, use, {*promptTokens, maxNewTokens_->value()},
                                           sequences_->value(), chosenSlots, advanced_->measuresOracle());
    const std::int64_t onDevice = estimate.deviceBytes + estimate.sharedBytes;
    const QString budgetText = attended == 0
                                   ? tr("Attends to all %1 tokens.").arg(formatCount(tokens))
                                   : tr("Attends to at most %1 of %2 tokens (%3) per KV head.")
                                         .arg(formatCount(attended), formatCount(tokens),
                                              formatShare(attended, tokens).replace(QLatin1Char(' '), QChar::Nbsp));
    budget_->setText(budgetText);
    budget_->show();
    proposeForecast(entry, values);
    QString device = estimate.blockSlots > 0
                         ? tr("device %1 (%2\u00a0slots)").arg(formatBytes(onDevice), formatCount(estimate.blockSlots))
                         : tr("device %1, all resident").arg(formatBytes(onDevice));
    if (estimate.oracleBytes > 0) device += tr(" and %1 for the oracle").arg(formatBytes(estimate.oracleBytes));
    footer_->setEstimate(tr("KV memory: host %1 · %2").arg(formatBytes(estimate.hostBytes), device));
    if (estimate.blockSlots < estimate.neededSlots)
        return tr("%1 device KV slots are too few: the method attends %2 blocks at a time. Raise them under Advanced.")
            .arg(estimate.blockSlots)
            .arg(estimate.neededSlots);
    return {};
}

/// Says that blocks could be chosen a layer early, where they travel and the model has learned to.
void SessionForm::proposeForecast(const MethodEntry& entry, const ParameterValues& values) {
    const bool could =
        entry.forecast && !entry.takesForecast(values) && advanced_->offloads() && chosen_.loaded->hasForecastHeads();
    if (could)
        forecastNote_->setText(tr("The model has Forecast heads: with Ahead at forecast, blocks travel while the layer "
                                  "before runs. The text may differ."));
    forecastNote_->setVisible(could);
}

void SessionForm::revalidate() {
    if (loading_) return;
    const int recorded = prompt_->recordedSequences();
    sequences_->setEnabled(recorded == 0);
    sequences_->setMaximum(std::max(kMostSequences, recorded));
    if (recorded > 0) {
        const QSignalBlocker quiet(sequences_);
        sequences_->setValue(recorded);
    }
    prompt_->setSequences(sequences_->value());
    advanced_->refresh();

    const QString requested = findProblem();
    const QString problem = running_ ? tr("A session is running. Stop it or wait for its end.") : requested;
    const QString reason = !running_ ? problem
                           : requested.isEmpty()
                               ? tr("A session is running. Stop it, wait for its end, or queue this one.")
                               : requested;
    footer_->setProblems(reason, problem, requested);
    if (runTakesFocus_ && (prompt_->tokens() || !prompt_->problem().isEmpty())) { // a disabled button takes no focus
        runTakesFocus_ = false;
        footer_->focusRun();
    }
    if (problem == problem_ && requested == requestProblem_) return;
    problem_ = problem;
    requestProblem_ = requested;
    emit problemChanged();
}

void SessionForm::run() {
    revalidate();
    if (problem_.isEmpty()) emit runRequested(request());
}

void SessionForm::addToQueue() {
    revalidate();
    if (requestProblem_.isEmpty()) emit queueRequested(request());
}

void SessionForm::sweep() {
    revalidate();
    if (requestProblem_.isEmpty()) emit sweepRequested();
}

std::shared_ptr<const Model> SessionForm::model() const { return hasModel() ? chosen_.loaded : nullptr; }

int SessionForm::promptTokens() const { return prompt_->tokens().value_or(0); }

QVariantMap SessionForm::values() const {
    QVariantMap methodSettings;
    auto all = settings_;
    if (!shownMethod_.isEmpty()) all[shownMethod_] = parameters_->settings();
    for (auto entry = all.constBegin(); entry != all.constEnd(); ++entry) {
        QVariantMap values;
        for (const auto& [key, value] : entry.value())
            values[QString::fromStdString(key)] = QString::fromStdString(value);
        if (!values.isEmpty()) methodSettings[entry.key()] = values;
    }
    QVariantMap result = advanced_->values();
    result.insert({{"model", modelName()},
                   {"prompt", prompt_->values()},
                   {"sequences", sequences_->value()},
                   {"method", method_->currentData()},
                   {"settings", methodSettings},
                   {"maxNewTokens", maxNewTokens_->value()},
                   {"backend", backend_->value()}});
    return result;
}

void SessionForm::setValues(const QVariantMap& values) {
    const auto restore = [&](const char* key, auto&& set) {
        if (const auto found = values.constFind(QLatin1String(key)); found != values.constEnd()) set(*found);
    };
    loading_ = true;
    restore("settings", [&](const QVariant& saved) {
        const QVariantMap methodSettings = saved.toMap();
        for (auto entry = methodSettings.constBegin(); entry != methodSettings.constEnd(); ++entry) {
            std::vector<std::pair<std::string, std::string>> list;
            const QVariantMap one = entry.value().toMap();
            for (auto item = one.constBegin(); item != one.constEnd(); ++item)
                list.emplace_back(item.key().toStdString(), item.value().toString().toStdString());
            settings_[entry.key()] = list;
        }
        shownMethod_.clear(); // showMethod then fills the panel with the saved values
    });
    restore("prompt", [&](const QVariant& v) { prompt_->setValues(v.toMap()); });
    restore("sequences", [&](const QVariant& v) { sequences_->setValue(v.toInt()); });
    restore("maxNewTokens", [&](const QVariant& v) { maxNewTokens_->setValue(v.toInt()); });
    advanced_->setValues(values);
    restore("backend", [&](const QVariant& v) { backend_->setValue(v); });
    restore("method", [&](const QVariant& v) { chooseData(method_, v); });
    loading_ = false;
    restore("model", [&](const QVariant& v) {
        const QString name = v.toString();
        if (name == modelName() || name.isEmpty()) return;
        // The model is no longer there: keep the embedded one.
        if (model_->findData(name) < 0 && !QFileInfo::exists(name)) return;
        chooseModel(name);
    });
    showMethod();
}

QVariantMap SessionForm::valuesOf(const SessionOptions& options) const {
    QVariantMap settings;
    for (const auto& [key, value] : options.settings)
        settings[QString::fromStdString(key)] = QString::fromStdString(value);
    const QString method = QString::fromStdString(options.method);
    QVariantMap values = advanced_->valuesOf(options);
    values.insert({{"settings", QVariantMap{{method, settings}}},
                   {"method", method},
                   {"maxNewTokens", options.maxNewTokens},
                   {"backend", int(options.backend)}});
    return values;
}

void SessionForm::fill(const SessionOptions& chosen, const NeedleOptions& needle, int sequences) {
    QVariantMap values = valuesOf(chosen);
    values["prompt"] = QVariantMap{{"kind", int(PromptSource::Kind::Needle)},
                                   {"needleTokens", needle.tokens},
                                   {"needles", needle.needles},
                                   {"depth", needle.depth},
                                   {"seed", qulonglong(needle.seed)}};
    values["sequences"] = sequences;
    setValues(values);
    revalidate();
}

QString SessionForm::fill(const SessionToRepeat& recorded) {
    const SessionRequest& request = recorded.request;
    QVariantMap values = valuesOf(request.options);
    values["level"] = int(request.level);
    setValues(values);
    prompt_->chooseRecorded(request.source->file, request.source->runId, request.source->sequences);
    revalidate();
    const QString difference = findDifference(recorded);
    if (!difference.isEmpty())
        return tr("This form cannot hold what the run was recorded with: %1. The report of the run has a command that "
                  "does.")
            .arg(difference);
    QStringList notes{
        tr("As run %1 of %2 was recorded.").arg(recorded.key.runId).arg(QFileInfo(recorded.key.path).fileName())};
    notes += recorded.remarks;
    footer_->showNote(notes.join(QLatin1Char(' ')));
    runTakesFocus_ = true;
    revalidate();
    return {};
}

/// Numbers that a field rounds or cuts: a run with those would be another one.
QString SessionForm::findDifference(const SessionToRepeat& recorded) const {
    const SessionOptions wanted = recorded.request.options, now = options();
    const auto differs = [](const QString& what, const auto& recordedValue, const auto& here) {
        return tr("%1 was %2, here it becomes %3").arg(what).arg(recordedValue).arg(here);
    };
    const MethodEntry& entry = method();
    ParameterValues here, then;
    if (chosen_.loaded) here = then = resolveDefaults(entry, chosen_.loaded->config());
    for (const auto& [key, value] : now.settings) here.set(entry.parameters, key, value);
    for (const auto& [key, value] : wanted.settings) then.set(entry.parameters, key, value);
    for (const Parameter& parameter : entry.parameters) {
        if (!then.has(parameter.key) || !here.has(parameter.key)) continue;
        const bool isSame = parameter.type == ParameterType::Number
                                ? then.number(parameter.key) == here.number(parameter.key)
                                : then.text(parameter.key) == here.text(parameter.key);
        if (!isSame)
            return differs(QString::fromStdString(parameter.key), QString::fromStdString(then.text(parameter.key)),
                           QString::fromStdString(here.text(parameter.key)));
    }
    if (now.maxNewTokens != wanted.maxNewTokens)
        return differs(tr("the number of new tokens"), wanted.maxNewTokens, now.maxNewTokens);
    if (now.sampling.temperature != wanted.sampling.temperature)
        return differs(tr("the temperature"), wanted.sampling.temperature, now.sampling.temperature);
    if (wanted.sampling.temperature > 0 && now.sampling.topP != wanted.sampling.topP)
        return differs(tr("top-p"), wanted.sampling.topP, now.sampling.topP);
    if (wanted.sampling.temperature > 0 && now.sampling.topK != wanted.sampling.topK)
        return differs(tr("top-k"), wanted.sampling.topK, now.sampling.topK);
    if (wanted.sampling.temperature > 0 && now.sampling.seed != wanted.sampling.seed)
        return differs(tr("the seed"), qulonglong(wanted.sampling.seed), qulonglong(now.sampling.seed));
    if (wanted.backend == Backend::Cpu && now.link.gigabytesPerSecond != wanted.link.gigabytesPerSecond)
        return differs(tr("the link"), wanted.link.gigabytesPerSecond, now.link.gigabytesPerSecond);
    return {};
}

} // namespace kvscope::ui
