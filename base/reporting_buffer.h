// A file buffer that remembers why writing failed.
#pragma once

#include <cerrno>
#include <cstring>
#include <fstream>
#include <ios>
#include <string>

namespace kvscope {

/// Keeps errno of the first write that failed: until somebody asks the stream, later calls of the system may have
/// changed errno.
class ReportingBuffer final : public std::filebuf {
public:
    /// errno of the first write that failed; 0: none did.
    int error() const { return error_; }
    /// The reason as half a sentence for a message, to be asked for when the stream has failed.
    std::string reason() const { return error_ != 0 ? std::strerror(error_) : "the system does not say why"; }

protected:
    int_type overflow(int_type c) override {
        errno = 0;
        const int_type result = std::filebuf::overflow(c);
        if (traits_type::eq_int_type(result, traits_type::eof())) note();
        return result;
    }
    std::streamsize xsputn(const char* text, std::streamsize count) override {
        errno = 0;
        const std::streamsize written = std::filebuf::xsputn(text, count);
        if (written != count) note();
        return written;
    }
    int sync() override {
        errno = 0;
        const int result = std::filebuf::sync();
        if (result != 0) note();
        return result;
    }

private:
    void note() {
        if (error_ == 0) error_ = errno;
    }
    int error_ = 0;
};

} // namespace kvscope
