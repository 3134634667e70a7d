// Handles of the C interface: numbers that say their kind, their process and which object; and what every function does
// at the border: no exception leaves the library, and a failure leaves a sentence.
#pragma once

#include "sdk/trace/kvscope_trace.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvscope::sdk {

enum class Kind : std::uint8_t { Writer = 1, Run = 2, Step = 3, Table = 4 };

/// What a function of the interface fails with.
struct Refusal : std::runtime_error {
    Refusal(int code, const std::string& sentence) : std::runtime_error(sentence), status(code) {}
    int status;
};
template <class... Parts> [[noreturn]] void refuse(int status, const Parts&... parts) {
    std::string sentence;
    ((sentence += parts), ...);
    throw Refusal(status, sentence);
}

/// What a handle stands for.
class Object {
public:
    virtual ~Object() = default;
    /// Before this process forks: nothing of the object is in the middle of something when this returns.
    virtual void settle() {}
    /// The file that the object writes; empty: none.
    virtual const std::string& writes() const;
};

/// @return the handle; the table of handles shares the object until `release`.
std::uint64_t give(Kind kind, std::shared_ptr<Object> object);
/// @throws Refusal: of another kind, closed, of the process that forked this one
std::shared_ptr<Object> find(Kind kind, std::uint64_t handle);
/// Closes the handle. @throws Refusal as find
std::shared_ptr<Object> release(Kind kind, std::uint64_t handle);
/// Closes the handle if it is open.
void drop(std::uint64_t handle) noexcept;
/// @throws Refusal if the process that forked this one was writing the file
void refuseInherited(const std::string& path);

void remember(const char* sentence) noexcept;
/// The status that the exception now being handled means; its sentence is remembered.
int32_t failed() noexcept;

/// Runs the body of a function of the interface.
template <class Body> int32_t atBorder(const Body& body) noexcept {
    try {
        body();
        return KVTRACE_OK;
    } catch (...) {
        return failed();
    }
}

} // namespace kvscope::sdk
