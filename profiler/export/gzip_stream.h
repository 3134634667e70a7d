// Packs what is written to it: Perfetto, pandas and most tools read gzip as they read the plain file, and a timeline
// shrinks to a tenth.
#pragma once

#include <memory>
#include <streambuf>
#include <vector>

namespace kvscope {

class GzipStream final : public std::streambuf {
public:
    /// Whether this program was built with zlib.
    static bool isAvailable();

    /// Writes into `out`, which outlives it. @throws Error(Unsupported | OutOfMemory)
    explicit GzipStream(std::streambuf& out);
    ~GzipStream() override;
    GzipStream(const GzipStream&) = delete;
    GzipStream& operator=(const GzipStream&) = delete;

    /// Writes what is left; nothing can be added after it. @return false: `out` took no more
    bool finish();

protected:
    int_type overflow(int_type byte) override;

private:
    struct Packer;
    bool pack(bool last);
    std::streambuf& out_;
    std::unique_ptr<Packer> packer_;
    std::vector<char> waiting_, packed_;
};

} // namespace kvscope
