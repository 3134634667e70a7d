// Handles of the C interface: numbers that hold their kind, their process and a serial number. Also the border of every
// function of the interface, which lets no exception leave the library and keeps the sentence of a failure.
#pragma once

#include "sdk/trace/kvscope_trace.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvscope::sdk {

enum class Kind : std::uint8_t { Writer = 1, Run = 2, Step = 3, Table = 4 };

/// What a function of the interface throws to fail with a status and a sentence.
struct Refusal : std::runtime_error {
    Refusal(int code, const std::string& sentence) : std::runtime_error(sentence), status(code) {}
    int status;
};
template <class... Parts> [[noreturn]] void refuse(int status, const Parts&... parts) {
    std::string sentence;
    ((sentence += parts), ...);
    throw Refusal(status, sentence);
}

/// The object that a handle stands for.
class Object {
public:
    virtual ~Object() = default;
    /// Called before this process forks. From its return until resume() no thread of the object holds a lock or writes.
    virtual void settle() {}
    /// Called in the parent after the fork.
    virtual void resume() {}
    /// Path of the file that the object writes; empty: none.
    virtual const std::string& writes() const;
};

/// Puts the object into the table of handles, which shares it until `release`. @return its handle
std::uint64_t give(Kind kind, std::shared_ptr<Object> object);
/// The object of a handle. @throws Refusal: the handle is of another kind, closed, or of the process that forked this
/// one
std::shared_ptr<Object> find(Kind kind, std::uint64_t handle);
/// Takes the object out of the table, which closes the handle. @throws Refusal as find
std::shared_ptr<Object> release(Kind kind, std::uint64_t handle);
/// Closes the handle if it is open, without a failure.
void drop(std::uint64_t handle) noexcept;
/// Refuses a file that the process that forked this one was writing. @throws Refusal
void refuseInherited(const std::string& path);

void remember(const char* sentence) noexcept;
/// Remembers the sentence of the exception that is being handled. @return the status that it means
int32_t failed() noexcept;

/// Runs the body of a function of the interface, and turns an exception into a status.
template <class Body> int32_t atBorder(const Body& body) noexcept {
    try {
        body();
        return KVTRACE_OK;
    } catch (...) {
        return failed();
    }
}

} // namespace kvscope::sdk
