#include "app/terminal/output.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <system_error>
#include <unistd.h>

namespace kvscope {
namespace {

constexpr int kClosedPipe = 128 + SIGPIPE;

int firstFailure = 0; // errno of the first write to standard output that failed

bool isTerminal(int descriptor) {
    static const bool terminals[] = {false, isatty(STDOUT_FILENO) != 0, isatty(STDERR_FILENO) != 0};
    return terminals[descriptor];
}

/// Length of the character that begins here, 0 if it is malformed, and its number.
std::size_t decode(std::string_view text, std::uint32_t& character) {
    const auto byte = [&](std::size_t i) { return std::uint32_t(static_cast<unsigned char>(text[i])); };
    const std::uint32_t first = byte(0);
    character = first;
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xf0 && first < 0xf5   ? 4
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xc2 && first < 0xe0 ? 2
                                                               : 0;
    if (length == 0 || text.size() < length) return 0;
    character = first & (0xffu >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
        character = character << 6 | (byte(i) & 0x3f);
    }
    constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = character >= 0xd800 && character < 0xe000;
    return character < least[length] || character > 0x10ffff || surrogate ? 0 : length;
}

/// Whether a terminal obeys the character instead of showing it.
bool isObeyed(std::uint32_t c) {
    const bool control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
    const bool direction =
        c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    return control || direction || c == 0x2028 || c == 0x2029; // the last two: line and paragraph separator
}

/// What helps where standard output takes no more text.
std::string_view mendOf(int error) {
    switch (error) {
    case ENOSPC:
        return "free some space on the disk it goes to";
    case EFBIG:
        return "raise the limit of a file's size (ulimit -f)";
    case EBADF:
        return "it is closed or may only be read: send it to a terminal, a file or a program";
    default:
        return "send it somewhere else";
    }
}

void write(std::FILE* stream, int descriptor, std::string_view text) {
    if (!isTerminal(descriptor)) {
        std::fwrite(text.data(), 1, text.size(), stream);
        return;
    }
    const std::string shown = shownSafely(text);
    std::fwrite(shown.data(), 1, shown.size(), stream);
}

} // namespace

void prepareOutput() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
        if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF)
            (void)!open("/dev/null", descriptor == STDIN_FILENO ? O_RDONLY : O_RDONLY | O_CLOEXEC); // so writes fail
}

std::string shownSafely(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    while (!text.empty()) {
        std::uint32_t character = 0;
        const std::size_t length = decode(text, character);
        if (length == 0)
            fmt::format_to(std::back_inserter(shown), "\\x{:02x}", unsigned(static_cast<unsigned char>(text.front())));
        else if (isObeyed(character))
            fmt::format_to(std::back_inserter(shown), "\\u{:04x}", character);
        else
            shown += text.substr(0, length);
        text.remove_prefix(length == 0 ? 1 : length);
    }
    return shown;
}

void writeOut(std::string_view text) noexcept {
    if (firstFailure != 0) return;
    try {
        errno = 0;
        write(stdout, STDOUT_FILENO, text);
        if (std::ferror(stdout) != 0) noteOutputFailure(errno);
    } catch (const std::exception&) {
        noteOutputFailure(ENOMEM);
    }
}

void writeErr(std::string_view text) noexcept {
    try {
        write(stderr, STDERR_FILENO, text);
    } catch (const std::exception&) {
        // There is nobody to tell.
    }
}

void writeErrAsIs(std::string_view text) noexcept {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
}

std::string sentenceOf(const std::exception& failure) {
    const auto* refused = dynamic_cast<const std::system_error*>(&failure);
    if (refused != nullptr && refused->code() == std::errc::resource_unavailable_try_again)
        return std::string(kNoThreads);
    return failure.what();
}

int outputFailure() noexcept {
    if (firstFailure == 0) {
        errno = 0;
        if (std::fflush(stdout) != 0) noteOutputFailure(errno);
    }
    return firstFailure;
}

void noteOutputFailure(int error) noexcept {
    if (firstFailure == 0) firstFailure = error != 0 ? error : EIO;
}

OutStream::Buffer::int_type OutStream::Buffer::overflow(int_type c) {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
}

std::streamsize OutStream::Buffer::xsputn(const char* text, std::streamsize count) {
    writeOut({text, std::size_t(count)});
    return firstFailure == 0 ? count : 0;
}

int OutStream::Buffer::sync() { return outputFailure() == 0 ? 0 : -1; }

int statusAfterOutput(int status, std::string_view program, std::string_view remark) {
    const int error = outputFailure();
    if (error == 0) return status;
    if (error != EPIPE || !remark.empty())
        printErr("{}: standard output lacks text: {}; {}\n", program, std::strerror(error),
                 remark.empty() ? mendOf(error) : remark);
    return error == EPIPE ? kClosedPipe : 1;
}

} // namespace kvscope
