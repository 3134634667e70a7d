#include "profiler/export/gzip_stream.h"

#include "base/error.h"

#ifdef KVSCOPE_ZLIB
#include <zlib.h>
#endif

namespace kvscope {

namespace {
constexpr std::size_t kBufferBytes = 1 << 18;
}

#ifdef KVSCOPE_ZLIB

struct GzipStream::Packer {
    Packer() {
        constexpr int kGzipHeader = 16;
        // The fastest: JSON shrinks to a tenth all the same, and the disk is no longer what is waited for.
        if (deflateInit2(&state, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + kGzipHeader, 8, Z_DEFAULT_STRATEGY) != Z_OK)
            throw Error(ErrorKind::OutOfMemory, "there is no memory to compress with", "choose a name without .gz");
    }
    ~Packer() { deflateEnd(&state); }
    z_stream state{};
};

bool GzipStream::isAvailable() { return true; }

bool GzipStream::pack(bool last) {
    z_stream& state = packer_->state;
    state.next_in = reinterpret_cast<Bytef*>(waiting_.data());
    state.avail_in = uInt(pptr() - pbase());
    do {
        state.next_out = reinterpret_cast<Bytef*>(packed_.data());
        state.avail_out = uInt(packed_.size());
        if (deflate(&state, last ? Z_FINISH : Z_NO_FLUSH) == Z_STREAM_ERROR) return false;
        const auto made = std::streamsize(packed_.size() - state.avail_out);
        if (out_.sputn(packed_.data(), made) != made) return false;
    } while (state.avail_out == 0);
    setp(waiting_.data(), waiting_.data() + waiting_.size());
    return true;
}

#else

struct GzipStream::Packer {
    Packer() {
        throw Error(ErrorKind::Unsupported, "this program was built without zlib and cannot compress",
                    "choose a name without .gz");
    }
};

bool GzipStream::isAvailable() { return false; }

bool GzipStream::pack(bool) { return false; }

#endif

GzipStream::GzipStream(std::streambuf& out)
    : out_(out), packer_(std::make_unique<Packer>()), waiting_(kBufferBytes), packed_(kBufferBytes) {
    setp(waiting_.data(), waiting_.data() + waiting_.size());
}

GzipStream::~GzipStream() = default;

bool GzipStream::finish() {
    const bool good = pack(true);
    setp(nullptr, nullptr);
    return good;
}

GzipStream::int_type GzipStream::overflow(int_type byte) {
    if (pbase() == nullptr || !pack(false)) return traits_type::eof();
    if (!traits_type::eq_int_type(byte, traits_type::eof())) sputc(traits_type::to_char_type(byte));
    return traits_type::not_eof(byte);
}

} // namespace kvscope
