// The one exception type of the libraries, and the value a person is told.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace kvscope {

enum class ErrorKind { BadInput, OutOfMemory, Device, Storage, Unsupported, Cancelled };

/// Thrown by the libraries. Message: what failed, on which object, why; `hint` says how to mend it. No full stops.
class Error : public std::runtime_error {
public:
    Error(ErrorKind errorKind, const std::string& message, std::string mend = {})
        : std::runtime_error(message), kind(errorKind), hint(std::move(mend)) {}

    /// Adds the outer step while unwinding: catch (Error& e) { e.during("opening " + name); throw; }
    void during(std::string step) { steps.push_back(std::move(step)); }

    const ErrorKind kind;
    std::string hint;
    std::vector<std::string> steps; // innermost first
};

/// One line for stderr or a dialog: "loading X: message; hint".
std::string oneLine(const Error& error);

} // namespace kvscope
