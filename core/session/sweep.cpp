#include "core/session/sweep.h"

#include "core/model/model_config.h"
#include "core/select/method.h"
#include "core/session/engine_setup.h"
#include "core/session/option_text.h"
#include "core/session/same_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <utility>

namespace kvscope {
namespace {

constexpr std::array<std::string_view, 8> kSweepOptions{"method",  "device-kv",      "cache-policy", "link",
                                                        "offload", "max-new-tokens", "temperature",  "seed"};

bool isSweepOption(const std::string& key) {
    return std::find(kSweepOptions.begin(), kSweepOptions.end(), key) != kSweepOptions.end();
}

bool isIn(const std::vector<std::string>& keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
}

/// All combinations, the last axis fastest. @throws Error(BadInput) for too many
std::vector<Settings> combinationsOf(const std::vector<SweepAxis>& axes) {
    double count = 1; // a product of many lengths exceeds whole numbers
    for (const SweepAxis& axis : axes) count *= double(axis.values.size());
    if (count > double(kMostSweepPoints))
        throw Error(ErrorKind::BadInput, fmt::format("the sweep has {:.6g} combinations", count),
                    fmt::format("leave out values until there are at most {}", kMostSweepPoints));
    std::vector<Settings> all{{}};
    for (const SweepAxis& axis : axes) {
        std::vector<Settings> more;
        for (const Settings& begun : all)
            for (const std::string& value : axis.values) {
                more.push_back(begun);
                more.back().emplace_back(axis.key, value);
            }
        all = std::move(more);
    }
    return all;
}

template <class Number> Number sweptNumber(const std::string& key, const std::string& text) {
    Number value{};
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size())
        throw Error(ErrorKind::BadInput, fmt::format("cannot read --sweep {}={}", key, text), "give a number");
    return value;
}

bool sweptSwitch(const std::string& key, const std::string& text) {
    if (text != "on" && text != "off")
        throw Error(ErrorKind::BadInput, fmt::format("cannot read --sweep {}={}", key, text), "give on or off");
    return text == "on";
}

void setSweptOption(SessionOptions& options, const std::string& key, const std::string& value) {
    if (key == "method") options.method = findMethod(value).name;
    if (key == "device-kv") parseDeviceKv(value, options);
    if (key == "cache-policy") options.cachePolicy = value;
    if (key == "link") options.link = Link::parse(value);
    if (key == "offload") options.offload = sweptSwitch(key, value);
    if (key == "max-new-tokens") options.maxNewTokens = sweptNumber<int>(key, value);
    if (key == "temperature") options.sampling.temperature = sweptNumber<double>(key, value);
    if (key == "seed") options.sampling.seed = sweptNumber<std::uint64_t>(key, value);
}

/// Whether two values of an axis make the same run.
bool sameValue(const ModelConfig& config, const std::string& key, const std::string& a, const std::string& b) {
    if (key == "link") return sameLink(a, b);
    if (key == "device-kv") {
        SessionOptions first, second;
        parseDeviceKv(a, first);
        parseDeviceKv(b, second);
        return first.deviceKvBlocks == second.deviceKvBlocks && first.deviceKvBytes == second.deviceKvBytes;
    }
    return isSweepOption(key) ? sameNumber(a, b) : sameSetting(config, key, a, b);
}

bool hasParameter(const MethodEntry& method, const ModelConfig& config, const std::string& key) {
    const auto& declared = parametersFor(method, config);
    return std::any_of(declared.begin(), declared.end(), [&](const Parameter& p) { return p.key == key; });
}

/// Makes the points of one sweep and keeps which keys some run has taken.
class SweepMaker {
public:
    SweepMaker(const SweepRequest& request, const ModelConfig& config) : request_(request), config_(config) {}

    SweepPoint point(const Settings& values) {
        SweepPoint made{{}, request_.base};
        for (const auto& [key, value] : values)
            if (isSweepOption(key)) setSweptOption(made.options, key, value);
        if (!made.options.offload) { // no block goes through a device tier
            made.options.deviceKvBlocks.reset();
            made.options.deviceKvBytes.reset();
            made.options.cachePolicy.clear();
        }
        const MethodEntry& method = findMethod(made.options.method);
        ParameterValues checked = resolveDefaults(method, config_);
        const auto take = [&](const std::string& key, const std::string& value) {
            checked.set(parametersFor(method, config_), key, value);
            made.options.settings.emplace_back(key, value);
            used_.insert(key);
        };
        for (const auto& [key, value] : request_.settings)
            if (hasParameter(method, config_, key)) take(key, value);
        for (const auto& [key, value] : values) {
            if (!hasEffect(method, made.options, key)) continue;
            if (!isSweepOption(key) && !isIn(request_.ofCaller, key)) take(key, value);
            made.varied.emplace_back(key, value);
            used_.insert(key);
        }
        return made;
    }

    /// @throws Error(BadInput) for the first axis or setting that none of the runs takes
    void refuseUnused(const SessionOptions& last) const {
        for (const SweepAxis& axis : request_.axes) {
            if (used_.contains(axis.key)) continue;
            if (const auto why = whyVain(last, axis.key)) throw Error(*why);
            refuse(fmt::format("none of the methods has a parameter '{}'", axis.key),
                   fmt::format("sweep a parameter (kvscope-cli methods lists them) or one of {}",
                               fmt::join(kSweepOptions, ", ")));
        }
        for (const auto& [key, value] : request_.settings)
            if (!used_.contains(key))
                refuse(fmt::format("none of the methods has a parameter '{}'", key), "kvscope-cli methods lists them");
    }

private:
    std::optional<Error> whyVain(const SessionOptions& options, const std::string& key) const {
        const RunChoices choices = choicesOf(options, config_.diffusion.has_value());
        return isSweepOption(key) ? vainOption("--" + key, choices) : vainSetting(key, choices);
    }
    bool hasEffect(const MethodEntry& method, const SessionOptions& options, const std::string& key) const {
        if (isIn(request_.ofCaller, key)) return true;
        if (!isSweepOption(key) && !hasParameter(method, config_, key)) return false;
        return !whyVain(options, key);
    }

    const SweepRequest& request_;
    const ModelConfig& config_;
    std::set<std::string> used_;
};

} // namespace

std::span<const std::string_view> sweepOptions() { return kSweepOptions; }

SweepAxis sweepAxis(const std::string& key, const std::string& values) {
    if (values.empty())
        throw Error(ErrorKind::BadInput, fmt::format("--sweep {} has no value", key), "write --sweep key=a,b,c");
    return {key == "k" ? "total_blocks" : key == "k_q" ? "select_blocks" : key, listedValues("--sweep", values)};
}

std::vector<SweepPoint> sweepPoints(const SweepRequest& request, const ModelConfig& config) {
    for (auto axis = request.axes.begin(); axis != request.axes.end(); ++axis) {
        if (std::any_of(request.axes.begin(), axis, [&](const SweepAxis& other) { return other.key == axis->key; }))
            throw Error(ErrorKind::BadInput, fmt::format("--sweep gives '{}' twice", axis->key),
                        "leave one of them out");
        refuseRepeated("--sweep " + axis->key, axis->values,
                       [&](const std::string& a, const std::string& b) { return sameValue(config, axis->key, a, b); });
    }
    SweepMaker maker(request, config);
    std::vector<SweepPoint> points;
    std::set<Settings> seen;
    for (const Settings& values : combinationsOf(request.axes)) {
        SweepPoint point = maker.point(values);
        if (seen.insert(point.varied).second) points.push_back(std::move(point));
    }
    maker.refuseUnused(points.back().options);
    return points;
}

bool hasDeviceTier(const Model& model, const SessionOptions& options) {
    const MethodEntry& method = findMethod(options.method);
    const SelectionSpec spec = methodSpec(method, methodParameters(method, model, options.settings), model);
    return options.offload && !spec.dense && !spec.ownDeviceTier;
}

void rehearseSession(const std::shared_ptr<const Model>& model, SessionOptions options, int promptTokens,
                     int sequences) {
    checkSessionOptions(options);
    const std::vector<std::vector<std::int32_t>> prompts(
        std::size_t(sequences), std::vector<std::int32_t>(std::size_t(std::max(1, promptTokens)), 0));
    checkPrompts(prompts, *model, options.maxNewTokens, options.maxNewTokens - 1);
    const MethodEntry& method = findMethod(options.method);
    const ParameterValues parameters = methodParameters(method, *model, options.settings);
    if (model->config().diffusion) return; // a session that denoises makes its plans with its memory
    const SelectionSpec spec = methodSpec(method, parameters, *model);
    engineSetup(model, prompts, options, method, parameters, spec, RecordLevel::Counters);
}

} // namespace kvscope
