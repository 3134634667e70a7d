// Typed, checked access to one JSON object of a configuration; every complaint names the file and the key.
#pragma once

#include "base/error.h"
#include "base/json_reading.h"

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class ConfigReader {
public:
    /// The object outlives the reader. `origin` names the file, and the object within it, in errors. `converted`: the
    /// object was made from a GGUF file's metadata and says what no config.json does.
    ConfigReader(const nlohmann::json& object, std::string origin, bool converted = false)
        : object_(object), origin_(std::move(origin)), converted_(converted) {}

    [[noreturn]] void refuse(const std::string& what,
                             const std::string& hint = "check the checkpoint's config.json") const {
        throw Error(ErrorKind::BadInput, origin_ + ": " + what, hint);
    }
    /// Refuses something that the file states and this version cannot do. @throws Error(Unsupported)
    [[noreturn]] void refuseUnsupported(const std::string& what, const std::string& hint) const {
        throw Error(ErrorKind::Unsupported, origin_ + ": " + what, hint);
    }
    bool converted() const { return converted_; }
    /// Whether the object has the key, even with the value null.
    bool states(const char* key) const;
    /// Whether the object has the key with a value other than null.
    bool has(const char* key) const { return states(key) && !object_.at(key).is_null(); }
    /// Keys of the object for which no member function was called, ascending. Copies of a reader share this list.
    std::vector<std::string> unread() const;

    int integer(const char* key, int low, int high) const;
    int integerOr(const char* key, int fallback, int low, int high) const {
        return has(key) ? integer(key, low, high) : fallback;
    }
    double number(const char* key, double low, double high) const;
    double numberOr(const char* key, double fallback, double low, double high) const {
        return has(key) ? number(key, low, high) : fallback;
    }
    bool flag(const char* key) const;
    bool flagOr(const char* key, bool fallback) const { return has(key) ? flag(key) : fallback; }
    std::string text(const char* key) const;
    std::string textOr(const char* key, const std::string& fallback) const { return has(key) ? text(key) : fallback; }
    /// A list of exactly `count` numbers.
    std::vector<double> numbers(const char* key, std::size_t count, double low, double high) const;
    /// A list of texts; empty when absent.
    std::vector<std::string> texts(const char* key) const;
    ConfigReader object(const char* key) const;

    const nlohmann::json& json() const { return object_; }
    const std::string& origin() const { return origin_; }

private:
    const nlohmann::json& need(const char* key) const;

    const nlohmann::json& object_;
    std::string origin_;
    bool converted_ = false;
    std::shared_ptr<std::set<std::string, std::less<>>> asked_ = std::make_shared<std::set<std::string, std::less<>>>();
};

} // namespace kvscope
