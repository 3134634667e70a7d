// One component's part of tokenizer.json, with the sentences for what is wrong in it.
#pragma once

#include "base/error.h"
#include "base/json_reading.h"

#include <string>

namespace kvscope::tokenizing {

using Json = nlohmann::json;

[[noreturn]] void refuseMalformed(const std::string& origin, const std::string& what);
[[noreturn]] void refuseUnsupported(const std::string& origin, const std::string& what);

/// Borrows both; lives while a file is read.
class Spec {
public:
    Spec(const Json& json, const std::string& origin) : json_(json), origin_(origin) {}

    const Json& json() const { return json_; }
    const std::string& origin() const { return origin_; }
    const Json& at(const char* key) const { return member(json_, key); }
    Spec part(const Json& json) const { return {json, origin_}; }
    /// The component's "type". @throws Error when there is none
    std::string type() const {
        if (!at("type").is_string()) malformed("a component has no type");
        return at("type").get<std::string>();
    }
    std::string text(const char* key) const {
        if (!at(key).is_string()) malformed(std::string("'") + key + "' is not text");
        return at(key).get<std::string>();
    }
    /// Absent and null mean the fallback.
    bool flag(const char* key, bool fallback) const {
        const Json& value = at(key);
        if (value.is_null()) return fallback;
        if (!value.is_boolean()) malformed(std::string("'") + key + "' is neither true nor false");
        return value.get<bool>();
    }
    [[noreturn]] void malformed(const std::string& what) const { refuseMalformed(origin_, what); }
    [[noreturn]] void unsupported(const std::string& what) const { refuseUnsupported(origin_, what); }

private:
    const Json& json_;
    const std::string& origin_;
};

} // namespace kvscope::tokenizing
