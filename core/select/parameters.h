// Parameters of a method, declared once: the session form, the command line, `methods --json` and docs/methods.md are
// made from these declarations.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

struct SparseConfig; // core/model/model_config.h

/// In which sessions a parameter changes something.
enum class ParameterScope : std::uint8_t {
    EveryRun,
    Offloading, // where blocks leave the device
    DeviceSlots // where blocks leave the device, and the session's options do not size the device tier
};

enum class ParameterType { Integer, Number, Boolean, Choice };
constexpr const char* nameOf(ParameterType type) {
    constexpr const char* names[] = {"integer", "number", "boolean", "choice"};
    return names[int(type)];
}

struct Parameter {
    std::string key;
    ParameterType type = ParameterType::Integer;
    std::string defaultValue;         // as text; a checkpoint's configuration may override it (see scale)
    double min = 0, max = 0;          // Integer and Number
    std::string unit;                 // "blocks", "tokens", "" ...
    std::string help;                 // one sentence
    std::vector<std::string> choices; // Choice
    /// The default for a checkpoint that was trained with sparse attention, as text, so that budgets keep the
    /// proportions with which it was trained; a result of nothing: the declared default. Null: always the declared
    /// default.
    std::optional<std::string> (*scale)(const SparseConfig&) = nullptr;
    ParameterScope scope = ParameterScope::EveryRun;

    Parameter within(ParameterScope where) const {
        Parameter changed = *this;
        changed.scope = where;
        return changed;
    }
    Parameter withScale(std::optional<std::string> (*scaled)(const SparseConfig&)) const {
        Parameter changed = *this;
        changed.scale = scaled;
        return changed;
    }
};

/// The choice of a parameter under which a method chooses by the model's Forecast heads, and the one without them.
struct ForecastSetting {
    std::string key, with, without;
};

/// Values by key, always as checked text. Missing keys mean the declared default.
class ParameterValues {
public:
    /// @throws Error(BadInput) naming the method, the key and the allowed range or names
    void set(const std::vector<Parameter>& declared, std::string_view key, std::string_view value);
    int integer(std::string_view key) const;
    double number(std::string_view key) const;
    bool boolean(std::string_view key) const;
    const std::string& text(std::string_view key) const;
    bool has(std::string_view key) const { return values_.find(std::string(key)) != values_.end(); }
    const std::map<std::string, std::string>& all() const { return values_; }
    void assign(std::string key, std::string value) { values_[std::move(key)] = std::move(value); }
    /// One JSON object with numbers and booleans as such.
    std::string toJson(const std::vector<Parameter>& declared) const;

private:
    std::map<std::string, std::string> values_;
};

} // namespace kvscope
