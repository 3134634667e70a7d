#include "ui/widgets/sweep_plan.h"

#include "base/error.h"
#include "core/cache/cache_policy.h"
#include "core/select/method.h"
#include "ui/models/format.h"
#include "ui/widgets/form_helpers.h"

#include <QCoreApplication>
#include <QRegularExpression>

#include <algorithm>
#include <optional>
#include <utility>

namespace kvscope::ui {
namespace {

const std::string kPromptTokens = "prompt-tokens", kSequences = "sequences"; // which SessionOptions does not have

QString inSweep(const char* text) { return QCoreApplication::translate("Sweep", text); }

bool hasLength(const PromptSource& source) {
    return source.kind == PromptSource::Kind::Needle || source.kind == PromptSource::Kind::LongDocument;
}

int lengthOf(const PromptSource& source) {
    return source.kind == PromptSource::Kind::Needle ? source.needle.tokens : source.documentTokens;
}

QString deviceKvText(const SessionOptions& options) {
    return options.deviceKvBlocks ? QString::number(*options.deviceKvBlocks) : QString();
}

std::vector<SweepField> sessionFields(const SweepBase& base) {
    const SessionOptions& options = base.form.options;
    QStringList methodNames, policies;
    for (const MethodEntry& method : methods())
        if (hasWeightsFor(method, *base.model)) methodNames << QString::fromStdString(method.name);
    for (const CachePolicy& policy : cachePolicies()) policies << QString::fromStdString(policy.name);
    std::vector<SweepField> fields{{"method",
                                    inSweep("Method"),
                                    inSweep("How each KV head chooses the blocks it attends to."),
                                    {},
                                    {},
                                    methodNames,
                                    QString::fromStdString(options.method)}};
    const auto add = [&](const std::string& key, const char* title, const char* help, const QString& range,
                         const char* unit, const QString& now, const QStringList& choices = {}) {
        fields.push_back({key, inSweep(title), inSweep(help), range, QLatin1String(unit), choices, now});
    };
    if (base.form.source && hasLength(*base.form.source))
        add(kPromptTokens, "Prompt", "Length of the prompt.",
            inSweep("64 to %1 tokens").arg(formatCount(base.model->config().maxPositions)), "tokens",
            QString::number(lengthOf(*base.form.source)));
    if (base.form.source && base.form.source->kind != PromptSource::Kind::Recorded)
        add(kSequences, "Sequences", "Sequences decoded together.", inSweep("1 to 256 sequences"), "sequences",
            QString::number(base.form.source->sequences));
    add("max-new-tokens", "Generate", "Decoding ends after so many new tokens.", inSweep("1 or more tokens"), "tokens",
        QString::number(options.maxNewTokens));
    add("offload", "Keep the KV cache in host memory",
        "On: misses are copied over the link. Off: every block stays on the device.", {}, "",
        options.offload ? QStringLiteral("on") : QStringLiteral("off"), {QStringLiteral("on"), QStringLiteral("off")});
    add("device-kv", "Device KV", "Block slots of the device tier, or its size such as 256MiB.",
        inSweep("slots for every sequence, layer and KV head, or a size such as 256MiB"), "slots",
        deviceKvText(options));
    add("cache-policy", "Cache policy", "Which resident block makes room for a missing one.", {}, "",
        QString::fromStdString(options.cachePolicy), policies);
    add("link", "Link", "Link between host memory and device tier.", inSweep("pcie4, pcie5, or a bandwidth in GB/s"),
        "GB/s", QString::fromStdString(options.link.name));
    add("temperature", "Temperature", "0: always the most likely token. Above: tokens are drawn.", inSweep("0 to 10"),
        "", QString::number(options.sampling.temperature));
    add("seed", "Seed", "The same seed draws the same tokens. Has an effect above temperature 0.",
        inSweep("a whole number"), "", QString::number(options.sampling.seed));
    return fields;
}

QStringList choicesOf(const Parameter& parameter) {
    if (parameter.type == ParameterType::Boolean) return {QStringLiteral("true"), QStringLiteral("false")};
    QStringList choices;
    for (const std::string& choice : parameter.choices) choices << QString::fromStdString(choice);
    return choices;
}

QString rangeOf(const Parameter& parameter) {
    if (parameter.type != ParameterType::Integer && parameter.type != ParameterType::Number) return {};
    const auto number = [&](double value) {
        return parameter.type == ParameterType::Integer ? formatCount(std::int64_t(value)) : QString::number(value);
    };
    const QString range = inSweep("%1 to %2").arg(number(parameter.min), number(parameter.max));
    return parameter.unit.empty() ? range : range + QLatin1Char(' ') + QString::fromStdString(parameter.unit);
}

/// A value as a part of a run's name: "32 blocks", or "32 sink blocks" where another setting varies in blocks too.
QString namePart(const SweepField& field, const QString& value, bool onlyOfItsUnit) {
    if (field.key == "method" || field.key == "cache-policy") return value;
    if (field.key == "link") return value.at(0).isDigit() ? value + QStringLiteral(" GB/s") : value;
    if (field.key == "offload") return value == QLatin1String("on") ? inSweep("offloaded") : inSweep("resident");
    if (field.key == kPromptTokens) return inSweep("prompt %1").arg(formatCount(value.toLongLong()));
    if (field.key == "max-new-tokens") return inSweep("%1 new tokens").arg(formatCount(value.toLongLong()));
    if (field.key == "device-kv" && !value.back().isDigit()) return inSweep("device KV %1").arg(value);
    bool isNumber = false;
    const qlonglong number = value.toLongLong(&isNumber);
    QString unit = field.unit;
    if (!isNumber || unit.isEmpty()) return QStringLiteral("%1 %2").arg(field.title.toLower(), value);
    if (number == 1 && unit.endsWith(QLatin1Char('s'))) unit.chop(1);
    if (field.key == kSequences || field.key == "device-kv") return QStringLiteral("%1 %2").arg(value, unit);
    const QString title = field.title.toLower();
    if (!title.endsWith(QLatin1Char(' ') + field.unit)) return QStringLiteral("%1 %2").arg(title, value);
    const QString before = onlyOfItsUnit ? QString() : title.left(title.size() - field.unit.size());
    return QStringLiteral("%1 %2%3").arg(value, before, unit);
}

const SweepField* fieldOf(const std::vector<SweepField>& fields, const std::string& key) {
    const auto at = std::find_if(fields.begin(), fields.end(), [&](const SweepField& each) { return each.key == key; });
    return at == fields.end() ? nullptr : &*at;
}

/// method: the first part. apart: all keys that tell runs apart.
QString nameOfRun(const std::string& method, const Settings& settings, const QStringList& apart,
                  const std::vector<SweepField>& fields) {
    QStringList parts{QString::fromStdString(method)};
    for (const auto& [key, value] : settings) {
        const SweepField* field = fieldOf(fields, key);
        if (key == "method" || field == nullptr) continue;
        const auto ofUnit = std::count_if(apart.begin(), apart.end(), [&](const QString& other) {
            const SweepField* its = fieldOf(fields, other.toStdString());
            return its != nullptr && its->unit == field->unit;
        });
        parts << namePart(*field, QString::fromStdString(value), ofUnit <= 1);
    }
    return parts.join(QStringLiteral(", "));
}

int countIn(const std::string& key, const std::string& text, int least, int most) {
    bool isNumber = false;
    const int value = QString::fromStdString(text).toInt(&isNumber);
    if (isNumber && value >= least && value <= most) return value;
    throw Error(ErrorKind::BadInput, "cannot read --sweep " + key + "=" + text,
                "give a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

/// Applies what SessionOptions does not have, and returns how many tokens the prompt then has.
int applyPrompt(const SweepBase& base, const Settings& varied, SessionRequest& request) {
    int tokens = base.promptTokens;
    if (!request.source) return tokens;
    for (const auto& [key, value] : varied) {
        if (key == kSequences) request.source->sequences = countIn(key, value, 1, 256);
        if (key != kPromptTokens) continue;
        const int length = countIn(key, value, 64, base.model->config().maxPositions);
        tokens += length - lengthOf(*request.source); // a chat template adds as many tokens as before
        (request.source->kind == PromptSource::Kind::Needle ? request.source->needle.tokens
                                                            : request.source->documentTokens) = length;
    }
    return tokens;
}

/// What the form gives to its own method and another one refuses: the size and the policy of a device tier that this
/// method does not use.
void dropIdleTier(const SweepBase& base, const Settings& varied, SessionOptions& options) {
    const auto isVaried = [&](const char* key) {
        return std::any_of(varied.begin(), varied.end(), [&](const auto& each) { return each.first == key; });
    };
    if (hasDeviceTier(*base.model, options)) return;
    if (!isVaried("device-kv")) options.deviceKvBlocks.reset(), options.deviceKvBytes.reset();
    if (!isVaried("cache-policy")) options.cachePolicy.clear();
}

} // namespace

std::vector<SweepField> sweepFields(const SweepBase& base, const QStringList& methodNames) {
    std::vector<SweepField> fields = sessionFields(base);
    const SessionOptions& options = base.form.options;
    for (const QString& name : methodNames) {
        const MethodEntry& method = findMethod(name.toStdString());
        ParameterValues values = resolveDefaults(method, base.model->config());
        const bool isForms = &method == &findMethod(options.method);
        const auto& declared = parametersFor(method, base.model->config());
        for (const auto& [key, value] : options.settings)
            if (isForms) values.set(declared, key, value);
        for (const Parameter& parameter : declared)
            if (fieldOf(fields, parameter.key) == nullptr)
                fields.push_back({parameter.key, titleOf(parameter.key), QString::fromStdString(parameter.help),
                                  rangeOf(parameter), QString::fromStdString(parameter.unit), choicesOf(parameter),
                                  isForms ? QString::fromStdString(values.text(parameter.key)) : QString()});
    }
    return fields;
}

std::vector<SweptRun> planSweep(const SweepBase& base, const std::vector<SweepAxis>& axes) {
    const ModelConfig& config = base.model->config();
    QStringList methodNames{QString::fromStdString(base.form.options.method)}, apart;
    for (const SweepAxis& axis : axes) {
        apart << QString::fromStdString(axis.key);
        if (axis.key != "method") continue;
        methodNames.clear();
        for (const std::string& name : axis.values) methodNames << QString::fromStdString(findMethod(name).name);
    }
    SweepRequest sweep{axes, base.form.options, {}, {kPromptTokens, kSequences}};
    sweep.base.settings.clear();
    const auto isTaken = [&](const std::string& key) {
        return std::any_of(methodNames.begin(), methodNames.end(), [&](const QString& name) {
            const auto& declared = parametersFor(findMethod(name.toStdString()), config);
            return std::any_of(declared.begin(), declared.end(), [&](const Parameter& p) { return p.key == key; });
        });
    };
    for (const auto& [key, value] : base.form.options.settings)
        if (!apart.contains(QString::fromStdString(key)) && isTaken(key)) sweep.settings.emplace_back(key, value);
    const std::vector<SweepField> fields = sweepFields(base, methodNames);
    std::vector<SweptRun> runs;
    std::vector<SweepPoint> points = sweepPoints(sweep, config);
    if (points.size() > kMostSweptRuns)
        throw Error(ErrorKind::BadInput, "this makes " + std::to_string(points.size()) + " runs",
                    "give fewer values until there are at most " + std::to_string(kMostSweptRuns));
    for (SweepPoint& point : points) {
        SweptRun run{nameOfRun(point.options.method, point.varied, apart, fields), base.form, {}};
        const int tokens = applyPrompt(base, point.varied, run.request);
        run.request.options = std::move(point.options);
        try {
            dropIdleTier(base, point.varied, run.request.options);
            rehearseSession(base.model, run.request.options, tokens,
                            run.request.source ? run.request.source->sequences : 1);
        } catch (const Error& error) {
            run.problem = inWordsOfForm(error, fields);
        }
        runs.push_back(std::move(run));
    }
    return runs;
}

QString queuedName(const SessionRequest& request, const Model& model) {
    const QString method = QString::fromStdString(request.options.method);
    QStringList apart;
    for (const auto& [key, value] : request.options.settings) apart << QString::fromStdString(key);
    std::vector<SweepField> fields;
    for (const Parameter& parameter : parametersFor(findMethod(request.options.method), model.config()))
        fields.push_back(
            {parameter.key, titleOf(parameter.key), {}, {}, QString::fromStdString(parameter.unit), {}, {}});
    return nameOfRun(request.options.method, request.options.settings, apart, fields);
}

QString inWordsOfForm(const Error& error, const std::vector<SweepField>& fields) {
    // a hint that names another program helps nobody here
    QString words =
        QString::fromStdString(error.hint.find("kvscope-cli") == std::string::npos ? oneLine(error) : error.what());
    words.replace(QStringLiteral("--no-offload"), inSweep("the KV cache off host memory"));
    words.replace(QStringLiteral("--sweep has an"), inSweep("there is an"));
    words.replace(QStringLiteral("with --backend cuda"), inSweep("on an NVIDIA GPU"));
    for (const SweepField& field : fields) {
        const QString key = QRegularExpression::escape(QString::fromStdString(field.key));
        words.replace(QRegularExpression(QStringLiteral("--(?:sweep )?%1(?![\\w-])=?").arg(key)),
                      field.title + QLatin1Char(' '));
    }
    std::vector<std::string> keys;
    for (const SweepField& field : fields) keys.push_back(field.key);
    words = withTitles(words.remove(QStringLiteral("--sweep ")), keys).simplified();
    if (!words.isEmpty()) words[0] = words.at(0).toUpper();
    return words;
}

} // namespace kvscope::ui
