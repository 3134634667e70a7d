#include "profiler/import/spill_file.h"

#include "base/error.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope {

SpillFile::~SpillFile() {
    if (descriptor_ >= 0) close(descriptor_);
}

void SpillFile::open(const std::string& folder) {
    folder_ = folder;
    std::string name = folder + "/kvscope-XXXXXX";
    descriptor_ = mkstemp(name.data());
    if (descriptor_ < 0)
        throw Error(ErrorKind::Storage,
                    fmt::format("no temporary file can be made in {}: {}", folder, std::strerror(errno)),
                    "choose a folder you may write to");
    unlink(name.c_str());
}

void SpillFile::append(const void* bytes, std::size_t count) {
    const auto* at = static_cast<const char*>(bytes);
    while (count > 0) {
        const ssize_t written = write(descriptor_, at, count);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0)
            throw Error(ErrorKind::Storage,
                        fmt::format("a temporary file needs more space in {}: {}", folder_, std::strerror(errno)),
                        "free some space on that disk");
        at += written;
        count -= std::size_t(written);
    }
}

void SpillFile::read(void* bytes, std::size_t count, std::int64_t from) const {
    auto* at = static_cast<char*>(bytes);
    while (count > 0) {
        const ssize_t got = pread(descriptor_, at, count, from);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            throw Error(ErrorKind::Storage,
                        fmt::format("reading back a temporary file in {} failed: {}", folder_,
                                    got < 0 ? std::strerror(errno) : "the file is short"),
                        "check the disk");
        at += got;
        from += got;
        count -= std::size_t(got);
    }
}

} // namespace kvscope
