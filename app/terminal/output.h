// What the programs say on standard output and standard error. Printing never throws and never ends the program: what
// could not be written is remembered, and the exit status says so.
#pragma once

#include <exception>
#include <fmt/format.h>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>

namespace kvscope {

/// Call it first in main. A closed pipe or a file at its largest size then gives an error instead of a signal, and
/// files that are opened later never take the place of a standard stream that is closed.
void prepareOutput();

/// The text as a terminal may have it. Characters that a terminal obeys instead of showing them are written as \u001b:
/// C0 but newline and tab, DEL, C1, and those that turn the direction of text; a byte that is no UTF-8 as \x9b.
std::string shownSafely(std::string_view text);

/// Writes to standard output: as shownSafely() where that is a terminal, else byte for byte. After the first failure
/// nothing more is written.
void writeOut(std::string_view text) noexcept;
/// Writes to standard error. Failures are ignored.
void writeErr(std::string_view text) noexcept;
/// Writes to standard error without shownSafely(): for text that moves the cursor and holds nothing from a file.
void writeErrAsIs(std::string_view text) noexcept;

template <class... Values> void printOut(fmt::format_string<Values...> format, Values&&... values) {
    writeOut(fmt::format(format, std::forward<Values>(values)...));
}
template <class... Values> void printErr(fmt::format_string<Values...> format, Values&&... values) {
    writeErr(fmt::format(format, std::forward<Values>(values)...));
}

/// writeOut as a stream, which fails once that has failed. What is written at once must be whole characters.
class OutStream final : public std::ostream {
public:
    OutStream() : std::ostream(nullptr) { rdbuf(&buffer_); }

private:
    class Buffer final : public std::streambuf {
        int_type overflow(int_type c) override;
        std::streamsize xsputn(const char* text, std::streamsize count) override;
        int sync() override;
    };
    Buffer buffer_;
};

/// Hands everything to the system. @return 0, or the errno of the first write to standard output that failed
int outputFailure() noexcept;
/// Other code wrote to standard output and failed: the exit status will say so.
void noteOutputFailure(int error) noexcept;

/// The message where the system starts no more threads.
inline constexpr std::string_view kNoThreads =
    "the system starts no more threads for this program; close other programs, or raise the limits of memory and "
    "processes (ulimit -v, ulimit -u)";
/// The message of an exception for a person: kNoThreads where the system refused to start a thread, else its own text.
std::string sentenceOf(const std::exception& failure);

/// The exit status of a program that would end with `status`. If standard output lacks text, it is 141, as a shell
/// reports SIGPIPE, when the reader has closed it, and else 1; standard error says so.
/// @param program the name that begins the sentence
/// @param remark what succeeded nevertheless, such as "the recording went on to its end"; empty: nothing, and a reader
/// that closed the output early is then not reported
int statusAfterOutput(int status, std::string_view program, std::string_view remark = {});

} // namespace kvscope
