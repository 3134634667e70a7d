#include "app/server/access.h"

#include "base/error.h"
#include "base/text_file.h"

#include <algorithm>
#include <fmt/format.h>
#include <sstream>

namespace kvscope::server {
namespace {

std::string small(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    return out;
}

bool equal(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    unsigned difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        difference |= unsigned(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]));
    return difference == 0;
}

bool isNumber(std::string_view text, int most) {
    if (text.empty() || text.size() > 5) return false;
    int value = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return false;
        value = value * 10 + (c - '0');
    }
    return value <= most;
}

} // namespace

bool isLoopback(std::string_view host) {
    if (small(host) == "localhost" || host == "::1" || host == "[::1]") return true;
    if (host.substr(0, 4) != "127.") return false;
    host.remove_prefix(4);
    for (int part = 0; part < 3; ++part) {
        const std::size_t dot = part < 2 ? host.find('.') : host.size();
        if (dot == std::string_view::npos || !isNumber(host.substr(0, dot), 255)) return false;
        host.remove_prefix(std::min(dot + 1, host.size()));
    }
    return true;
}

bool HostCheck::allows(std::string_view header) const {
    std::string_view host = header;
    const std::size_t colon = host.rfind(':');
    if (colon != std::string_view::npos && (host.empty() || host.back() != ']')) {
        if (!isNumber(host.substr(colon + 1), 65535)) return false;
        host = host.substr(0, colon);
    }
    const std::string name = small(host);
    return isLoopback(name) ||
           std::any_of(names_.begin(), names_.end(), [&](const std::string& known) { return small(known) == name; });
}

ApiKeys::ApiKeys(const std::string& file) {
    constexpr std::size_t kLongest = std::size_t(16) << 20; // bytes
    std::istringstream in(readTextFile(file, "the file of keys", kLongest));
    for (std::string line; std::getline(in, line);) {
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (line.empty() || line.front() == '#') continue;
        if (std::any_of(line.begin(), line.end(), [](char c) { return c <= ' ' || c >= 0x7F; }))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} has a key with blanks or characters that are not ASCII", file),
                        "write one key a line");
        keys_.push_back(line);
    }
    if (keys_.empty()) throw Error(ErrorKind::BadInput, fmt::format("{} has no key", file), "write one key a line");
}

bool ApiKeys::allows(const std::string* authorization) const {
    constexpr std::string_view kScheme = "bearer ";
    if (authorization == nullptr || small(std::string_view(*authorization).substr(0, kScheme.size())) != kScheme)
        return false;
    const std::string_view given = std::string_view(*authorization).substr(kScheme.size());
    bool allowed = false;
    for (const std::string& key : keys_) allowed |= equal(key, given);
    return allowed;
}

} // namespace kvscope::server
