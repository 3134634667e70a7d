// Who may send requests: the Host header and the keys of a request decide.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::server {

/// Whether a name or address, without a port, is this machine's own loopback.
bool isLoopback(std::string_view host);

/// Which Host headers are answered: loopback names, and names from the options. With DNS rebinding another site's page
/// reaches 127.0.0.1 under the site's own name, and is refused here.
class HostCheck {
public:
    explicit HostCheck(std::vector<std::string> names) : names_(std::move(names)) {}
    /// header: a name or an address, with or without a port.
    bool allows(std::string_view header) const;

private:
    std::vector<std::string> names_;
};

/// Keys from a file, one a line. Lines that are empty or begin with # hold no key.
class ApiKeys {
public:
    ApiKeys() = default; // none are asked for
    /// @throws Error(BadInput) where the file cannot be read, or has no key, or has a key with blanks in it
    explicit ApiKeys(const std::string& file);

    bool asked() const { return !keys_.empty(); }
    /// Whether the header is "Authorization: Bearer KEY" with one of the keys. The time that the comparison takes says
    /// nothing about the keys but their lengths.
    bool allows(const std::string* authorization) const;

private:
    std::vector<std::string> keys_;
};

} // namespace kvscope::server
