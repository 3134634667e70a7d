#include "ui/session/request_json.h"

#include "base/error.h"
#include "core/plan/kv_format.h"

#include <QJsonArray>
#include <QJsonDocument>
#include <QJsonObject>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kMostSequences = 256; // of a request; no session decodes more

/// JSON numbers hold 53 bits.
QString seedText(std::uint64_t seed) { return QString::number(seed); }
std::uint64_t seedIn(const QJsonValue& value) { return value.toString().toULongLong(); }

QString textOf(const std::string& text) { return QString::fromStdString(text); }
std::string stringIn(const QJsonValue& value) { return value.toString().toStdString(); }

QJsonObject sourceJson(const PromptSource& source) {
    return {{"kind", int(source.kind)},
            {"needleTokens", source.needle.tokens},
            {"needles", source.needle.needles},
            {"depth", source.needle.depth},
            {"needleSeed", seedText(source.needle.seed)},
            {"passKey", source.needle.passKey},
            {"documentTokens", source.documentTokens},
            {"text", source.text},
            {"file", source.file},
            {"runId", source.runId},
            {"sequences", source.sequences},
            {"chat", source.chat},
            {"system", source.system}};
}

PromptSource sourceIn(const QJsonObject& json) {
    PromptSource source;
    const int kind = json.value("kind").toInt();
    if (kind < 0 || kind > int(PromptSource::Kind::Recorded))
        throw Error(ErrorKind::BadInput, "a prompt of an unknown kind");
    source.kind = PromptSource::Kind(kind);
    source.needle.tokens = json.value("needleTokens").toInt();
    source.needle.needles = json.value("needles").toInt();
    source.needle.depth = json.value("depth").toDouble();
    source.needle.seed = seedIn(json.value("needleSeed"));
    source.needle.passKey = json.value("passKey").toBool();
    source.documentTokens = json.value("documentTokens").toInt();
    source.text = json.value("text").toString();
    source.file = json.value("file").toString();
    source.runId = json.value("runId").toInt();
    source.sequences = std::clamp(json.value("sequences").toInt(), 1, kMostSequences);
    source.chat = json.value("chat").toBool();
    source.system = json.value("system").toString();
    return source;
}

QJsonObject optionsJson(const SessionOptions& options) {
    QJsonArray settings;
    for (const auto& [key, value] : options.settings) settings.append(QJsonArray{textOf(key), textOf(value)});
    QJsonObject json{{"backend", int(options.backend)},
                     {"method", textOf(options.method)},
                     {"settings", settings},
                     {"maxNewTokens", options.maxNewTokens},
                     {"stopAtEos", options.stopAtEos},
                     {"temperature", options.sampling.temperature},
                     {"topP", options.sampling.topP},
                     {"topK", options.sampling.topK},
                     {"seed", seedText(options.sampling.seed)},
                     {"cachePolicy", textOf(options.cachePolicy)},
                     {"offload", options.offload},
                     {"link", textOf(options.link.name)},
                     {"linkGbps", options.link.gigabytesPerSecond},
                     {"linkLatencyUs", options.link.latencyUs},
                     {"oracle", options.oracle},
                     {"recordModelPath", options.recordModelPath}};
    if (options.deviceKvBlocks) json["deviceKvBlocks"] = qint64(*options.deviceKvBlocks);
    if (options.deviceKvBytes) json["deviceKvBytes"] = qint64(*options.deviceKvBytes);
    if (options.kvType) json["kvType"] = textOf(std::string(nameOf(*options.kvType)));
    return json;
}

SessionOptions optionsIn(const QJsonObject& json) {
    SessionOptions options;
    options.backend = json.value("backend").toInt() == int(Backend::Cuda) ? Backend::Cuda : Backend::Cpu;
    options.method = stringIn(json.value("method"));
    for (const QJsonValue& setting : json.value("settings").toArray())
        options.settings.emplace_back(stringIn(setting[0]), stringIn(setting[1]));
    options.maxNewTokens = json.value("maxNewTokens").toInt();
    options.stopAtEos = json.value("stopAtEos").toBool();
    options.sampling.temperature = json.value("temperature").toDouble();
    options.sampling.topP = json.value("topP").toDouble();
    options.sampling.topK = json.value("topK").toInt();
    options.sampling.seed = seedIn(json.value("seed"));
    options.cachePolicy = stringIn(json.value("cachePolicy"));
    options.offload = json.value("offload").toBool();
    options.link = {stringIn(json.value("link")), json.value("linkGbps").toDouble(),
                    json.value("linkLatencyUs").toDouble()};
    options.oracle = json.value("oracle").toBool();
    options.recordModelPath = json.value("recordModelPath").toBool();
    if (json.contains("deviceKvBlocks")) options.deviceKvBlocks = json.value("deviceKvBlocks").toInteger();
    if (json.contains("deviceKvBytes")) options.deviceKvBytes = json.value("deviceKvBytes").toInteger();
    options.kvType = kvTypeNamed(stringIn(json.value("kvType")));
    return options;
}

} // namespace

QByteArray requestsJson(const std::vector<NamedRequest>& requests) {
    QJsonArray all;
    for (const auto& [name, request] : requests) {
        if (request.fork || !request.source) continue;
        all.append(QJsonObject{{"name", name},
                               {"model", request.model},
                               {"source", sourceJson(*request.source)},
                               {"options", optionsJson(request.options)},
                               {"level", int(request.level)},
                               {"recordGpu", request.recordGpu},
                               {"recordCalls", request.recordCalls},
                               {"pcieCounting", int(request.pcieCounting)}});
    }
    return QJsonDocument(all).toJson(QJsonDocument::Compact);
}

std::vector<NamedRequest> requestsOf(const QByteArray& json) {
    std::vector<NamedRequest> requests;
    for (const QJsonValue& each : QJsonDocument::fromJson(json).array()) {
        const QJsonObject text = each.toObject();
        SessionRequest request;
        try {
            request.source = sourceIn(text.value("source").toObject());
            request.options = optionsIn(text.value("options").toObject());
        } catch (const Error&) {
            continue; // written by another version
        }
        request.model = text.value("model").toString();
        const int level = text.value("level").toInt(-1), counting = text.value("pcieCounting").toInt(-1);
        if (request.model.isEmpty() || level < 0 || level > int(RecordLevel::Full) || counting < 0 ||
            counting > int(PcieCounting::Off))
            continue;
        request.level = RecordLevel(level);
        request.pcieCounting = PcieCounting(counting);
        request.recordGpu = text.value("recordGpu").toBool();
        request.recordCalls = text.value("recordCalls").toBool();
        // A value that is missing, of another type or out of range would be read as 0, and another session would run.
        const NamedRequest read{text.value("name").toString(), request};
        if (requestsJson({read}) == QJsonDocument(QJsonArray{each}).toJson(QJsonDocument::Compact))
            requests.push_back(read);
    }
    return requests;
}

} // namespace kvscope::ui
