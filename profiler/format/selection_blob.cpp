#include "profiler/format/selection_blob.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace kvscope {
namespace {

// Format byte: bit 0 ids, bits 1-2 origins, bits 3-4 hits, bit 5 scores; bits 6-7 are zero.
enum class Ids : std::uint8_t { Gaps = 0, Bitset = 1 };
enum class Origins : std::uint8_t { TwoBits = 0, ThreeBits = 1, Runs = 2 };
enum class Hits : std::uint8_t { All = 0, None = 1, Bits = 2 };
constexpr unsigned kOriginShift = 1, kHitShift = 3, kScoreBit = 1u << 5, kReserved = 0xC0;
constexpr std::uint64_t kMaxCount = std::uint64_t(1) << 24; // more blocks than any context has

int varintBytes(std::uint64_t value) { return value < 0x80 ? 1 : (std::bit_width(value) + 6) / 7; }

/// Writes into memory that is large enough; growing a vector byte by byte costs more than the encoding.
class Writer {
public:
    explicit Writer(std::byte* out) : out_(out) {}
    void byte(unsigned value) { *out_++ = std::byte(value & 0xff); }
    void varint(std::uint64_t value) {
        for (; value >= 0x80; value >>= 7) byte(unsigned(value & 0x7f) | 0x80u);
        byte(unsigned(value));
    }
    /// What `valueOf` gives for each block, in a fixed width, the first in the lowest bits of the first byte.
    template <class ValueOf> void bits(std::span<const PackedBlock> blocks, int width, ValueOf valueOf) {
        unsigned held = 0;
        int count = 0;
        for (const PackedBlock block : blocks) {
            held |= unsigned(valueOf(block)) << count;
            for (count += width; count >= 8; count -= 8, held >>= 8) byte(held);
        }
        if (count > 0) byte(held);
    }
    std::byte* take(std::size_t count) { return std::exchange(out_, out_ + count); }
    const std::byte* end() const { return out_; }

private:
    std::byte* out_;
};

class Cursor {
public:
    explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
    bool atEnd() const { return at_ == bytes_.size(); }
    std::size_t left() const { return bytes_.size() - at_; }
    bool varint(std::uint64_t& value) {
        value = 0;
        for (int shift = 0; shift < 63; shift += 7) {
            if (atEnd()) return false;
            const auto byte = std::uint64_t(bytes_[at_++]);
            value |= (byte & 0x7f) << shift;
            if (byte < 0x80) return true;
        }
        return false;
    }
    bool take(std::size_t count, std::span<const std::byte>& taken) {
        if (count > left()) return false;
        taken = bytes_.subspan(at_, count);
        at_ += count;
        return true;
    }

private:
    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
};

/// Reads values of a fixed width in order, as Writer::bits writes them.
class Bits {
public:
    Bits(std::span<const std::byte> bytes, int width) : bytes_(bytes), width_(width), mask_((1u << width) - 1) {}
    unsigned next() {
        if (count_ < width_) held_ |= unsigned(bytes_[at_++]) << count_, count_ += 8;
        const unsigned value = held_ & mask_;
        held_ >>= width_;
        count_ -= width_;
        return value;
    }

private:
    std::span<const std::byte> bytes_;
    int width_, count_ = 0;
    unsigned mask_, held_ = 0;
    std::size_t at_ = 0;
};

/// Makes `blocks` blocks with the ids, of the first origin and without a hit.
bool decodeIds(Ids format, std::uint64_t count, Cursor& cursor, std::vector<PackedBlock>& blocks) {
    constexpr std::int64_t limit = PackedBlock::kMaxId;
    blocks.clear();
    if (count == 0) return format == Ids::Gaps;
    std::uint64_t value = 0;
    if (format == Ids::Gaps) {
        if (count > cursor.left()) return false; // a gap takes at least one byte: refuse before allocating
        blocks.reserve(std::size_t(count));
        std::int64_t id = -1;
        for (std::uint64_t i = 0; i < count; ++i) {
            if (!cursor.varint(value) || value > std::uint64_t(limit)) return false;
            id += std::int64_t(value) + 1;
            if (id > limit) return false;
            blocks.emplace_back(std::int32_t(id), Origin{}, false);
        }
        return true;
    }
    std::uint64_t base = 0, length = 0;
    std::span<const std::byte> bits;
    if (!cursor.varint(base) || !cursor.varint(length) || !cursor.take(std::size_t(length), bits)) return false;
    if (base > std::uint64_t(limit) || base + length * 8 > std::uint64_t(limit) + 8) return false;
    if (count > length * 8) return false;
    blocks.reserve(std::size_t(count));
    for (std::size_t byte = 0; byte < bits.size(); ++byte)
        for (unsigned rest = unsigned(bits[byte]); rest != 0; rest &= rest - 1) {
            const std::uint64_t id = base + byte * 8 + unsigned(std::countr_zero(rest));
            if (id > std::uint64_t(limit)) return false;
            blocks.emplace_back(std::int32_t(id), Origin{}, false);
        }
    return blocks.size() == count;
}

bool decodeOrigins(Origins format, Cursor& cursor, std::span<PackedBlock> blocks) {
    constexpr unsigned last = unsigned(Origin::TokenLevel);
    if (format == Origins::Runs) {
        std::uint64_t value = 0;
        while (!blocks.empty()) {
            if (!cursor.varint(value)) return false;
            const std::uint64_t length = (value >> 3) + 1;
            if ((value & 7) > last || length > blocks.size()) return false;
            for (PackedBlock& block : blocks.first(std::size_t(length)))
                block = PackedBlock(block.id(), Origin(value & 7), false);
            blocks = blocks.subspan(std::size_t(length));
        }
        return true;
    }
    const std::size_t width = format == Origins::TwoBits ? 2 : 3;
    std::span<const std::byte> bytes;
    if (!cursor.take((blocks.size() * width + 7) / 8, bytes)) return false;
    Bits bits(bytes, int(width));
    for (PackedBlock& block : blocks) {
        const unsigned origin = bits.next();
        if (origin > last) return false;
        block = PackedBlock(block.id(), Origin(origin), false);
    }
    return true;
}

bool decodeHits(Hits format, Cursor& cursor, std::span<PackedBlock> blocks) {
    if (format == Hits::None) return true;
    std::span<const std::byte> bytes;
    if (format == Hits::Bits && !cursor.take((blocks.size() + 7) / 8, bytes)) return false;
    Bits bits(bytes, 1);
    for (PackedBlock& block : blocks) block = block.withHit(format == Hits::All || bits.next() != 0);
    return true;
}

} // namespace

bool encodeSelection(const SelectionView& selection, std::vector<std::byte>& bytes) {
    bytes.clear();
    const std::size_t count = selection.blocks.size();
    if (count > kMaxCount) return false;
    if (!selection.scores.empty() && selection.scores.size() != count) return false;

    std::size_t gapBytes = 0, runBytes = 0, runLength = 0, hits = 0;
    unsigned highest = 0;
    std::int64_t previous = -1;
    for (std::size_t i = 0; i < count; ++i) {
        const PackedBlock block = selection.blocks[i];
        const std::int64_t id = block.id();
        if (id <= previous) return false;
        gapBytes += std::size_t(varintBytes(std::uint64_t(id - previous - 1)));
        previous = id;
        const auto origin = unsigned(block.origin());
        if (origin > unsigned(Origin::TokenLevel)) return false;
        highest = std::max(highest, origin);
        ++runLength;
        if (i + 1 == count || selection.blocks[i + 1].origin() != block.origin()) {
            runBytes += std::size_t(varintBytes((runLength - 1) << 3 | origin));
            runLength = 0;
        }
        hits += block.hit() ? 1U : 0U;
    }

    Ids ids = Ids::Gaps;
    std::uint64_t base = 0, length = 0;
    if (count > 0) {
        base = std::uint64_t(selection.blocks.front().id());
        length = (std::uint64_t(selection.blocks.back().id()) - base) / 8 + 1;
        if (std::size_t(varintBytes(base)) + std::size_t(varintBytes(length)) + length < gapBytes) ids = Ids::Bitset;
    }
    const std::size_t width = highest < 4 ? 2 : 3;
    const Origins origins = runBytes < (count * width + 7) / 8 ? Origins::Runs
                            : width == 2                       ? Origins::TwoBits
                                                               : Origins::ThreeBits;
    const Hits hitFormat = hits == count ? Hits::All : hits == 0 ? Hits::None : Hits::Bits;
    const std::size_t idBytes = std::max(gapBytes, std::size_t(ids == Ids::Bitset ? length + 20 : 0));
    bytes.resize(1 + 10 + idBytes + std::max(runBytes, count) + count / 8 + 1 + selection.scores.size_bytes());
    Writer writer(bytes.data());
    writer.byte(unsigned(ids) | unsigned(origins) << kOriginShift | unsigned(hitFormat) << kHitShift |
                (selection.scores.empty() ? 0u : kScoreBit));
    writer.varint(count);

    if (ids == Ids::Gaps) {
        previous = -1;
        for (const PackedBlock block : selection.blocks) {
            writer.varint(std::uint64_t(block.id() - previous - 1));
            previous = block.id();
        }
    } else {
        writer.varint(base);
        writer.varint(length);
        std::byte* bits = writer.take(std::size_t(length));
        std::memset(bits, 0, std::size_t(length));
        for (const PackedBlock block : selection.blocks) {
            const std::uint64_t bit = std::uint64_t(block.id()) - base;
            bits[bit / 8] |= std::byte(1u << (bit % 8));
        }
    }
    if (origins == Origins::Runs) {
        for (std::size_t i = 0; i < count;) {
            std::size_t end = i + 1;
            const Origin origin = selection.blocks[i].origin();
            while (end < count && selection.blocks[end].origin() == origin) ++end;
            writer.varint((end - i - 1) << 3 | unsigned(origin));
            i = end;
        }
    } else {
        writer.bits(selection.blocks, int(width), [](PackedBlock block) { return block.origin(); });
    }
    if (hitFormat == Hits::Bits) writer.bits(selection.blocks, 1, [](PackedBlock block) { return block.hit(); });
    static_assert(std::endian::native == std::endian::little, "scores are stored little-endian");
    if (!selection.scores.empty())
        std::memcpy(writer.take(selection.scores.size_bytes()), selection.scores.data(), selection.scores.size_bytes());
    bytes.resize(std::size_t(writer.end() - bytes.data()));
    return true;
}

bool decodeSelection(std::span<const std::byte> bytes, std::vector<PackedBlock>& blocks, std::vector<float>& scores) {
    if (bytes.empty()) return false;
    const auto format = unsigned(bytes.front());
    const unsigned originFormat = (format >> kOriginShift) & 3u, hitFormat = (format >> kHitShift) & 3u;
    if ((format & kReserved) != 0 || originFormat > unsigned(Origins::Runs) || hitFormat > unsigned(Hits::Bits))
        return false;
    Cursor cursor(bytes.subspan(1));
    std::uint64_t count = 0;
    if (!cursor.varint(count) || count > kMaxCount) return false;
    if (!decodeIds(Ids(format & 1u), count, cursor, blocks)) return false;
    if (!decodeOrigins(Origins(originFormat), cursor, blocks)) return false;
    if (!decodeHits(Hits(hitFormat), cursor, blocks)) return false;
    scores.clear();
    if ((format & kScoreBit) != 0) {
        std::span<const std::byte> taken;
        if (!cursor.take(std::size_t(count) * sizeof(float), taken)) return false;
        scores.resize(std::size_t(count));
        if (count > 0) std::memcpy(scores.data(), taken.data(), taken.size());
    }
    return cursor.atEnd();
}

} // namespace kvscope
