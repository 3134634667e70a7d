// Who may ask: host names of requests and keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::server {

/// Whether a name or address, without a port, is this machine's own loopback.
bool isLoopback(std::string_view host);

/// Host headers that are answered: loopback, and names that were configured. A page of another site whose name resolves
/// to 127.0.0.1 sends its own name (DNS rebinding).
class HostCheck {
public:
    explicit HostCheck(std::vector<std::string> names) : names_(std::move(names)) {}
    /// header: a name or address, with or without a port.
    bool allows(std::string_view header) const;

private:
    std::vector<std::string> names_;
};

/// Keys of a file, one a line; lines that are empty or begin with # are none.
class ApiKeys {
public:
    ApiKeys() = default; // none are asked for
    /// @throws Error(BadInput) where the file cannot be read, has no key, or one with blanks in it
    explicit ApiKeys(const std::string& file);

    bool asked() const { return !keys_.empty(); }
    /// Of a header "Authorization: Bearer KEY". How long it takes says nothing about keys but their lengths.
    bool allows(const std::string* authorization) const;

private:
    std::vector<std::string> keys_;
};

} // namespace kvscope::server
